package explain

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// reader turns a trace through the rules of a node into stages.
type reader struct {
	node       string
	answer     *Answer
	calc       *policy.Calculator
	packet     ruleset.Packet
	programmed bool
}

// origin returns the origin of a chain of the table, nil for none.
func (r *reader) origin(chain string) ruleset.Origin {
	if c := r.calc.Table().Chain(chain); c != nil {
		return c.Origin
	}
	return nil
}

// stages are the base chains that evaluated policy, or that dropped the packet.
func (r *reader) stages(t *ruleset.Trace) []Stage {
	var list []Stage
	for rest := t.Steps; len(rest) > 0; {
		first := rest[0]
		n := 1
		for n < len(rest) && rest[n].Base == first.Base && rest[n].Hook == first.Hook {
			n++
		}
		if s, ok := r.stage(rest[:n]); ok {
			list = append(list, s)
		}
		rest = rest[n:]
	}
	return list
}

// stage reads one base chain; false if it has no content for the explanation.
func (r *reader) stage(steps []ruleset.Step) (Stage, bool) {
	last := steps[len(steps)-1]
	s := Stage{Node: r.node, Programmed: r.programmed, Hook: last.Hook, Base: last.Base, Reached: true,
		Allowed: !drops(last.Verdict.Action)}
	place, _ := r.origin(last.Base).(policy.Stage)
	s.Direction, s.About = r.about(place)
	if last.Evaluated != nil && last.Matched && decides(last.Verdict.Action) {
		s.Rule = last.Evaluated.ID()
	}
	evaluated := !s.Allowed
	for len(steps) > 0 {
		step := steps[0]
		steps = steps[1:]
		if r.origin(step.Chain) == (policy.EndpointChain{}) {
			evaluated = true
		}
		of, isPolicy := r.origin(step.Verdict.Chain).(policy.ChainOf)
		switch {
		case !step.Matched || step.Evaluated == nil:
		case step.Verdict.Action == ruleset.Jump && isPolicy:
			n := slices.IndexFunc(steps, func(x ruleset.Step) bool { return x.Chain != step.Verdict.Chain })
			if n < 0 {
				n = len(steps)
			}
			r.policy(&s, of, steps[:n])
			if n > 0 && decides(steps[n-1].Verdict.Action) && steps[n-1].Matched {
				s.By = steps[n-1].Evaluated.Comment
			}
			steps = steps[n:]
		case decides(step.Verdict.Action):
			r.decided(&s, step)
		}
	}
	if s.Allowed && len(s.Tiers) == 0 && place.Option != "" {
		return s, false // these places only add exceptions, and there is none
	}
	return s, evaluated
}

func decides(a ruleset.Action) bool { return a == ruleset.Accept || drops(a) }

func drops(a ruleset.Action) bool {
	return a == ruleset.Drop || a == ruleset.Reject || a == ruleset.RejectTCP
}

// decided enters a verdict of something that is no policy.
func (r *reader) decided(s *Stage, step ruleset.Step) {
	s.By = step.Evaluated.Comment
	word := "allowed"
	if drops(step.Verdict.Action) {
		word = "denied"
	}
	if n := len(s.Tiers); n > 0 {
		t := &s.Tiers[n-1]
		t.End = word + ": " + s.By
		if step.Evaluated.Origin == policy.TierEnd(t.Name) {
			s.By = "the end of tier " + t.Name
			t.End = word + ": policies of this tier are about it, and none of their rules matches"
		}
		return
	}
	if s.By != "" {
		s.Before = append(s.Before, word+": "+s.By)
	}
}

// about returns the direction, and the owner of the policy evaluated at a place.
func (r *reader) about(place policy.Stage) (direction, whose string) {
	direction = policy.DirectionName(place.Subject.Ingress())
	iface := r.packet.Out
	switch place.Subject {
	case policy.SourceWorkload:
		return direction, r.answer.Source.String()
	case policy.DestinationWorkload:
		return direction, r.answer.Destination.String()
	case policy.HostItself:
		return direction, "node " + r.node
	case policy.InInterface:
		iface = r.packet.In
	}
	whose = fmt.Sprintf("node %s, interface %s", r.node, iface)
	if place.Option != "" {
		whose += " (" + place.Option + ")"
	}
	return direction, whose
}

