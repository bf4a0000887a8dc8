package flowtrace

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/nflog"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/dataplane/ruleset"
)

var (
	pod, other, service = netip.MustParseAddr("10.65.0.2"), netip.MustParseAddr("10.65.0.3"),
		netip.MustParseAddr("10.96.0.10")
	start = time.Unix(1000, 0)
)

func headers(to netip.Addr, out string) *nflog.Packet {
	return &nflog.Packet{Source: pod, Destination: to, Protocol: 6, SourcePort: 4000, DestinationPort: 80,
		In: "cali1", Out: out}
}

// The steps that packets of these tests take.
var (
	fresh       = nftables.TraceStep{Kind: nftables.TraceMarked, Fresh: true, Headers: headers(other, "")}
	late        = nftables.TraceStep{Kind: nftables.TraceMarked, Headers: headers(other, "")}
	lost        = nftables.TraceStep{Kind: nftables.TraceLost}
	isNew       = nftables.TraceStep{Kind: nftables.TraceState, State: nftables.StateNew}
	isKnown     = nftables.TraceStep{Kind: nftables.TraceState, State: nftables.StateEstablished}
	isInvalid   = nftables.TraceStep{Kind: nftables.TraceState, State: nftables.StateInvalid}
	toService   = nftables.TraceStep{Kind: nftables.TraceMarked, Fresh: true, Headers: headers(service, "")}
	enterRouted = nftables.TraceStep{Kind: nftables.TraceEnter, Hook: "forward", Headers: headers(other, "cali2")}
)

func enter(hook string) nftables.TraceStep {
	return nftables.TraceStep{Kind: nftables.TraceEnter, Hook: hook}
}
func leave(hook string) nftables.TraceStep {
	return nftables.TraceStep{Kind: nftables.TraceLeave, Hook: hook}
}

// rule is a rule of table inet manx that holds for the packet; the ID is its comment with a # before.
func rule(base, chain, comment, verdict string) nftables.TraceStep {
	s := nftables.TraceStep{Kind: nftables.TraceRule, Family: "inet", Table: "manx", Chain: chain, Verdict: verdict,
		Rule: nftables.TracedRule{Handle: 7, Number: 1, Comment: comment, ID: "#" + comment}}
	if base == chain {
		s.Base = &nftables.TracedBase{Hook: "forward", Type: "filter"}
	}
	return s
}

func policy(table, chain, verdict string) nftables.TraceStep {
	family, name, _ := strings.Cut(table, " ")
	return nftables.TraceStep{Kind: nftables.TracePolicy, Family: family, Table: name, Chain: chain, Verdict: verdict,
		Base: &nftables.TracedBase{Hook: "forward"}}
}

// policyChain returns the steps in a base chain of Manx in which a policy decides.
func policyChain(base, comment, verdict string) []nftables.TraceStep {
	return []nftables.TraceStep{rule(base, base, "", "jump"), rule(base, "policy", comment, verdict)}
}

func steps(parts ...any) (list []nftables.TraceStep) {
	for _, p := range parts {
		switch p := p.(type) {
		case nftables.TraceStep:
			list = append(list, p)
		case []nftables.TraceStep:
			list = append(list, p...)
		}
	}
	return list
}

// collect returns the packet of the steps.
func collect(t *testing.T, list []nftables.TraceStep) *Packet {
	t.Helper()
	var c Collector
	for _, s := range list {
		c.Add(s, start)
	}
	done := c.Take(start.Add(time.Hour))
	if len(done) != 1 {
		t.Fatalf("%d packets, want 1", len(done))
	}
	return done[0]
}

// explained is the explanation of a packet from one pod of node n1 to another: the decisions of the two stages. A
// verdict without a rule is a stage without a decision.
func explained(egress, ingress string) *explain.Answer {
	a := &explain.Answer{Allowed: true, Hops: []explain.Hop{{Node: "n1"}}}
	reached := true
	for _, s := range []struct{ direction, base, decision string }{{"egress", "forward-from-workload", egress},
		{"ingress", "forward-to-workload", ingress}} {
		verdict, by, _ := strings.Cut(s.decision, " ")
		stage := explain.Stage{Node: "n1", Direction: s.direction, About: "pod x", Hook: ruleset.Forward, Base: s.base,
			Reached: reached, Allowed: verdict == "allow", By: by}
		if by != "" {
			stage.Rule = "#" + by
		}
		a.Stages = append(a.Stages, stage)
		reached = reached && stage.Allowed
		a.Allowed = a.Allowed && stage.Allowed
	}
	return a
}

