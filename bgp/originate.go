package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// originate decides what the node announces: each of its blocks as one prefix, and those of its addresses that are in
// none of them (borrowed from another node's block), if a pool contains them; and addresses of services.
func (c *cluster) originate(r model.Reader, d *Desired) {
	pools, hidden := c.pools(r)
	tags := c.communities()
	origins := map[netip.Prefix]Origin{}
	add := func(o Origin) {
		o.LocalPref = MaxPriority - c.priorities[familyOf(o.Prefix.Addr())]
		o.Communities, o.LargeCommunities = tags.of(o.Prefix)
		origins[o.Prefix] = o
	}
	var confirmed []netip.Prefix
	for block, releasing := range c.ownBlocks(r) {
		single := block.IsSingleIP()
		o := Origin{Prefix: block, Blackhole: !single, Withheld: releasing || insideAny(hidden, block)}
		if !releasing {
			confirmed = append(confirmed, block)
		}
		if o.Blackhole || !o.Withheld {
			add(o)
		}
	}
	for _, a := range c.ownAddresses(r) {
		p := netip.PrefixFrom(a, a.BitLen())
		if !insideAny(confirmed, p) && !insideAny(hidden, p) && insideAny(pools, p) {
			add(Origin{Prefix: p})
		}
	}
	services := c.services(r, c.clusterIPs)
	for _, p := range services.own {
		if _, ok := origins[p]; !ok && !insideAny(confirmed, p) && !insideAny(hidden, p) {
			add(Origin{Prefix: p, Shared: true})
		}
	}
	d.NoInstall = services.aggregates
	d.Originated = slices.SortedFunc(maps.Values(origins), func(a, b Origin) int { return comparePrefix(a.Prefix, b.Prefix) })
	d.ExportPrefixes = sortedPrefixes(slices.Concat(pools, services.own, services.reflected))
	d.NoExportPrefixes = sortedPrefixes(append(hidden, slices.DeleteFunc(confirmed, netip.Prefix.IsSingleIP)...))
}

// pools lists those whose routes may be exported and those with disableBGPExport. Disabled pools count: that switch is
// about assigning addresses.
func (c *cluster) pools(r model.Reader) (exported, hidden []netip.Prefix) {
	for k, v := range model.All[model.IPPool](r, model.KindIPPool) {
		p, err := netip.ParsePrefix(v.Spec.CIDR)
		switch {
		case err != nil:
			c.note("IPPool/"+k.Name, fmt.Sprintf("spec.cidr = %q: want ADDRESS/LENGTH", v.Spec.CIDR))
		case v.Spec.DisableBGPExport:
			hidden = append(hidden, p.Masked())
		default:
			exported = append(exported, p.Masked())
		}
	}
	return exported, hidden
}

// ownBlocks gives the blocks of this node, and whether each is being released. A block whose claim is pending is not
// ours yet.
func (c *cluster) ownBlocks(r model.Reader) map[netip.Prefix]bool {
	blocks := map[netip.Prefix]bool{}
	for k, v := range model.All[model.BlockAffinity](r, model.KindBlockAffinity) {
		a, ok := k.Affinity()
		if !ok || v.Deleted || a.Type != model.AffinityHost || a.Host != c.me.name {
			continue
		}
		switch v.State {
		case "", model.StateConfirmed:
			blocks[a.CIDR.Masked()] = false
		case model.StatePendingDeletion:
			blocks[a.CIDR.Masked()] = true
		}
	}
	return blocks
}

// ownAddresses lists the addresses of the node's workloads and of its tunnel devices.
func (c *cluster) ownAddresses(r model.Reader) []netip.Addr {
	var addrs []netip.Addr
	add := func(text string) {
		text, _, _ = strings.Cut(text, "/")
		if a, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	for _, v := range model.All[model.WorkloadEndpoint](r, model.KindWorkloadEndpoint) {
		if v.Spec.Node != c.me.name {
			continue
		}
		for _, n := range v.Spec.IPNetworks {
			add(n)
		}
	}
	s := c.me.object.Spec
	add(s.IPv4VXLANTunnelAddr)
	add(s.IPv6VXLANTunnelAddr)
	if s.BGP != nil {
		add(s.BGP.IPv4IPIPTunnelAddr)
	}
	if s.Wireguard != nil {
		add(s.Wireguard.InterfaceIPv4Address)
		add(s.Wireguard.InterfaceIPv6Address)
	}
	return addrs
}

// insideAny tells whether p equals or lies inside one of the prefixes.
func insideAny(prefixes []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(outer netip.Prefix) bool { return contains(outer, p) })
}

func contains(outer, p netip.Prefix) bool {
	return outer.Bits() <= p.Bits() && outer.Contains(p.Addr())
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func sortedPrefixes(ps []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ps, comparePrefix)
	return slices.Compact(ps)
}
