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

// translated is the translations in the table, and the external addresses whose earlier one is obsolete.
type translated struct {
	now     map[netip.Addr]netip.Addr // see floatings
	changed []netip.Addr
	dirty   bool
}

// take records the translations that are to be in the table from now on.
func (t *translated) take(now map[netip.Addr]netip.Addr) {
	for external, internal := range t.now {
		if now[external] != internal {
			t.changed = append(t.changed, external)
		}
	}
	t.now = now
}

// Retranslated returns, once, the floating addresses that lead elsewhere or nowhere now. The kernel keeps translating
// the connections that it has, so they are to be forgotten when the table is in the kernel.
func (c *Calculator) Retranslated() []netip.Addr {
	list := c.translated.changed
	c.translated.changed = nil
	return list
}

// floatings are the addresses of this node's workloads by their floating, external ones. If two workloads claim one,
// the first by internal address has it.
func (c *Calculator) floatings() map[netip.Addr]netip.Addr {
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
	return owner
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
	c.translated.take(c.floatings())
	for _, external := range slices.SortedFunc(maps.Keys(c.translated.now), netip.Addr.Compare) {
		internal := c.translated.now[external]
		from, to := hostPrefix(external), hostPrefix(internal)
		in.Rules = append(in.Rules, ruleset.Rule{
			Matches: []ruleset.Match{familyOf(from), {Field: ruleset.Destination, Prefix: from}},
			Verdict: ruleset.Verdict{Action: ruleset.DNAT, Address: internal}, Comment: "floating address"})
		out.Rules = append(out.Rules, ruleset.Rule{
			Matches: []ruleset.Match{familyOf(to), {Field: ruleset.Source, Prefix: to},
				{Field: ruleset.Destination, Prefix: to}},
			Verdict: ruleset.Verdict{Action: ruleset.SNAT, Address: external}, Comment: "floating address"})
	}
	c.table.SetChain(in)
	c.table.SetChain(out)
	for name, hook := range map[string]ruleset.Hook{"prerouting-floating": ruleset.Prerouting,
		"output-floating": ruleset.Output} {
		c.table.SetChain(&ruleset.Chain{Name: name, Base: &ruleset.Base{Hook: hook, Type: ruleset.NAT, Priority: -100},
			Rules: []ruleset.Rule{{Verdict: jump(floatingIn)}}})
	}
}
