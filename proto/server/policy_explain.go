package server

import (
	"context"
	"fmt"
	"net/netip"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/dataplane/hostfirewall"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/proto/explanation"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// agent returns the agent that enforces policy, or the reason why there is none.
func (v *PolicyView) agent() (Policy, error) {
	snapshot, agent := v.datastore.snapshot(), v.now().Agent
	switch {
	case snapshot == nil:
		return nil, status.Error(codes.Unavailable, "manxd is starting: it has no datastore yet")
	case agent == nil:
		return nil, status.Error(codes.FailedPrecondition, "this manxd does not enforce policy (--policy=false)")
	case !snapshot.InSync():
		return nil, status.Error(codes.Unavailable, "manxd is starting: it has not read the whole datastore yet")
	}
	return agent, nil
}

// Explain implements manxv1.ManxServer. This node's end is evaluated with the rules that are programmed, the other end
// with rules that are computed for the other node.
func (v *PolicyView) Explain(_ context.Context, r *manxv1.ExplainRequest) (*manxv1.Explanation, error) {
	agent, err := v.agent()
	if err != nil {
		return nil, err
	}
	flow, err := explain.ParseFlow(r.GetFlow())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	answer, err := explain.Explain(v.explainWorld(agent), explain.Question{
		Source: r.GetSource(), Destination: r.GetDestination(), Flow: flow, IPv6: r.GetIpv6()})
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	answer.Notes = append(answer.Notes, policyProblems(agent)...)
	others := v.others(answer)
	out := explanation.Of(answer)
	out.Others = others
	return out, nil
}

// others returns the base chains of other programs on this node that drop a packet which policy allows. Rules that may
// drop it become notes.
func (v *PolicyView) others(a *explain.Answer) (list []*manxv1.OtherDrop) {
	firewalls := v.firewalls.Load()
	hop, here := a.HopAt(v.node)
	if firewalls == nil || !here || !a.Allowed {
		return nil
	}
	tables, err := (*firewalls).Tables()
	if err != nil {
		a.Notes = append(a.Notes, fmt.Sprintf("the rules of other programs on node %s cannot be read: %v", v.node, err))
		return nil
	}
	one := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	dropped, mayDrop := hostfirewall.Judge(tables, hostfirewall.Packet{
		In: throughInterface(hop.In), Out: throughInterface(hop.Out), Source: one(hop.Source),
		Destination: one(hop.Destination), Protocol: a.Flow.Protocol, SourcePort: a.Flow.SourcePort,
		DestinationPort: a.Flow.Port, State: hostfirewall.StateNew})
	for _, text := range mayDrop {
		a.Notes = append(a.Notes, fmt.Sprintf("at node %s, of another program: %s", v.node, text))
	}
	for _, d := range dropped {
		list = append(list, &manxv1.OtherDrop{Node: v.node, Table: d.Table, Chain: d.Chain, Hook: d.Hook, By: d.By,
			Certain: d.Certain, Except: d.Except})
	}
	return list
}

// throughInterface is an interface of a hop, whose name may not be known.
func throughInterface(name string) hostfirewall.Interface {
	if name == explain.OtherInterface {
		return hostfirewall.Interface{Any: true}
	}
	return hostfirewall.Interface{Name: name}
}

// explainWorld has this daemon's data.
func (v *PolicyView) explainWorld(agent Policy) explain.World {
	objects := v.datastore.snapshot() // before the rules are looked at, which holds up those who program them
	return explain.World{
		Objects: objects, Local: v.node,
		Rules: func(of string, use func(*policy.Calculator)) {
			if of == v.node {
				agent.Inspect(func(c *policy.Calculator, _ *ruleset.Table) { use(c) })
				return
			}
			var settings policy.Config
			agent.Inspect(func(c *policy.Calculator, _ *ruleset.Table) { settings = c.Config() })
			use(explain.Build(objects, settings, of))
		},
		Route: func(a netip.Addr) (explain.Route, string) { return reach(v.dataplane.routeTo, a) },
	}
}

// policyProblems are the reasons why the kernel's rules differ from the desired ones.
func policyProblems(agent Policy) []string {
	var list []string
	st := agent.Status()
	if st.LastError != "" {
		list = append(list, "the kernel does not have the wanted rules: "+st.LastError)
	}
	for _, r := range st.Refused {
		list = append(list, "the kernel refuses "+r.Object+": "+r.Reason)
	}
	return list
}

// reach is the route to an address, which find finds, and its interface; both are empty if there is none.
func reach(find func(netip.Addr) (route.Status, bool), a netip.Addr) (explain.Route, string) {
	best, ok := find(a)
	if !ok {
		return explain.Route{}, ""
	}
	r := explain.Route{Prefix: best.Prefix.String(), Next: best.Actual[0], Installed: true}
	if best.Reason != "" {
		r.Note = string(best.Phase) + ": " + best.Reason
	}
	return r, best.Interface
}
