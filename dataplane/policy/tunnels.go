package policy

import (
	"cmp"
	"fmt"

	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// TunnelDevice is a device of an overlay as it exists on this host.
type TunnelDevice struct {
	Up bool // it takes packets
	// Port and VNI are those of the outer packets that it takes, 0 for those of the settings.
	Port uint16
	VNI  uint32
}

// tunnelDevices are the devices of overlays, by name.
type tunnelDevices struct {
	devices map[string]TunnelDevice
	dirty   bool
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
	if t.packets.VNI != 0 {
		list = append(list, ruleset.Match{Field: ruleset.VNI, Low: t.packets.VNI})
	}
	return append(list, others...)
}

// nodes is the set of the addresses that may send them.
func (t tunnel) nodes() string { return hostsSet + fmt.Sprint(t.family) }

// matchesOf are those of such packets of any network.
func matchesOf(p overlay.Packets) []ruleset.Match {
	list := []ruleset.Match{{Field: ruleset.Protocol, Low: uint32(p.Protocol)}}
	if p.Port != 0 {
		list = append(list, ruleset.Match{Field: ruleset.DestinationPort, Low: uint32(p.Port)})
	}
	return list
}

// AsVXLAN returns a packet as one of the network of this node's overlays if it goes to their port, and whether it does.
func (c *Calculator) AsVXLAN(p ruleset.Packet) (ruleset.Packet, bool) {
	for _, t := range c.settings.tunnels {
		if x := t.packets; x.VNI != 0 && x.Protocol == p.Protocol && x.Port == p.DestinationPort && t.used {
			p.VXLAN, p.VNI = true, x.VNI
			return p, true
		}
	}
	return p, false
}

func (c *Calculator) settleTunnels() {
	if c.tunnels.dirty {
		c.writeTunnels()
	}
}

// writeTunnels writes the chains for the outer packets of this node's overlays.
func (c *Calculator) writeTunnels() {
	c.tunnels.dirty = false
	list := c.guarded()
	c.table.SetChain(&ruleset.Chain{Name: "input-tunnels", Origin: Stage{Subject: HostItself},
		Base: base(ruleset.Input, -1), Rules: foreignTunnels(list)})
	for _, way := range []struct {
		chain      string
		hook       ruleset.Hook
		own, other ruleset.Field
	}{
		{"prerouting-tunnels", ruleset.Prerouting, ruleset.DestinationLocal, ruleset.Source},
		{"output-tunnels", ruleset.Output, ruleset.SourceLocal, ruleset.Destination},
	} {
		if rules := untracked(list, way.own, way.other); len(rules) > 0 {
			c.table.SetChain(&ruleset.Chain{Name: way.chain, Base: base(way.hook, beforeTracking), Rules: rules})
		} else {
			c.table.DeleteChain(way.chain)
		}
	}
}

// senders matches the hosts that may send the packets, as an address of a packet.
func (t tunnel) senders(address ruleset.Field) []ruleset.Match {
	if t.packets.Authentic {
		return nil
	}
	return []ruleset.Match{{Field: address, Set: t.nodes()}}
}

// guarded returns the tunnels whose packets come in: those in use, and the devices that are up as they are. A device
// stays up when its overlay is no longer in use, since some nodes learn of that later, and for a moment it may have
// another port or VNI than the settings.
func (c *Calculator) guarded() (list []tunnel) {
	for _, t := range c.settings.tunnels {
		if t.used {
			list = append(list, t)
		}
		d := c.tunnels.devices[t.device]
		actual := t
		actual.packets.Port, actual.packets.VNI = cmp.Or(d.Port, t.packets.Port), cmp.Or(d.VNI, t.packets.VNI)
		if d.Up && (!t.used || actual != t) {
			list = append(list, actual)
		}
	}
	return list
}

// foreignTunnels drops tunnelled packets that do not come from a node of the cluster, also those to all of a link.
func foreignTunnels(list []tunnel) (rules []ruleset.Rule) {
	for _, t := range list {
		if t.packets.Authentic {
			continue
		}
		rules = append(rules, ruleset.Rule{
			Matches:   t.matches(ruleset.Match{Field: ruleset.Source, Not: true, Set: t.nodes()}),
			Verdict:   ruleset.Verdict{Action: ruleset.Drop},
			Comment:   t.packets.Name + " from a host that is no node",
			CountedBy: droppedTunnel.Counter(),
		})
	}
	return rules
}

// beforeTracking is before connections are tracked, at -200, and after fragments are put together for that, at -400.
const beforeTracking = -300

// untracked keeps tunnelled packets between this host and other nodes out of connection tracking: with a source port
// for each flow in them, and no answers, they would fill its table. All others to that port are tracked as ever.
func untracked(list []tunnel, own, other ruleset.Field) (rules []ruleset.Rule) {
	for _, t := range list {
		if t.packets.Untracked {
			rules = append(rules, ruleset.Rule{NoTrack: true, Verdict: accept,
				Matches: t.matches(ruleset.Match{Field: other, Set: t.nodes()}, ruleset.Match{Field: own}),
				Comment: t.packets.Name + " between nodes is not tracked"})
		}
	}
	return rules
}
