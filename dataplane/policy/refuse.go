package policy

import "github.com/manxnet/manx/dataplane/ruleset"

// setChain writes a chain. Clients whose packets are refused rather than dropped should notice at once: a TCP client on
// the same host often misses the ICMP error to its first packet, because it is still busy with sending it, but not a
// reset.
func (c *Calculator) setChain(chain *ruleset.Chain) {
	if c.config.NoNamedCounters {
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
	c.table.SetChain(chain)
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
