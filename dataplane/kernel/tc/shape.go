package tc

import (
	"crypto/sha512"
	"errors"
	"fmt"
	"strings"

	"github.com/manxnet/manx/dataplane/kernel"
)

// Shapes reads and changes limits of bandwidth. They are ours by name: token buckets with the handle 6d78: on any
// interface, and everything on and towards the devices bwcali*, which Calico's agent names the same way.
type Shapes interface {
	// ListShapes returns the limits by the device that they are on.
	ListShapes() (map[string]Shape, error)
	// SetShape makes or changes the limit of a device. One that RedirectDevice names is made, too. An error Is
	// ErrNoShaping if the kernel lacks a part that the limit needs.
	SetShape(device string, s Shape) error
	// RemoveShape undoes SetShape; s is the limit in the kernel.
	RemoveShape(device string, s Shape) error
}

// Shape limits the traffic sent through a device.
type Shape struct {
	// From is the interface all whose received packets go through the device first; empty for the device's own packets.
	// The kernel can queue only packets that it sends.
	From string
	TokenBucket
}

// Interface is the one that people know: it, and not the device of a redirection, is limited.
func (s Shape) Interface(device string) string {
	if s.From != "" {
		return s.From
	}
	return device
}

// TokenBucket are the parameters of a token bucket filter, in the kernel's units.
type TokenBucket struct {
	Rate       uint64 // bytes per second; 0 in the result of ListShapes: incomplete
	Buffer     uint32 // size of the bucket: ticks that it takes to fill at Rate
	Limit      uint32 // bytes that may wait
	PeakRate   uint64 // bytes per second while the bucket empties, 0 for any
	PeakBuffer uint32 // ticks, at PeakRate
}

// TickNanoseconds is the length of the kernel's unit of time for packet scheduling.
const TickNanoseconds = 64

// ErrNoShaping is in errors about limits that this kernel cannot do.
var ErrNoShaping = errors.New("not supported by this kernel")

const (
	redirectPrefix  = "bwcali"
	longestLinkName = 15
)

// RedirectDevice names the device through which the packets go that an interface receives, as Calico's agent does.
func RedirectDevice(iface string) string {
	return (redirectPrefix + fmt.Sprintf("%x", sha512.Sum512([]byte(iface))))[:longestLinkName]
}

func isRedirectDevice(l kernel.Link) bool {
	return l.Kind == "ifb" && strings.HasPrefix(l.Name, redirectPrefix)
}

// String is for people.
func (s Shape) String() string {
	text := fmt.Sprintf("%d bytes/s", s.Rate)
	if s.From != "" {
		text += " from " + s.From
	}
	return text
}
