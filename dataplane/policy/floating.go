package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/floating"
)

const (
	floatingIn  = "floating-in"
	floatingOut = "floating-out"
)

// translation is one address by which a workload can be reached besides its own.
type translation struct{ external, internal netip.Addr }

// translated is the translations in the table, and the external addresses whose earlier one is obsolete.
type translated struct {
	now     map[netip.Addr]netip.Addr
	changed []netip.Addr
	dirty   bool
}

// take records the translations that are to be in the table from now on.
func (t *translated) take(list []translation) {
	before := t.now
	t.now = make(map[netip.Addr]netip.Addr, len(list))
	for _, f := range list {
		t.now[f.external] = f.internal
	}
	for external, internal := range before {
		if t.now[external] != internal {
			t.changed = append(t.changed, external)
		}
	}
}

// Retranslated returns, once, the floating addresses that lead elsewhere or nowhere now. The kernel keeps translating
// the connections that it has, so they are to be forgotten when the table is in the kernel.
func (c *Calculator) Retranslated() []netip.Addr {
	list := c.translated.changed
	c.translated.changed = nil
	return list
}

// floatings lists the floating addresses of this node's workloads, by external address. If two workloads claim one, the
// first by internal address has it.
func (c *Calculator) floatings() []translation {
	owner := map[netip.Addr]netip.Addr{}
	rules := floating.Read(c.reader)
	for _, e := range c.endpoints.of {
		if !floats(e) {
			continue
		}
		used, _ := rules.Used(e.workload.IPNATs) // the agent of routes reports the others
		for _, t := range used {
			if !t.Internal.IsValid() || t.External.Is4() != t.Internal.Is4() {
				continue
			}
			if have, ok := owner[t.External]; !ok || strings.Compare(t.Internal.String(), have.String()) < 0 {
				owner[t.External] = t.Internal
			}
		}
	}
	var list []translation
	for _, external := range slices.SortedFunc(maps.Keys(owner), netip.Addr.Compare) {
		list = append(list, translation{external, owner[external]})
	}
	return list
}

// settleFloating writes the translation of floating addresses: to the workload for every source, and from it for a
// workload that reaches itself by its own.
func (c *Calculator) settleFloating() {
	if !c.translated.dirty && !c.settings.changed {
		return
	}
	c.translated.dirty = false
	if !c.settings.floating {
		c.translated.take(nil)
		for _, name := range []string{"prerouting-floating", "output-floating", floatingIn, floatingOut} {
			c.table.DeleteChain(name)
		}
		return
	}
	in, out := &ruleset.Chain{Name: floatingIn}, &ruleset.Chain{Name: floatingOut}
	list := c.floatings()
	c.translated.take(list)
	for _, f := range list {
		family := familyOf(netip.PrefixFrom(f.external, f.external.BitLen()))
		internal := netip.PrefixFrom(f.internal, f.internal.BitLen())
		in.Rules = append(in.Rules, ruleset.Rule{
			Matches: []ruleset.Match{
				family, {Field: ruleset.Destination, Prefix: netip.PrefixFrom(f.external, f.external.BitLen())}},
			Verdict: ruleset.Verdict{Action: ruleset.DNAT, Address: f.internal}, Comment: "floating address"})
		out.Rules = append(out.Rules, ruleset.Rule{
			Matches: []ruleset.Match{family, {Field: ruleset.Source, Prefix: internal},
				{Field: ruleset.Destination, Prefix: internal}},
			Verdict: ruleset.Verdict{Action: ruleset.SNAT, Address: f.external}, Comment: "floating address"})
	}
	c.table.SetChain(in)
	c.table.SetChain(out)
	for name, hook := range map[string]ruleset.Hook{"prerouting-floating": ruleset.Prerouting,
		"output-floating": ruleset.Output} {
		c.table.SetChain(&ruleset.Chain{Name: name, Base: &ruleset.Base{Hook: hook, Type: ruleset.NAT, Priority: -100},
			Rules: []ruleset.Rule{{Verdict: jump(floatingIn)}}})
	}
}
