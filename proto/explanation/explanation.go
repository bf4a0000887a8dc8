// Package explanation converts the explanation of a verdict on a packet into messages of the control API.
package explanation

import (
	"github.com/manxnet/manx/dataplane/policy/explain"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// Of translates an answer.
func Of(a *explain.Answer) *manxv1.Explanation {
	out := &manxv1.Explanation{Source: end(a.Source), Destination: end(a.Destination), Flow: a.Flow.String(),
		Allowed: a.Allowed, By: a.By, Notes: a.Notes}
	for _, s := range a.Stages {
		stage := &manxv1.ExplainedStage{Node: s.Node, Programmed: s.Programmed, Direction: s.Direction, About: s.About,
			Hook:  s.Hook.String(),
			Chain: s.Base, Reached: s.Reached, Before: s.Before, Allowed: s.Allowed, By: s.By}
		for _, t := range s.Tiers {
			stage.Tiers = append(stage.Tiers, tier(t))
		}
		out.Stages = append(out.Stages, stage)
	}
	for _, r := range a.Routes {
		out.Routes = append(out.Routes, &manxv1.ExplainedRoute{Node: r.Node, Prefix: r.Prefix, Next: r.Next,
			Installed: r.Installed, Note: r.Note})
	}
	return out
}

func end(e explain.End) *manxv1.ExplainedEnd {
	return &manxv1.ExplainedEnd{Kind: e.Kind, Name: e.Name, Endpoint: e.Endpoint, Node: e.Node, Interface: e.Interface,
		Address: e.Address.String(), Profiles: e.Profiles}
}

func tier(t explain.Tier) *manxv1.ExplainedTier {
	out := &manxv1.ExplainedTier{Name: t.Name, Order: t.Order, DefaultAction: t.DefaultAction, End: t.End}
	for _, p := range t.Policies {
		policy := &manxv1.ExplainedPolicy{Name: p.Name, Order: p.Order, Staged: p.Staged, Decision: p.Decision}
		for _, r := range p.Rules {
			policy.Rules = append(policy.Rules, &manxv1.ExplainedRule{Number: uint32(r.Number), Text: r.Text,
				Matches: r.Matches, Why: r.Why})
		}
		out.Policies = append(out.Policies, policy)
	}
	return out
}