func TestCompare(t *testing.T) {
	begins := steps(fresh, enter("prerouting"), isNew, leave("prerouting"), enterRouted)
	ends := steps(leave("forward"), enter("postrouting"), leave("postrouting"))
	egress, ingress := policyChain("forward-from-workload", "E 1", "accept"),
		policyChain("forward-to-workload", "I 2", "accept")
	denies := policyChain("forward-to-workload", "I 2", "drop")
	both := explained("allow E 1", "allow I 2")
	elsewhere := explained("allow E 1", "allow I 2")
	elsewhere.Stages = append(elsewhere.Stages, explain.Stage{Node: "n2", Base: "forward-to-workload", Reached: true,
		By: "Z"})
	elsewhere.Hops, elsewhere.Allowed = append(elsewhere.Hops, explain.Hop{Node: "n2"}), false
	stopped := explained("allow E 1", "allow I 2")
	stopped.Stages = append([]explain.Stage{{Node: "n0", Base: "forward-from-workload", Reached: true, By: "Z"}},
		stopped.Stages...)
	stopped.Hops = append([]explain.Hop{{Node: "n0"}}, stopped.Hops...)
	untracked := explained("allow E 1", "allow I 2")
	untracked.Stages = append([]explain.Stage{{Node: "n1", Hook: ruleset.Prerouting, Base: "host-pre-dnat",
		Reached: true, Allowed: true, Rule: "#P"}}, untracked.Stages...)
	foreignRule := nftables.TraceStep{Kind: nftables.TraceRule, Family: "ip", Table: "filter", Chain: "DOCKER",
		Verdict: "drop",
		Rule:    nftables.TracedRule{Handle: 12, Number: 3, Comment: "not today"}}

	for _, c := range []struct {
		name   string
		packet []nftables.TraceStep
		answer *explain.Answer
		want   Verdict
		reason string // the first reason
	}{
		{"all stages allow", steps(begins, egress, ingress, ends), both, Agrees, ""},
		{"the receiver's policy denies", steps(begins, egress, denies), explained("allow E 1", "deny I 2"), Agrees, ""},
		{"the sender's policy denies, what follows is not reached",
			steps(begins, policyChain("forward-from-workload", "E 1", "drop")), explained("deny E 1", "allow I 2"),
			Agrees,
			""},
		{"a stage that nothing decides in", steps(begins, egress, policy("inet manx", "forward-to-workload", "accept"),
			ends), explained("allow E 1", "allow"), Agrees, ""},
		{"another node denies later", steps(begins, egress, ingress, ends), elsewhere, Agrees, ""},
		{"other tables accept", steps(begins, egress, policy("ip filter", "FORWARD", "accept"), ingress, ends), both,
			Agrees, ""},
		{"delivered to the host", steps(fresh, enter("prerouting"), isNew, leave("prerouting"), enter("input"),
			leave("input")), &explain.Answer{Allowed: true}, Agrees, ""},
		{"a packet that became one of the flow was not seen before",
			steps(late, isNew, leave("prerouting"), enterRouted, egress, ingress, ends), untracked, Agrees, ""},
		{"a translated packet was asked about the service before", steps(toService, enter("prerouting"), isNew,
			leave("prerouting"), enterRouted, egress, ingress, ends), untracked, Agrees, ""},

		{"the kernel drops what should pass", steps(begins, egress, denies), both, Differs,
			"ingress of pod x: denied by I 2, which should have been allowed by I 2"},
		{"the kernel passes what should be dropped", steps(begins, egress, ingress, ends),
			explained("allow E 1", "deny I 3"), Differs, "ingress of pod x: allowed by I 2, which should have been " +
				"denied by I 3"},
		{"another rule decides the same", steps(begins, egress, ingress, ends), explained("allow E 1", "allow I 9"),
			Differs, "ingress of pod x: allowed by another rule, I 2, not by I 9"},
		{"a rule decides where none should", steps(begins, egress, ingress, ends), explained("allow E 1", "allow"),
			Differs, "allowed by another rule, I 2, not by no rule"},
		{"a stage is missing", steps(begins, egress, ends), both, Differs,
			"ingress of pod x was not evaluated (chain forward-to-workload), which should have allowed it"},
		{"a rule of another table drops", steps(begins, egress, ingress, policy("ip filter", "FORWARD", "accept"),
			foreignRule), both, Differs,
			`policy allows it, but it was dropped by table ip filter, chain DOCKER, rule 3 (handle 12) "not today"`},
		{"the policy of another table's chain drops",
			steps(begins, egress, ingress, policy("ip filter", "FORWARD", "drop")), both, Differs,
			"policy allows it, but it was dropped by table ip filter, chain FORWARD (policy drop)"},
		{"another table drops what policy would drop later", steps(begins, policy("ip filter", "FORWARD", "drop")),
			explained("deny E 1", "allow I 2"), Differs,
			"dropped by table ip filter, chain FORWARD (policy drop), before policy could deny it"},
		{"a chain of Manx drops that was not thought of",
			steps(fresh, enter("prerouting"), rule("prerouting-source", "prerouting-source", "spoofed", "drop")), both,
			Differs,
			"dropped by spoofed (chain prerouting-source), which should not have been"},
		{"no route", steps(fresh, enter("prerouting"), isNew, leave("prerouting")), both, Differs,
			"policy allows it, but it was lost behind prerouting: the host does not route it"},
		{"no route before policy denies", steps(fresh, enter("prerouting"), isNew, leave("prerouting")),
			explained("deny E 1", "allow I 2"), Differs, "before policy could deny it"},
		{"something else drops at a hook", steps(begins, egress, ingress), both, Differs,
			"policy allows it, but it was lost at forward without a rule of nftables"},
		{"a program takes it", steps(begins, egress, ingress, nftables.TraceStep{Kind: nftables.TraceRule, Family: "ip",
			Table: "ids", Chain: "all", Verdict: "queue", Rule: nftables.TracedRule{Handle: 3}}), both, Differs,
			"policy allows it, but it was taken (queue) by table ip ids, chain all, a rule that is gone (handle 3)"},
		{"another node should have dropped it before", steps(begins, egress, ingress, ends), stopped, Differs,
			"it should have been dropped at node n0 by Z, and came here"},
		{"a known connection is dropped by another table",
			steps(fresh, enter("prerouting"), isKnown, leave("prerouting"), enterRouted,
				policy("ip filter", "FORWARD", "drop")), both, Differs,
			"it belongs to a connection that was already known, and yet it was dropped by table ip filter"},

		{"a known connection", steps(fresh, enter("prerouting"), isKnown, leave("prerouting"), enterRouted,
			policyChain("forward-from-workload", "established", "accept"), ends), explained("deny E 1", "allow I 2"),
			Undecided,
			"it belongs to a connection that was already known, for which policy is not evaluated again"},
		{"a known connection is dropped that policy would deny",
			steps(fresh, isKnown, enterRouted, policy("ip filter", "FORWARD", "drop")),
			explained("deny E 1", "allow I 2"), Undecided, "already known, and was dropped by"},
		{"a packet that is out of place", steps(fresh, isInvalid, enterRouted,
			policyChain("forward-from-workload", "a packet of no connection", "drop")), both, Undecided,
			"it was dropped by a packet of no connection"},
		{"steps were lost", steps(begins, egress, lost, ends), both, Undecided, "some steps of the packet were lost"},
	} {
		got, reasons := Compare(collect(t, c.packet), c.answer, "n1")
		firstReason := append(slices.Clone(reasons), "")[0]
		if got != c.want || !strings.Contains(firstReason, c.reason) || (c.reason == "") != (len(reasons) == 0) {
			t.Errorf("%s: %s %q, want %s %q", c.name, got, reasons, c.want, c.reason)
		}
	}
}

