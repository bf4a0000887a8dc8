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
	// Sources are the addresses that it may send from.
	Sources []netip.Prefix
}

// LocalWorkloads returns the workloads with rules, by interface.
func (c *Calculator) LocalWorkloads() []LocalWorkload {
	var list []LocalWorkload
	for iface := range c.Workloads() {
		e := c.owner(iface)
		if e == nil {
			continue
		}
		w := LocalWorkload{Key: e.key, Interface: iface, Sources: parseNets(e.workload.Spec.IPNetworks)}
		if c.settings.spoofing {
			w.Sources = append(w.Sources, parseNets(e.workload.Spec.AllowSpoofedSourcePrefixes)...)
		}
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b LocalWorkload) int { return cmp.Compare(a.Interface, b.Interface) })
	return list
}

// SetLimited sets the interfaces of the workloads that get no new connections in either direction, since they have too
// many. It takes effect at the next Update or Settle.
func (c *Calculator) SetLimited(interfaces []string) {
	now := map[string]bool{}
	for _, iface := range interfaces {
		now[iface] = true
	}
	for _, each := range []map[string]bool{now, c.limited} {
		for iface := range each {
			if e := c.owner(iface); e != nil && now[iface] != c.limited[iface] {
				c.dirty.endpoints[e] = true
			}
		}
	}
	c.limited = now
}

// limitedChain drops the first packets of connections, and sends others on to the policies. The rules of a workload
// without limit have no part of it: the check would cost others time.
func (s *settings) limitedChain(direction, iface, next string) *ruleset.Chain {
	return &ruleset.Chain{Name: "limited-" + direction + "/" + iface, Rules: []ruleset.Rule{
		{Matches: []ruleset.Match{{Field: ruleset.ConnState, Mask: ruleset.ConnNew}}, Log: s.dropLog(manyConnections),
			Verdict: ruleset.Verdict{Action: ruleset.Drop}, Comment: manyConnections},
		{Verdict: ruleset.Verdict{Action: ruleset.Goto, Chain: next}}}}
}

const manyConnections = "the workload has too many connections"

// FragmentDrops returns the chain of a workload's early limits, and the ID of the rule in it that drops fragments; it
// is empty if there is none.
func (c *Calculator) FragmentDrops(iface string) (chain, rule string) {
	name := earlyChain(iface)
	if x := c.table.Chain(name); x != nil {
		for _, r := range x.Rules {
			if r.Comment == manyFragments {
				return name, r.ID()
			}
		}
	}
	return name, ""
}
