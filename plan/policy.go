package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// ComparePolicy adds the changes of the node's packet filter to a difference: the policies of its endpoints and their
// order, the rules of those policies, and members of their selectors.
func (d *Diff) ComparePolicy(from, to model.Set) {
	d.Changed.Policy = append(d.Changed.Policy, ruleChanges(policyTexts(from, d.Node), policyTexts(to, d.Node))...)
}

// policyTexts returns the packet filter of a node as text: lists of lines by subject.
func policyTexts(objects model.Set, node string) map[string][]string {
	c := explain.Build(objects, policy.Config{Budget: policy.DefaultBudget}, node)
	all := map[string][]string{}
	for k := range c.Endpoints() {
		for _, in := range []bool{true, false} {
			var names []string
			for _, id := range c.PoliciesOf(k, in) {
				text := inTier(c, id)
				if why := c.WhyIgnored(k, id); why != "" {
					text += " (ignored: " + why + ")"
				}
				names = append(names, text)
			}
			all[policy.DirectionName(in)+" of "+k.String()] = names
		}
	}
	for p, endpoints := range c.Policies() {
		if endpoints > 0 {
			ruleTextsOf(all, p)
		}
	}
	for id := range c.Profiles() {
		if p, endpoints := c.Policy(id); p != nil && endpoints > 0 {
			ruleTextsOf(all, p)
		}
	}
	maps.Copy(all, memberTexts(c.Table()))
	return all
}

func inTier(c *policy.Calculator, id policy.ID) string {
	if p, _ := c.Policy(id); p != nil && p.Tier != "" {
		text := id.String() + " in tier " + p.Tier
		if p.Staged {
			text += " (staged)"
		}
		return text
	}
	return id.String()
}

func ruleTextsOf(all map[string][]string, p *policy.Policy) {
	for _, in := range []bool{true, false} {
		d := p.Direction(in)
		for i := range d.Rules {
			name := p.ID.String() + " " + policy.DirectionName(in)
			all[name] = append(all[name], fmt.Sprintf("%d. %s", i+1, explain.RuleText(&d.Rules[i])))
		}
	}
}

// memberTexts returns the addresses of selectors, named ports and services. Addresses and networks of one of them are
// one list whatever the sets.
func memberTexts(t *ruleset.Table) map[string][]string {
	all := map[string][]string{}
	for _, name := range t.Sets() {
		s, _, _ := t.Set(name)
		about := s.Comment
		switch s.Origin {
		// The texts of the rules have the networks or ports of the one, and the WorkloadEndpoints those of the other.
		case policy.LiteralSet, policy.EndpointSet:
			continue
		case policy.MemberSet:
			about = "members of " + s.Comment
		}
		for e := range t.Elements(name) {
			text := e.Prefix.String()
			if e.Prefix.IsSingleIP() {
				text = e.Prefix.Addr().String()
			}
			if s.Type == ruleset.Ports {
				text = fmt.Sprint(e.Low)
			}
			if s.Type == ruleset.Endpoints4 || s.Type == ruleset.Endpoints6 {
				text += fmt.Sprintf(" %s/%d", explain.ProtocolName(e.Protocol), e.Low)
			}
			all[about] = append(all[about], text)
		}
	}
	for about := range all {
		slices.Sort(all[about])
	}
	return all
}
