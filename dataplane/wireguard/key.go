package wireguard

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
)

// kind is one of the kinds of objects.
type kind string

const (
	presence kind = "device" // wanted while it exists: the device itself is made elsewhere
	settings kind = "settings"
	threads  kind = "threads"
	peer     kind = "peer"
	allowed  kind = "allowed" // an AllowedIP
	way      kind = "route"
	rule     kind = "rule"
	// exception is a rule that comes before the other one.
	exception kind = "exception"
	// arp is a mark of ARP packets that come in, for the family IPv4.
	arp kind = "arp-mark"
)

// key names an object.
type key struct {
	Kind   kind
	Device string
	Peer   wireguard.Key // of a peer
	Prefix netip.Prefix  // of an AllowedIP or a route
	Table  kernel.Table  // of a route
	Rule   kernel.Rule   // of either kind, without its protocol
}

// String names the object for people.
func (k key) String() string {
	switch k.Kind {
	case peer:
		return fmt.Sprintf("peer %s dev %s", k.Peer, k.Device)
	case allowed:
		return fmt.Sprintf("allowed %s dev %s", k.Prefix, k.Device)
	case way:
		return fmt.Sprintf("route %s table %s", k.Prefix, k.Table)
	case rule, exception:
		if k.Rule.IPv6 {
			return "rule of IPv6 " + k.Rule.String()
		}
		return "rule " + k.Rule.String()
	}
	return fmt.Sprintf("%s %s", k.Kind, k.Device)
}

// Link implements driver.Objects' key. Routes and rules outlive the device, in part.
func (k key) Link() string {
	if k.Kind == way || k.Kind == rule || k.Kind == exception || k.Kind == arp {
		return ""
	}
	return k.Device
}

// value has what is to be compared of an object.
type value struct {
	// of settings
	Port uint16
	// Mark is also that of arp.
	Mark  uint32
	Keyed bool // there is a private key
	// of threads
	Threads wireguard.Threads
	// of a peer
	Endpoint  netip.AddrPort
	Keepalive time.Duration
	// of an AllowedIP
	Peer wireguard.Key
	// of a route
	Type kernel.RouteType
	Link int
	Src  netip.Addr // the source of packets of this host, invalid for that of the device
}

// String writes the value for people.
func (v value) String() string {
	switch {
	case v.Threads == wireguard.ThreadsOn:
		return "on"
	case v.Threads == wireguard.ThreadsOff:
		return "off"
	case v.Type == kernel.Unicast && v.Src.IsValid():
		return fmt.Sprintf("dev #%d src %s", v.Link, v.Src)
	case v.Type == kernel.Unicast:
		return fmt.Sprintf("dev #%d", v.Link)
	case v.Type != 0:
		return v.Type.String()
	case !v.Peer.IsZero():
		return v.Peer.String()
	case v.Endpoint.IsValid():
		return fmt.Sprintf("%s keepalive %s", v.Endpoint, v.Keepalive)
	case v.Port != 0 || v.Keyed:
		return fmt.Sprintf("port %d mark 0x%x key %t", v.Port, v.Mark, v.Keyed)
	case v.Mark != 0:
		return fmt.Sprintf("0x%x", v.Mark)
	}
	return "exists"
}
