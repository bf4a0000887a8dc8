package server

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// ListPolicies implements manxv1.ManxServer.
func (v *PolicyView) ListPolicies(
	_ context.Context, r *manxv1.ListPoliciesRequest,
) (*manxv1.ListPoliciesResponse, error) {
	agent, err := v.agent()
	if err != nil {
		return nil, err
	}
	answer := &manxv1.ListPoliciesResponse{}
	counters, err := agent.Counters()
	if err != nil {
		answer.CountersProblem = err.Error()
	}
	wanted := func(k model.Key) bool {
		return (r.GetKind() == "" || r.GetKind() == string(k.Kind)) &&
			(r.GetNamespace() == "" || r.GetNamespace() == k.Namespace) &&
			(r.GetName() == "" || r.GetName() == k.Name)
	}
	agent.Inspect(func(c *policy.Calculator, t *ruleset.Table) {
		problems := map[model.Key]string{}
		for k, why := range c.Closed() {
			problems[k] = why
		}
		for k, why := range c.Bad() {
			problems[k] = why
		}
		list := policyLister{calc: c, counters: counters, rules: r.GetRules()}
		var found []orderedPolicy
		for p, endpoints := range c.Policies() {
			k := model.Key{Kind: p.ID.Kind, Namespace: p.ID.Namespace, Name: p.ID.Name}
			if !wanted(k) {
				continue
			}
			row := list.row(p, endpoints)
			row.Problem = problems[k]
			delete(problems, k)
			found = append(found, orderedPolicy{c.Tier(p.Tier), p, row})
		}
		slices.SortFunc(found, orderedPolicy.compare)
		for _, f := range found {
			answer.Policies = append(answer.Policies, f.row)
		}
		answer.Policies = append(answer.Policies, unusable(problems, wanted)...)
	})
	return answer, nil
}

// orderedPolicy is a policy with its place in the order of evaluation.
type orderedPolicy struct {
	tier   policy.TierInfo
	policy *policy.Policy
	row    *manxv1.Policy
}

// compare puts policies in the order of evaluation.
func (a orderedPolicy) compare(b orderedPolicy) int {
	if a.tier.Exists != b.tier.Exists {
		if a.tier.Exists {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.tier.Order, b.tier.Order), strings.Compare(a.policy.Tier, b.policy.Tier),
		a.policy.Compare(b.policy))
}

// unusable are policies no version of which could ever be used.
func unusable(problems map[model.Key]string, wanted func(model.Key) bool) []*manxv1.Policy {
	var list []*manxv1.Policy
	for k, why := range problems {
		if policy.IsPolicy(k.Kind) && wanted(k) {
			list = append(list, &manxv1.Policy{Kind: string(k.Kind), Namespace: k.Namespace, Name: k.Name,
				Problem: why})
		}
	}
	slices.SortFunc(list, func(a, b *manxv1.Policy) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace),
			strings.Compare(a.Name, b.Name))
	})
	return list
}

// policyLister writes policies as the API has them.
type policyLister struct {
	calc     *policy.Calculator
	counters map[string][]nftables.Counter
	rules    bool
}

func (l policyLister) row(p *policy.Policy, endpoints int) *manxv1.Policy {
	row := &manxv1.Policy{Kind: string(p.ID.Kind), Namespace: p.ID.Namespace, Name: p.ID.Name, Tier: p.Tier,
		Order:  explain.Order(p.Order),
		Staged: p.Staged, Endpoints: uint32(endpoints)}
	if l.rules {
		p, _ = l.calc.Policy(p.ID)
	}
	for _, in := range []bool{true, false} {
		rules, direction := p.Direction(in), policy.DirectionName(in)
		counted := l.count(p.ID, in)
		for i := range rules.Rules {
			out := &manxv1.PolicyRule{Direction: direction, Number: uint32(i + 1),
				Text: explain.RuleText(&rules.Rules[i]), Never: rules.Rules[i].Never}
			if n, ok := counted[policy.RuleNumber(i+1)]; ok {
				out.Packets, out.Bytes = &n.Packets, &n.Bytes
				row.Packets, row.Bytes = sum(row.Packets, n.Packets), sum(row.Bytes, n.Bytes)
			}
			if l.rules && rules.Applies {
				row.Rules = append(row.Rules, out)
			}
		}
	}
	if l.rules {
		l.details(p, row)
	}
	return row
}

func sum(a *uint64, b uint64) *uint64 {
	if a != nil {
		b += *a
	}
	return &b
}

func (l policyLister) details(p *policy.Policy, row *manxv1.Policy) {
	row.Selector = p.Selector.String()
	for k := range l.calc.Subjects(p.ID) {
		row.Selected = append(row.Selected, k.String())
	}
	slices.Sort(row.Selected)
	for _, o := range []struct {
		set  bool
		name string
	}{{p.DoNotTrack, "doNotTrack"}, {p.PreDNAT, "preDNAT"}, {p.ApplyOnForward, "applyOnForward"}} {
		if o.set {
			row.Options = append(row.Options, o.name)
		}
	}
}

// count adds up the counters of the kernel rules for one rule of a policy. They are known by their IDs.
func (l policyLister) count(id policy.ID, in bool) map[policy.RuleNumber]nftables.Counter {
	name := policy.ChainName(id, in)
	chain := l.calc.Table().Chain(name)
	if chain == nil {
		return nil
	}
	numbers := map[string]policy.RuleNumber{}
	for i := range chain.Rules {
		if n, ok := chain.Rules[i].Origin.(policy.RuleNumber); ok && chain.Rules[i].Counter {
			numbers[chain.Rules[i].ID()] = n
		}
	}
	counted := map[policy.RuleNumber]nftables.Counter{}
	for _, c := range l.counters[name] {
		if n, ok := numbers[c.ID]; ok {
			have := counted[n]
			counted[n] = nftables.Counter{Packets: have.Packets + c.Packets, Bytes: have.Bytes + c.Bytes}
		}
	}
	return counted
}

// GetRuleset implements manxv1.ManxServer.
func (v *PolicyView) GetRuleset(_ context.Context, r *manxv1.GetRulesetRequest) (*manxv1.GetRulesetResponse, error) {
	agent, err := v.agent()
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	agent.Inspect(func(_ *policy.Calculator, t *ruleset.Table) {
		err = t.Text(&text, ruleset.TextOptions{Elements: int(r.GetElements())})
	})
	if err != nil {
		return nil, status.Error(codes.Internal, "write the table with at most "+strconv.Itoa(int(r.GetElements()))+
			" elements of a set: "+err.Error())
	}
	return &manxv1.GetRulesetResponse{Text: text.String()}, nil
}
