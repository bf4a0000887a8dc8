package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/ownership"
)

// ModeChange is the change of ipipMode or vxlanMode of a pool that both States have.
type ModeChange struct {
	Pool string `json:"pool"`
	From string `json:"from"` // "none", "IPIP Always", "VXLAN CrossSubnet" and so on
	To   string `json:"to"`
	// Steps are what the nodes do, in this order.
	Steps []string `json:"steps"`
	// Losses are the reasons for which packets may be lost, each with its condition; none: no packet is.
	Losses []string `json:"losses"`
}

// modeChanges compares the modes of the pools, by name. sessions has the number of a node's BGP sessions afterwards.
func modeChanges(from, to State, sessions map[string]int) []ModeChange {
	list := []ModeChange{}
	before := poolsOf(from)
	after := poolsOf(to)
	for _, name := range slices.Sorted(maps.Keys(after)) {
		a, b := before[name], after[name]
		if b.CIDR != a.CIDR || a.IPIP == b.IPIP && a.VXLAN == b.VXLAN {
			continue
		}
		list = append(list, modeChange(a, b, from, to, sessions))
	}
	return list
}

func poolsOf(s State) map[string]ippool.Pool {
	pools := map[string]ippool.Pool{}
	for _, p := range ippool.Read(s.Objects) {
		pools[p.Name] = p
	}
	return pools
}

func modeName(p ippool.Pool) string {
	mode := p.VXLAN
	switch p.Encapsulation() {
	case ippool.Direct:
		return "none"
	case ippool.IPIP:
		mode = p.IPIP
	case ippool.VXLAN:
	}
	return p.Encapsulation().String() + " " + [...]string{"Never", "Always", "CrossSubnet"}[mode]
}

// deviceOf returns the device of a pool's packets between subnets, empty for none.
func deviceOf(p ippool.Pool) string { return p.Reach(netip.Prefix{}, p.CIDR.Addr()).Device() }

func modeChange(a, b ippool.Pool, from, to State, sessions map[string]int) ModeChange {
	c := ModeChange{Pool: a.Name, From: modeName(a), To: modeName(b), Steps: []string{}, Losses: []string{}}
	old, fresh := deviceOf(a), deviceOf(b)
	c.devices(to, old, fresh)
	c.routes(to, a, b)
	c.mtu(from, to)
	if old != "" && old != fresh {
		c.Steps = append(c.Steps, fmt.Sprintf("after 10 minutes: the addresses of %s are released, and the device %s",
			old, map[bool]string{true: "stays without one", false: "is deleted"}[old == model.DeviceIPIP]))
	}
	c.losses(to, a, b, sessions)
	return c
}

// devices adds the steps of the nodes that have no tunnel address yet.
func (c *ModeChange) devices(to State, old, fresh string) {
	if fresh == "" || fresh == old {
		return
	}
	var without []string
	for k, n := range model.All[model.Node](to.Objects, model.KindNode) {
		if !n.TunnelAddress(fresh).IsValid() {
			without = append(without, k.Name)
		}
	}
	if len(without) > 0 {
		c.Steps = append(c.Steps, fmt.Sprintf("%s an address of %s (%s)",
			counted(len(without), "node gets", "nodes get"), fresh, named(without)))
	}
	c.Steps = append(c.Steps, "each node makes the device "+fresh+" where it is missing")
}

// routes adds the step that changes the routes to the pool's blocks.
func (c *ModeChange) routes(to State, a, b ippool.Pool) {
	blocks, owners := 0, map[string]bool{}
	for k, v := range model.All[model.BlockAffinity](to.Objects, model.KindBlockAffinity) {
		if block, ok := ownership.BlockOf(k, v); ok && a.CIDR.Overlaps(block.CIDR) {
			blocks++
			owners[block.Node] = true
		}
	}
	how := "at once"
	switch x, y := a.Encapsulation(), b.Encapsulation(); {
	case y == ippool.VXLAN && x != y:
		how = "3 seconds after the other node has published its tunnel address; until then the routes by BGP stay"
	case y == ippool.IPIP && x != y:
		how = "3 seconds after the change"
	}
	if x := a.Encapsulation(); x == ippool.VXLAN && b.Encapsulation() != x {
		how += ", once BGP has a route; until then the former routes stay, for 10 minutes at most"
	}
	c.Steps = append(c.Steps, fmt.Sprintf("each node replaces its routes to %s of other nodes (%s), %s",
		counted(blocks, "block", "blocks"), counted(len(owners), "owner", "owners"), how))
}

// mtu adds the step and the losses of a different MTU of pods.
func (c *ModeChange) mtu(from, to State) {
	const host = 1500
	mtu := func(s State) int {
		felix := felixconfig.Merge(s.Objects, "", nil)
		return overlay.PodMTU(&felix, ippool.Read(s.Objects), host)
	}
	before, after := mtu(from), mtu(to)
	if before == after {
		return
	}
	c.Steps = append(c.Steps, fmt.Sprintf("new pods have the MTU %d in place of %d, on a host with %d; others keep "+
		"theirs", after, before, host))
	if after < before {
		c.Losses = append(c.Losses, fmt.Sprintf("running pods send packets of up to %d bytes, of which those over %d "+
			"do not fit the tunnel: whoever ignores ICMP's answer loses them. Make the pods again with the smaller "+
			"MTU first", before, after))
	}
}

// losses adds the conditions under which packets are lost.
func (c *ModeChange) losses(to State, a, b ippool.Pool, sessions map[string]int) {
	x, y := a.Encapsulation(), b.Encapsulation()
	plain := func(p ippool.Pool) bool { return p.IPIP != ippool.Always && p.VXLAN != ippool.Always }
	if plain(a) || plain(b) { // devices of tunnels are loose
		c.Losses = append(c.Losses, "with rp_filter 1 on an uplink, from the first node's switch to the last one's")
	}
	felix := felixconfig.Merge(to.Objects, "", nil)
	if why := overlay.Disabled(&felix)[deviceOf(b)]; why != nil {
		c.Losses = append(c.Losses, fmt.Sprintf("always: %v", why))
	}
	var silent, strange []string
	for k, n := range model.All[model.Node](to.Objects, model.KindNode) {
		if sessions[k.Name] == 0 || n.Annotations[model.AnnotationBGPOff] != "" {
			silent = append(silent, k.Name)
		}
		family := model.IPv4
		if a.CIDR.Addr().Is6() {
			family = model.IPv6
		}
		if n.Spec.BGP == nil || !n.Spec.BGP.Address(family).IsValid() {
			strange = append(strange, k.Name)
		}
	}
	if x == ippool.VXLAN && y != x && len(silent) > 0 {
		c.Losses = append(c.Losses, fmt.Sprintf("always, after 10 minutes: %s no BGP session (%s), and without VXLAN "+
			"routes come from BGP", counted(len(silent), "node has", "nodes have"), named(silent)))
	}
	if y == ippool.VXLAN && x != y && len(strange) > 0 {
		c.Losses = append(c.Losses, fmt.Sprintf("to nodes without an address of the family in spec.bgp (%s), once BGP "+
			"has no route to them", named(strange)))
	}
}

// text returns the lines of a change.
func (c ModeChange) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "IPPool %s: %s to %s\n", c.Pool, c.From, c.To)
	for i, s := range c.Steps {
		fmt.Fprintf(&b, "  %d. %s\n", i+1, s)
	}
	for _, l := range c.Losses {
		fmt.Fprintf(&b, "  packets may be lost: %s\n", l)
	}
	return b.String()
}
