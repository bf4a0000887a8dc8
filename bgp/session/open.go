package session

import (
	"net/netip"
	"slices"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// peerOpen holds the content of a peer's last OPEN that matters for the one family of the session.
type peerOpen struct {
	names    []string // of all capabilities, as in the IANA registry
	families []string

	addPathSend, addPathReceive         bool // by the peer (RFC 7911)
	graceful                            bool // graceful restart of the family (RFC 4724)
	restarted, forwarding, notification bool // its flags R and F, and N of RFC 8538
	restartTime                         uint16
}

func readOpen(caps []gobgp.ParameterCapabilityInterface, peer netip.Addr) (o peerOpen) {
	family := gobgp.RF_IPv6_UC
	if peer.Unmap().Is4() {
		family = gobgp.RF_IPv4_UC
	}
	for _, c := range caps {
		name := CapabilityName(c.Code())
		switch c := c.(type) {
		case *gobgp.CapMultiProtocol:
			name += " " + c.CapValue.String()
			o.families = append(o.families, c.CapValue.String())
		case *gobgp.CapGracefulRestart:
			o.readRestart(c, family)
		case *gobgp.CapAddPath:
			for _, t := range c.Tuples {
				if t.Family == family {
					o.addPathReceive = t.Mode&gobgp.BGP_ADD_PATH_RECEIVE != 0
					o.addPathSend = t.Mode&gobgp.BGP_ADD_PATH_SEND != 0
				}
			}
		}
		o.names = append(o.names, name)
	}
	slices.Sort(o.names) // GoBGP keeps them in a map
	slices.Sort(o.families)
	return o
}

func (o *peerOpen) readRestart(c *gobgp.CapGracefulRestart, family gobgp.Family) {
	const restartState, notification, forwardingState = 8, 4, 0x80 // RFC 4724 section 3, RFC 8538 section 2
	o.restartTime = c.Time
	o.restarted, o.notification = c.Flags&restartState != 0, c.Flags&notification != 0
	for _, t := range c.Tuples {
		if gobgp.NewFamily(t.AFI, t.SAFI) == family {
			o.graceful, o.forwarding = true, t.Flags&forwardingState != 0
		}
	}
}

// CapabilityName is the name of a capability in the IANA registry, or else GoBGP's name for it.
func CapabilityName(c gobgp.BGPCapabilityCode) string {
	if name, known := capabilityName[c]; known {
		return name
	}
	return c.String()
}

var capabilityName = map[gobgp.BGPCapabilityCode]string{
	gobgp.BGP_CAP_MULTIPROTOCOL:               "multiprotocol",
	gobgp.BGP_CAP_ROUTE_REFRESH:               "route refresh",
	gobgp.BGP_CAP_EXTENDED_NEXTHOP:            "extended next hop",
	gobgp.BGP_CAP_EXTENDED_MESSAGE:            "extended message",
	gobgp.BGP_CAP_GRACEFUL_RESTART:            "graceful restart",
	gobgp.BGP_CAP_FOUR_OCTET_AS_NUMBER:        "4-octet AS",
	gobgp.BGP_CAP_ADD_PATH:                    "ADD-PATH",
	gobgp.BGP_CAP_ENHANCED_ROUTE_REFRESH:      "enhanced route refresh",
	gobgp.BGP_CAP_LONG_LIVED_GRACEFUL_RESTART: "long-lived graceful restart",
	gobgp.BGP_CAP_FQDN:                        "FQDN",
	gobgp.BGP_CAP_SOFT_VERSION:                "software version",
	gobgp.BGP_CAP_ROUTE_REFRESH_CISCO:         "route refresh (pre-standard)",
}
