package cni

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
)

// ProtocolVersion is the version of the protocol. A server answers an unknown version with CodeOtherVersion, and the
// plugin then uses the datastore directly.
const ProtocolVersion = 1

// CodeOtherVersion is the error code for a request of another protocol version. It is in CNI's range for plugins.
const CodeOtherVersion uint = 150

// Step is the type of a request.
type Step string

// The steps. An ADD is Prepare (for another IPAM plugin), Add, the wiring, and Finish; Abort instead undoes Add. A DEL
// is Del, the removal of the interface, and Release.
const (
	StepPrepare Step = "prepare"
	StepAdd     Step = "add"
	StepFinish  Step = "finish"
	StepAbort   Step = "abort"
	StepDel     Step = "del"
	StepRelease Step = "release"
	StepCheck   Step = "check"
	StepStatus  Step = "status"
	StepGC      Step = "gc"

	StepIPAMAdd   Step = "ipam-add"
	StepIPAMDel   Step = "ipam-del"
	StepIPAMCheck Step = "ipam-check"
)

// Steps are all steps.
var Steps = []Step{StepPrepare, StepAdd, StepFinish, StepAbort, StepDel, StepRelease, StepCheck, StepStatus, StepGC,
	StepIPAMAdd, StepIPAMDel, StepIPAMCheck}

// Request is one request.
type Request struct {
	Version int  `json:"version"`
	Step    Step `json:"step"`
	// ContainerID, Netns, IfName and Args are from CNI's environment.
	ContainerID string `json:"containerID,omitempty"`
	Netns       string `json:"netns,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	Args        string `json:"args,omitempty"`
	// InterfacePrefix is the prefix of host interface names from the plugin's environment; empty if not set.
	InterfacePrefix string `json:"interfacePrefix,omitempty"`
	// Config is the network configuration from the runtime.
	Config json.RawMessage `json:"config,omitempty"`
	// Attachment is the response to Add, for Finish and Abort; for Add it has the addresses of another IPAM plugin.
	Attachment *Attachment `json:"attachment,omitempty"`
	// Previous are the addresses of prevResult, for the checks.
	Previous []netip.Addr `json:"previous,omitempty"`
	// Valid are the attachments that the runtime still knows, for the garbage collection.
	Valid []types.GCAttachment `json:"valid,omitempty"`
	// Early requests a response with Early before the one of Add; Begin, which may be nil, is called with it.
	Early bool              `json:"early,omitempty"`
	Begin func(*Attachment) `json:"-"`
}

// Response is the response to a request.
type Response struct {
	Version int `json:"version"`
	// Error is the error of the request, nil if it succeeded.
	Error      *types.Error `json:"error,omitempty"`
	Attachment *Attachment  `json:"attachment,omitempty"`
	// Config is the configuration for another IPAM plugin, after Prepare and Del.
	Config json.RawMessage `json:"config,omitempty"`
	// Early is the attachment while its addresses are being assigned: another response follows. It is not promised that
	// the attachment will be the same.
	Early *Attachment `json:"early,omitempty"`
	// Result is the text of the result of an ADD, after Finish. It is empty if this side does not know all of it.
	Result string `json:"result,omitempty"`
}

// Attachment describes how a container is attached: all parameters of the wiring, as plain data.
type Attachment struct {
	HostIf    string       `json:"hostIf,omitempty"`
	MAC       string       `json:"mac,omitempty"`
	MTU       int          `json:"mtu,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// IPv4 and IPv6 are the families of the addresses in a Response.Early.
	IPv4       bool           `json:"ipv4,omitempty"`
	IPv6       bool           `json:"ipv6,omitempty"`
	Routes     []netip.Prefix `json:"routes,omitempty"` // in the container
	Forwarding bool           `json:"forwarding,omitempty"`
	Exclusive  bool           `json:"exclusive,omitempty"` // the host interface must not be another container's
	// Routed is set if the agent creates the host's routes before Finish is answered.
	Routed bool `json:"routed,omitempty"`
	// Assigned are the addresses with the length of their block, as in the result of IPAM.
	Assigned []netip.Prefix `json:"assigned,omitempty"`
	// Repeated is set if an earlier ADD attached the same container: its correct parts stay.
	Repeated bool `json:"repeated,omitempty"`
	// Deferred is set by Del, for Release, if the datastore did not answer: its part is done later.
	Deferred bool `json:"deferred,omitempty"`
	// Fresh are the addresses that this ADD assigned, which Abort releases.
	Fresh []netip.Addr `json:"fresh,omitempty"`

	received json.RawMessage // the text of a received attachment, which a request returns as it came
}

// Backend serves requests: manxd over its socket, or the program itself. Its error Is ErrNoAnswer if no server answers.
type Backend interface {
	Call(context.Context, *Request) (*Response, error)
}

// ErrNoAnswer is wrapped by the error of a request without response. The step may have taken place; every step can be
// repeated.
var ErrNoAnswer = errors.New("manxd does not answer")

// MaxFrame bounds the size of a request and of a response, in bytes. Network configurations have some kilobytes.
const MaxFrame = 1 << 20

// WriteFrame writes a value as JSON after its length, four bytes in network byte order.
func WriteFrame(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(text) > MaxFrame {
		return fmt.Errorf("%d bytes are more than the %d of one frame", len(text), MaxFrame)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text)))
	_, err = w.Write(append(frame, text...)) // one write: no half frame waits for the next
	return err
}

// ReadFrame reads a frame of WriteFrame into r. It allocates no more memory than has arrived.
func ReadFrame(r io.Reader, value any) error {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > MaxFrame {
		return fmt.Errorf("a frame of %d bytes: want at most %d", n, MaxFrame)
	}
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(text) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}
