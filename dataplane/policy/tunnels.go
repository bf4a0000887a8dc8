package policy

import (
	"fmt"

	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// tunnelDevices are the devices of overlays.
type tunnelDevices struct {
	up    map[string]bool // they take packets
	dirty bool
}

// tunnel is an overlay as far as it matters for rules.
type tunnel struct {
	device  string
	family  model.Family // of its outer packets
	packets overlay.Packets
	used    bool // by this node
}

func tunnelsOf(list []overlay.Overlay, f *model.FelixConfigurationSpec, pools ippool.Table) (tunnels []tunnel) {
	if list == nil {
		list = overlay.All()
	}
	for _, o := range list {
		tunnels = append(tunnels, tunnel{o.Device, o.Family, o.Packets(f), o.Used(f, pools)})
	}
	return tunnels
}

// matches are those of the outer packets, before others.
func (t tunnel) matches(others ...ruleset.Match) []ruleset.Match {
	list := append([]ruleset.Match{{Field: ruleset.Family, Low: uint32(t.family)}}, matchesOf(t.packets)...)
	return append(list, others...)
}

// nodes is the set of the addresses that may send them.
func (t tunnel) nodes() string { return hostsSet + fmt.Sprint(t.family) }

func matchesOf(p overlay.Packets) []ruleset.Match {
	list := []ruleset.Match{{Field: ruleset.Protocol, Low: uint32(p.Protocol)}}
	if p.Port != 0 {
		list = append(list, ruleset.Match{Field: ruleset.DestinationPort, Low: uint32(p.Port)})
	}
	return list
}