// Packets are distinguished by their numbers, in the order in which they came; packets outside the flow are left out.
func TestCollector(t *testing.T) {
	var c Collector
	numbered := func(n uint32, list ...nftables.TraceStep) []nftables.TraceStep {
		list = slices.Clone(list)
		for i := range list {
			list[i].Packet = n
		}
		return list
	}
	add := func(at time.Duration, list ...nftables.TraceStep) {
		for _, s := range list {
			c.Add(s, start.Add(at))
		}
	}
	take := func(at time.Duration, want ...string) {
		t.Helper()
		var got []string
		for _, p := range c.Take(start.Add(at)) {
			got = append(got, p.End.Text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("after %s: %q, want %q", at, got, want)
		}
	}
	dropped := policy("ip filter", "FORWARD", "drop")
	add(0, numbered(1, enter("prerouting"), dropped)...) // of an unknown packet
	take(time.Hour)
	add(0, numbered(1, fresh, enter("prerouting"))...)
	add(0, numbered(2, fresh, enter("prerouting"), leave("prerouting"))...)
	add(time.Millisecond, numbered(1, leave("prerouting"), enterRouted, dropped)...)
	take(time.Millisecond, "dropped by table ip filter, chain FORWARD (policy drop)")
	add(2*time.Millisecond, numbered(2, enter("input"), leave("input"))...)
	take(3 * time.Millisecond)
	take(100*time.Millisecond, "delivered to this host")

	// The same number twice: of a packet without further steps, and of the next packet.
	add(0, numbered(3, fresh, enter("prerouting"), leave("prerouting"))...)
	add(900*time.Millisecond, numbered(3, fresh, enter("prerouting"), leave("prerouting"), enterRouted,
		leave("forward"), enter("postrouting"), leave("postrouting"))...)
	const noRoute = "lost behind prerouting: the host does not route it; look at its routes (ip route get), " +
		"net.ipv4.ip_forward, rp_filter and the TTL"
	take(900*time.Millisecond, noRoute)
	take(999*time.Millisecond, "sent out cali2")
	add(0, numbered(4, fresh, enter("prerouting"), leave("prerouting"))...)
	take(900 * time.Millisecond)
	take(time.Second, noRoute)

	for n := range uint32(2 * mostPackets) {
		add(0, numbered(n, fresh)...)
	}
	if n := len(c.Take(start.Add(time.Hour))); n != mostPackets {
		t.Errorf("%d packets are followed at a time, want %d", n, mostPackets)
	}
}
