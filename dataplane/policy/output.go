package policy

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// output is the table, with the form that all chains get.
type output struct {
	*ruleset.Table
	uncounted bool // without named counters
}

// SetChain writes a chain. Clients whose packets are refused rather than dropped should notice at once: a TCP client on
// the same host often misses the ICMP error to its first packet, because it is still busy with sending it, but not a
// reset.
func (o output) SetChain(chain *ruleset.Chain) {
	if o.uncounted {
		chain.Rules = uncounted(chain.Rules)
	}
	var rules []ruleset.Rule
	for i, r := range chain.Rules {
		if r.Verdict.Action != ruleset.Reject {
			if rules != nil {
				rules = append(rules, r)
			}
			continue
		}
		if rules == nil {
			rules = append(make([]ruleset.Rule, 0, len(chain.Rules)+1), chain.Rules[:i]...)
		}
		rules = append(rules, refusals(r)...)
	}
	if rules != nil {
		chain.Rules = rules
	}
	o.Table.SetChain(chain)
}

// refusals are the rules for a rule that rejects: TCP gets a reset, everything else ICMP port unreachable.
func refusals(r ruleset.Rule) []ruleset.Rule {
	reset := r
	reset.Verdict.Action = ruleset.RejectTCP
	for _, m := range r.Matches {
		if m.Field != ruleset.Protocol {
			continue
		}
		switch tcp := m.Low == protoTCP; {
		case tcp && !m.Not:
			return []ruleset.Rule{reset}
		case tcp || !m.Not:
			return []ruleset.Rule{r}
		}
	}
	// The protocol first: the kernel reads addresses and ports in the order of the conditions.
	reset.Matches = append([]ruleset.Match{{Field: ruleset.Protocol, Low: protoTCP}}, r.Matches...)
	return []ruleset.Rule{reset, r}
}

// fill makes elements the content of a set.
func (o output) fill(set string, elements []ruleset.Element) {
	want := map[ruleset.Element]bool{}
	for _, e := range elements {
		want[e] = true
	}
	for _, e := range slices.Collect(o.Elements(set)) {
		if !want[e] {
			o.RemoveElement(set, e)
		}
	}
	for e := range want {
		o.AddElement(set, e)
	}
}

func elementsOf(nets []netip.Prefix) []ruleset.Element {
	list := make([]ruleset.Element, len(nets))
	for i, n := range nets {
		list[i].Prefix = n
	}
	return list
}