// policy enters a policy with the rules that were evaluated in its chain.
func (r *reader) policy(s *Stage, chain policy.ChainOf, steps []ruleset.Step) {
	id := chain.ID
	compiled, _ := r.calc.Policy(id)
	tier := r.tier(id, compiled)
	if n := len(s.Tiers); n == 0 || s.Tiers[n-1].Name != tier.Name {
		s.Tiers = append(s.Tiers, tier)
	}
	p := Policy{Name: id.String()}
	if compiled == nil {
		p.Decision = "denies: it does not exist"
	} else {
		p.Staged = compiled.Staged
		if id.Kind != model.KindProfile {
			p.Order = Order(compiled.Order)
		}
		if p.Decision = r.calc.WhyClosed(id); p.Decision == "" {
			r.rules(&p, compiled.Direction(chain.Ingress), steps)
		}
	}
	t := &s.Tiers[len(s.Tiers)-1]
	t.Policies = append(t.Policies, p)
}

func (r *reader) tier(id policy.ID, p *policy.Policy) Tier {
	if id.Kind == model.KindProfile || p == nil {
		return Tier{}
	}
	info := r.calc.Tier(p.Tier)
	t := Tier{Name: p.Tier, Order: Order(info.Order), DefaultAction: "Deny"}
	switch {
	case info.Pass:
		t.DefaultAction = "Pass"
	case !info.Exists:
		t.Order = "last, since there is no such tier"
	}
	return t
}

// Order is the order of a policy or tier as people write it.
func Order(f float64) string {
	if math.IsInf(f, 1) {
		return "none"
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// rules adds the rules of a policy up to the one that matched. A rule that became several in the table matches if one
// of them does; one that became none has the reason.
func (r *reader) rules(p *Policy, direction *policy.Direction, steps []ruleset.Step) {
	evaluated := map[policy.RuleNumber][]ruleset.Step{}
	for _, step := range steps {
		if step.Evaluated == nil {
			continue
		}
		if n, ok := step.Evaluated.Origin.(policy.RuleNumber); ok {
			evaluated[n] = append(evaluated[n], step)
		}
	}
	for i := range direction.Rules {
		rule := Rule{Number: i + 1, Text: RuleText(&direction.Rules[i])}
		rule.Matches, rule.Why = r.rule(evaluated[policy.RuleNumber(i+1)], &direction.Rules[i])
		p.Rules = append(p.Rules, rule)
		if rule.Matches && direction.Rules[i].Action != policy.Log {
			p.Decision = decision(direction.Rules[i].Action, p.Staged)
			return
		}
	}
}

func decision(a policy.Action, staged bool) string {
	words := map[policy.Action][2]string{policy.Allow: {"allows", "would allow"}, policy.Deny: {"denies", "would deny"},
		policy.Pass: {"passes on to the next tier", "would pass on to the next tier"}}
	if staged {
		return words[a][1] + ", but is staged: nothing is enforced"
	}
	return words[a][0]
}

func (r *reader) rule(steps []ruleset.Step, rule *policy.Rule) (matches bool, because string) {
	var reasons []string
	for _, step := range steps {
		if step.Matched {
			return true, ""
		}
		if step.Failed != nil && step.Failed.Field == ruleset.Family && len(steps) > 1 {
			continue // its twin for the other family has more detail
		}
		if text := why(r.calc.Table(), step.Failed, r.packet); !slices.Contains(reasons, text) {
			reasons = append(reasons, text)
		}
	}
	switch {
	case len(reasons) > 0:
		return false, strings.Join(reasons, "; ")
	case rule.Never != "":
		return false, rule.Never
	case len(steps) > 0:
		return false, fmt.Sprintf("it is about the other family than %s", family(r.packet.Source))
	}
	if rule.Action == policy.Allow || rule.Action == policy.Deny { // sets of an unused family are not kept
		return false, "none of its members has an address of " + family(r.packet.Source)
	}
	return false, "it has no effect here"
}
