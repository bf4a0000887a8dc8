package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// LocalWorkload is a workload with rules on this node.
type LocalWorkload struct {
	Key       model.Key
	Interface string
	Addresses []netip.Addr
}

// Limit is a workload's interface and a direction in which it gets no new connections.
type Limit struct {
	Interface string
	To        bool // the workload; false: from it
}

// LocalWorkloads returns the workloads with rules, by interface.
func (c *Calculator) LocalWorkloads() []LocalWorkload {
	var list []LocalWorkload
	for iface := range c.Workloads() {
		e := c.endpoints.owner(iface)
		if e == nil {
			continue
		}
		w := LocalWorkload{Key: e.key, Interface: iface}
		for _, p := range singleAddresses(e.workload) {
			w.Addresses = append(w.Addresses, p.Addr())
		}
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b LocalWorkload) int { return cmp.Compare(a.Interface, b.Interface) })
	return list
}

// SetLimited sets which workloads get no new connections in a direction, since they have too many. It takes effect at
// the next Update or Settle.
func (c *Calculator) SetLimited(limits []Limit) {
	now := map[Limit]bool{}
	for _, l := range limits {
		now[l] = true
	}
	for _, each := range []map[Limit]bool{now, c.endpoints.limited} {
		for l := range each {
			if e := c.endpoints.owner(l.Interface); e != nil && now[l] != c.endpoints.limited[l] {
				c.endpoints.dirty.add(e)
			}
		}
	}
	c.endpoints.limited = now
}

// limitedChain drops the first packets of connections, and sends others on to the policies. The rules of a workload
// without limit have no part of it: the check would cost others time.
func (s *settings) limitedChain(direction, iface, next string) *ruleset.Chain {
	return &ruleset.Chain{Name: "limited-" + direction + "/" + iface, Rules: []ruleset.Rule{
		s.drop("the workload has too many connections", droppedConnection,
			ruleset.Match{Field: ruleset.ConnState, Mask: ruleset.ConnNew}),
		{Verdict: goTo(next)}}}
}

// Fragments are IP fragments a second, and as many at once, and their bytes; 0: any number.
type Fragments struct{ Packets, Bytes uint32 }

// FragmentDrops returns the chain of a workload's early limits, and the IDs of the rules in it that drop fragments.
func (c *Calculator) FragmentDrops(iface string) (chain string, rules []string) {
	name := earlyChain(iface)
	if x := c.table.Chain(name); x != nil {
		for _, r := range x.Rules {
			if r.Comment == manyFragments {
				rules = append(rules, r.ID())
			}
		}
	}
	return name, rules
}
