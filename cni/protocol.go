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

// ProtocolVersion is that of the questions and answers. Who does not know a version answers with code
// CodeOtherVersion, and the plugin goes to the datastore itself.
const ProtocolVersion = 1

// CodeOtherVersion is the code of an error that says that a question is of another version of the protocol. It is one
// of those that CNI leaves to plugins.
const CodeOtherVersion uint = 150

// Step is the subject of a question.
type Step string

// The steps. An ADD is Prepare (for an IPAM plugin of others), Add, the wiring, and Finish; Abort in their place takes
// back what Add did. A DEL is Del, the removal of the interface, and Release.
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

// Request is one question.
type Request struct {
	Version int  `json:"version"`
	Step    Step `json:"step"`
	// ContainerID, Netns, IfName and Args are those of CNI's environment.
	ContainerID string `json:"containerID,omitempty"`
	Netns       string `json:"netns,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	Args        string `json:"args,omitempty"`
	// InterfacePrefix begins the names of host ends, as the plugin's environment has it; empty if it does not say.
	InterfacePrefix string `json:"interfacePrefix,omitempty"`
	// Config is the network configuration as the runtime passed it.
	Config json.RawMessage `json:"config"`
	// Attachment is what Add answered, for Finish and Abort; for Add it has the addresses of another IPAM plugin.
	Attachment *Attachment `json:"attachment,omitempty"`
	// Previous are the addresses of prevResult, for the checks.
	Previous []netip.Addr `json:"previous,omitempty"`
	// Valid are the attachments that a runtime still knows, for the garbage collection.
	Valid []types.GCAttachment `json:"valid,omitempty"`
}

// Response is the answer to a question.
type Response struct {
	Version int `json:"version"`
	// Error is why the question was refused or failed, nil if it was not.
	Error      *types.Error `json:"error,omitempty"`
	Attachment *Attachment  `json:"attachment,omitempty"`
	// Config is the configuration for another IPAM plugin, after Prepare and Del.
	Config json.RawMessage `json:"config,omitempty"`
}

// Attachment is how a container is attached: plain data that says all that the wiring needs.
type Attachment struct {
	HostIf     string         `json:"hostIf,omitempty"`
	MAC        string         `json:"mac,omitempty"`
	MTU        int            `json:"mtu,omitempty"`
	Addresses  []netip.Addr   `json:"addresses,omitempty"`
	Routes     []netip.Prefix `json:"routes,omitempty"` // in the container
	Forwarding bool           `json:"forwarding,omitempty"`
	Exclusive  bool           `json:"exclusive,omitempty"` // the host end must not be another container's
	// Routed is whether the agent makes the host's routes before Finish is answered.
	Routed bool `json:"routed,omitempty"`
	// Assigned are the addresses with the length of their block, as the result of IPAM has them.
	Assigned []netip.Prefix `json:"assigned,omitempty"`
	// Repeated is whether an earlier ADD attached the same container: what is right of it stays.
	Repeated bool `json:"repeated,omitempty"`
	// Deferred is set by Del, for Release, if the datastore did not answer: its part is left to be done later.
	Deferred bool `json:"deferred,omitempty"`
	// Fresh are the addresses that this ADD assigned, which Abort releases.
	Fresh []netip.Addr `json:"fresh,omitempty"`
}

// Backend answers questions: manxd over its socket, or the program itself. Its error Is ErrNoAnswer if there is nobody
// to answer.
type Backend interface {
	Ask(context.Context, *Request) (*Response, error)
}

// ErrNoAnswer is wrapped by the error of a question that nobody answered. Whether the step took place is open; all can
// be repeated.
var ErrNoAnswer = errors.New("manxd does not answer")

// MaxFrame bounds the size of a question and of an answer, in bytes. Network configurations have some kilobytes.
const MaxFrame = 1 << 20

// WriteFrame writes a value as JSON behind its length, four bytes in network order.
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

// ReadFrame reads what WriteFrame wrote. It takes no more memory than has arrived.
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
