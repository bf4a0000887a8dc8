package server

import (
	"cmp"
	"slices"
	"strconv"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// ruleSeries bounds the rules with a series of their own: those that most packets met.
const ruleSeries = 200

const (
	metricDropped     = "manx_dropped_packets_total"
	metricRulePackets = "manx_policy_rule_packets_total"
)

var policyCounters = describe([]description{
	{metricDropped, "Packets that the rules dropped or rejected, by reason.", []string{"reason"}},
	{metricRulePackets, "Packets that a rule of a policy matched, of the 200 rules that matched most.",
		[]string{"kind", "namespace", "policy", "direction", "rule"}},
})

// collectCounters sends nothing if the kernel does not answer: a wrong zero would look as if it counted anew.
func (v *PolicyView) collectCounters(agent Policy, counter metricFunc) {
	dropped, err := agent.Dropped()
	if err != nil {
		v.log.Debug("the packets that were dropped are not known", zap.Error(err))
	} else {
		for why, n := range dropped {
			counter(metricDropped, float64(n), string(why))
		}
	}
	rules, _ := v.busiest.take(func() []countedRule {
		list, err := busiest(agent)
		if err != nil {
			v.log.Debug("the packets of rules are not known", zap.Error(err))
		}
		return list
	})
	for _, r := range rules {
		counter(metricRulePackets, float64(r.packets), string(r.id.Kind), r.id.Namespace, r.id.Name, r.direction,
			strconv.Itoa(int(r.number)))
	}
}

// countedRule is a rule of a policy and the packets that it matched.
type countedRule struct {
	id        policy.ID
	direction string
	number    policy.RuleNumber
	packets   uint64
}

// busiest returns the rules that matched most packets, none unless all rules count. Its cost follows the table.
func busiest(agent Policy) (rules []countedRule, err error) {
	counts := false
	agent.Inspect(func(c *policy.Calculator, _ *ruleset.Table) { counts = c.Config().Counters })
	if !counts {
		return nil, nil
	}
	counters, err := agent.Counters()
	if err != nil {
		return nil, err
	}
	agent.Inspect(func(c *policy.Calculator, t *ruleset.Table) {
		list := policyLister{calc: c, counters: counters}
		for name := range counters {
			chain := t.Chain(name)
			if chain == nil {
				continue
			}
			of, ok := chain.Origin.(policy.ChainOf)
			if !ok {
				continue
			}
			for number, n := range list.count(of.ID, of.Ingress) {
				if n.Packets > 0 {
					rules = append(rules, countedRule{of.ID, policy.DirectionName(of.Ingress), number, n.Packets})
				}
			}
		}
	})
	slices.SortFunc(rules, func(a, b countedRule) int {
		return cmp.Or(cmp.Compare(b.packets, a.packets), cmp.Compare(a.id.String(), b.id.String()),
			cmp.Compare(a.direction, b.direction), cmp.Compare(a.number, b.number))
	})
	return rules[:min(len(rules), ruleSeries)], nil
}
