package session

import (
	"slices"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire"
)

// offers are the contents of a peer's OPEN as text, sorted.
type offers struct{ capabilities, families []string }

func readOffers(o *wire.Open) (f offers) {
	for _, c := range o.Capabilities {
		name := CapabilityName(c.Code())
		if c, ok := c.(*gobgp.CapMultiProtocol); ok {
			name += " " + c.CapValue.String()
		}
		if unused[c.Code()] {
			name += " (not used)"
		}
		f.capabilities = append(f.capabilities, name)
	}
	for _, family := range o.Families {
		f.families = append(f.families, family.String())
	}
	slices.Sort(f.capabilities)
	slices.Sort(f.families)
	return f
}

// CapabilityName is the name of a capability in the IANA registry, or else GoBGP's name for it.
func CapabilityName(c gobgp.BGPCapabilityCode) string {
	if name, known := capabilityName[c]; known {
		return name
	}
	return c.String()
}

// The capabilities that GoBGP does not know.
const capRole gobgp.BGPCapabilityCode = 9 // RFC 9234

var capabilityName = map[gobgp.BGPCapabilityCode]string{
	gobgp.BGP_CAP_MULTIPROTOCOL:               "multiprotocol",
	gobgp.BGP_CAP_ROUTE_REFRESH:               "route refresh",
	gobgp.BGP_CAP_EXTENDED_NEXTHOP:            "extended next hop",
	gobgp.BGP_CAP_EXTENDED_MESSAGE:            "extended message",
	capRole:                                   "role",
	gobgp.BGP_CAP_GRACEFUL_RESTART:            "graceful restart",
	gobgp.BGP_CAP_FOUR_OCTET_AS_NUMBER:        "4-octet AS",
	gobgp.BGP_CAP_ADD_PATH:                    "ADD-PATH",
	gobgp.BGP_CAP_ENHANCED_ROUTE_REFRESH:      "enhanced route refresh",
	gobgp.BGP_CAP_LONG_LIVED_GRACEFUL_RESTART: "long-lived graceful restart",
	gobgp.BGP_CAP_FQDN:                        "FQDN",
	gobgp.BGP_CAP_SOFT_VERSION:                "software version",
	gobgp.BGP_CAP_ROUTE_REFRESH_CISCO:         "route refresh (pre-standard)",
}

// unused are the capabilities that this node does not offer, so that they have no effect.
var unused = map[gobgp.BGPCapabilityCode]bool{
	gobgp.BGP_CAP_EXTENDED_NEXTHOP: true, gobgp.BGP_CAP_EXTENDED_MESSAGE: true, capRole: true,
	gobgp.BGP_CAP_ENHANCED_ROUTE_REFRESH: true, gobgp.BGP_CAP_LONG_LIVED_GRACEFUL_RESTART: true,
}
