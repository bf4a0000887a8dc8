package bgp

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/floating"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/ownership"
)

// originate decides which routes the node announces: its blocks, each as one prefix; its addresses, of which those
// inside its blocks are hidden; services; and routes of the kernel, as far as they lie in pools. Hidden routes are
// announced only if a filter accepts them.
func (c *cluster) originate(r model.Reader, d *Desired) {
	services := c.services(r, c.clusterIPs)
	blocks := c.ownBlocks(r)
	c.exportRules(r, d, blocks, services)
	d.Addresses = c.addressesOfNode()
	devices, elevated := c.ownAddresses(r)
	priorities := c.felixPriorities(r)
	origins := map[netip.Prefix]Origin{}
	for p, device := range devices {
		origins[p] = Origin{Prefix: p, Interface: device}
	}
	for p, releasing := range blocks {
		if _, used := devices[p]; !releasing || !used { // or else a workload still has the one address of it
			origins[p] = Origin{Prefix: p, Interface: devices[p], Blackhole: !p.IsSingleIP(), Withheld: releasing}
		}
	}
	for _, p := range services.own {
		if _, taken := origins[p]; !taken && !insideAny(d.NoExportPrefixes, p) {
			origins[p] = Origin{Prefix: p, Shared: true}
		}
	}
	c.addKernelRoutes(origins)
	for p, o := range origins {
		switch {
		case elevated[p]:
			o.LocalPref = MaxPriority - priorities[familyOf(p.Addr())][0]
		case o.LocalPref == 0:
			o.LocalPref = MaxPriority - c.priorities[familyOf(p.Addr())]
		}
		o.Communities, o.LargeCommunities = tagging(d.Tags).of(p)
		if !o.Withheld {
			_, own := blocks[p]
			o = d.limit(o, own)
		}
		if !o.Withheld || o.Blackhole {
			d.Originated = append(d.Originated, o)
		}
	}
	slices.SortFunc(d.Originated, func(a, b Origin) int { return comparePrefix(a.Prefix, b.Prefix) })
	d.NoInstall, d.ServiceNode = services.aggregates, services.node
}

// limit sets the peers that a route goes to. A block of one address is not among OwnBlocks, but the same limit applies.
func (d Desired) limit(o Origin, ownBlock bool) Origin {
	exported, _ := d.exportable(o.Candidate())
	switch {
	case exported, ownBlock && !insideAny(d.NoExportPrefixes, o.Prefix):
	case d.letOut(o.Candidate()):
		o.FilterOnly = true
	default:
		o.Withheld = true
	}
	return o
}

// letOut reports whether the filters of any session accept a route.
func (d Desired) letOut(c Candidate) bool {
	for s := range d.filterViews(c.Prefix.Addr().Is6()) {
		if v, ok := d.filtered(*s, c, true); ok && v.Accept {
			return true
		}
	}
	return false
}

// exportRules sets the inputs of Export.
func (c *cluster) exportRules(r model.Reader, d *Desired, blocks map[netip.Prefix]bool, services serviceRoutes) {
	pools, hidden := c.pools(r)
	var own, open []netip.Prefix
	for block, releasing := range blocks {
		if releasing || block.IsSingleIP() { // nothing is inside a block of one address
			continue
		}
		own = append(own, block)
		if !insideAny(hidden, block) {
			open = append(open, block)
		}
	}
	d.OwnBlocks = sortedPrefixes(open)
	d.Services = sortedPrefixes(slices.Concat(services.own, services.reflected))
	d.ExportPrefixes = sortedPrefixes(slices.Concat(pools, d.Services))
	d.NoExportPrefixes = sortedPrefixes(append(hidden, own...))
	d.Tags = c.communities()
	d.Elevated = c.elevated(r, d.Filters)
}

// pools lists those whose routes may be exported and those with disableBGPExport. Every pool around a prefix counts,
// not the most specific one alone: in calico/node's filters those with disableBGPExport come before all others.
func (c *cluster) pools(r model.Reader) (exported, hidden []netip.Prefix) {
	for k, v := range model.All[model.IPPool](r, model.KindIPPool) {
		p, err := ippool.Parse(k.Name, &v.Spec)
		switch {
		case err != nil:
			c.note("IPPool/"+k.Name, err.Error())
		case v.Spec.DisableBGPExport:
			hidden = append(hidden, p.CIDR)
		default:
			exported = append(exported, p.CIDR)
		}
	}
	return exported, hidden
}

// ownBlocks gives the blocks of this node, and whether each is being released.
func (c *cluster) ownBlocks(r model.Reader) map[netip.Prefix]bool {
	blocks := map[netip.Prefix]bool{}
	for k, v := range model.All[model.BlockAffinity](r, model.KindBlockAffinity) {
		if b, ok := ownership.BlockOf(k, v); ok && b.Node == c.me.name {
			blocks[b.CIDR] = b.Releasing
		}
	}
	return blocks
}

// ownAddresses lists the addresses of the node's workloads, with floating ones that are in use, and of its tunnel
// devices, with the device of each; and those of workloads that have just moved here. Workloads that are still to
// arrive are none of this node's.
func (c *cluster) ownAddresses(r model.Reader) (devices map[netip.Prefix]string, elevated map[netip.Prefix]bool) {
	devices, elevated = map[netip.Prefix]string{}, map[netip.Prefix]bool{}
	put := func(a netip.Addr, device string) {
		p := hostPrefix(a)
		if other, ok := devices[p]; !ok || device < other { // which comes first must not matter
			devices[p] = device
		}
	}
	for k, w := range model.AllWorkloads(r) {
		phase := c.moves[k]
		if w.Node != c.me.name || w.Interface != "" && c.interfaces.Refuse(w.Interface) != "" ||
			phase == livemigration.Arriving {
			continue // no node routes to it, or another one does
		}
		for _, p := range w.Networks {
			put(p.Addr(), w.Interface)
			if phase == livemigration.Arrived {
				elevated[hostPrefix(p.Addr())] = true
			}
		}
		for _, t := range c.usedFloating(r, w) {
			put(t.External, w.Interface)
			if phase == livemigration.Arrived {
				elevated[hostPrefix(t.External)] = true
			}
		}
	}
	for _, t := range c.me.object.TunnelAddresses() {
		put(t.Address, t.Device)
	}
	return devices, elevated
}

// phases returns those of the node's workloads that move. One that is new has that of its role: the dataplane, which
// knows whether it runs, has not seen it yet.
func (c *cluster) phases(in Input) map[model.Key]livemigration.Phase {
	own := func(yield func(model.Key, *model.Workload) bool) {
		for k, w := range model.AllWorkloads(in.Reader) {
			if w.Node == in.Node && !yield(k, w) {
				return
			}
		}
	}
	phases := map[model.Key]livemigration.Phase{}
	for k, role := range livemigration.Roles(in.Reader, own) {
		phases[k] = role.Phase()
	}
	maps.Copy(phases, in.Moves)
	return phases
}

// usedFloating returns the floating addresses of a workload that are in use.
func (c *cluster) usedFloating(r model.Reader, w *model.Workload) []floating.Translation {
	if len(w.IPNATs) == 0 || !c.felix.UsesFloatingIPs() {
		return nil
	}
	used, _ := floating.Read(r).Used(w.IPNATs)
	return used
}

// insideAny reports whether p equals or lies inside one of the prefixes.
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
