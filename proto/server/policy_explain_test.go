package server

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/hostfirewall"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/nft"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// rules is a policy agent over a real calculator.
type rules struct {
	calc     *policy.Calculator
	status   dataplane.PolicyStatus
	counters map[string][]nftables.Counter
	err      error
}

func (r *rules) Status() dataplane.PolicyStatus                     { return r.status }
func (r *rules) Inspect(f func(*policy.Calculator, *ruleset.Table)) { f(r.calc, r.calc.Table()) }
func (r *rules) Retry(context.Context) (dataplane.Retried, error) {
	return dataplane.Retried{Part: "policy", Failed: 1, Failing: 1, Reason: "chain x: no such file"}, nil
}
func (r *rules) Counters() (map[string][]nftables.Counter, error) { return r.counters, r.err }

func (r *rules) Dropped() (map[policy.Reason]uint64, error) {
	return map[policy.Reason]uint64{policy.DroppedByPolicy: 7, policy.Reason("source_check"): 0}, r.err
}

func (r *rules) count(chain string, rule int, packets, bytes uint64) { // rules of a chain count from 0
	id := r.calc.Table().Chain(chain).Rules[rule].ID()
	r.counters[chain] = append(r.counters[chain], nftables.Counter{ID: id, Packets: packets, Bytes: bytes})
}

// withPolicy returns a server whose node has one workload, and one policy for it.
func withPolicy(t *testing.T) (*rig, *rules) {
	r := newRig(t)
	r.start()
	r.store(
		object(t, model.KindWorkloadEndpoint, "shop", "node--1-k8s-web-eth0",
			`{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"node--1-k8s-web-eth0","namespace":"shop","labels":{"app":"web"}},
			"spec":{"orchestrator":"k8s","node":"node-1","pod":"web","endpoint":"eth0","interfaceName":"cali1","ipNetworks":["10.65.0.1/32"]}}`),
		object(t, model.KindGlobalNetworkPolicy, "", "web",
			`{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"web"},
			"spec":{"selector":"app == 'web'","types":["Ingress"],"ingress":[{"action":"Allow","protocol":"TCP","source":{"selector":"app == 'x'"}},{"action":"Allow","protocol":"UDP"}]}}`),
		object(t, model.KindIPPool, "", "six",
			`{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"six"},"spec":{"cidr":"fd00::/64","blockSize":122}}`),
		object(t, model.KindGlobalNetworkPolicy, "", "bad",
			`{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"bad"},"spec":{"selector":"all()"}}`),
	)
	p := &rules{calc: policy.Build(policy.Config{Node: "node-1", Counters: true}, r.tables.Snapshot(), nil),
		counters: map[string][]nftables.Counter{}}
	r.source.Policy = p
	r.show()
	return r, p
}

func TestExplainNeedsPolicy(t *testing.T) {
	r := newRig(t)
	explainFails := func(want codes.Code, text string) {
		t.Helper()
		_, err := r.client.Explain(r.context(), &manxv1.ExplainRequest{Source: "a", Destination: "b"})
		if status.Code(err) != want || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %s with %q", err, want, text)
		}
	}
	explainFails(codes.Unavailable, "no datastore yet")
	r.start()
	explainFails(codes.FailedPrecondition, "--policy=false")
	r.source.Policy = &rules{calc: policy.New(policy.Config{})}
	r.show()
	explainFails(codes.Unavailable, "not read the whole datastore")
	r.store()
	explainFails(codes.NotFound, `"a" is no address`)
	_, err := r.client.Explain(r.context(), &manxv1.ExplainRequest{Flow: "tcp/x"})
	if status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

func TestExplainTellsWhatTheKernelRefuses(t *testing.T) {
	r, p := withPolicy(t)
	p.status.Refused = []nft.Refused{{Object: "chain pi/GlobalNetworkPolicy/web", Reason: "no such file"}}
	p.status.LastError = "device or resource busy"
	x, err := r.client.Explain(r.context(), &manxv1.ExplainRequest{Source: "192.0.2.1", Destination: "shop/web",
		Flow: "udp/53"})
	if err != nil {
		t.Fatal(err)
	}
	if !x.GetAllowed() || len(x.GetStages()) != 1 || !x.GetStages()[0].GetProgrammed() ||
		!strings.HasPrefix(x.GetBy(), "GlobalNetworkPolicy/web ingress 2 ") {
		t.Errorf("got %v", x)
	}
	notes := strings.Join(x.GetNotes(), "\n")
	for _, want := range []string{"the kernel refuses chain pi/GlobalNetworkPolicy/web: no such file",
		"device or resource busy"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no note has %q: %s", want, notes)
		}
	}
}

// A rule that is several in the kernel has the sum of their counters; counters of obsolete rules do not count.
func TestPoliciesCountByRule(t *testing.T) {
	r, p := withPolicy(t)
	const chain = "pi/GlobalNetworkPolicy/web"
	p.count(chain, 0, 1, 10) // IPv4 of rule 1
	p.count(chain, 1, 2, 20) // IPv6 of rule 1
	p.count(chain, 2, 4, 40) // rule 2
	p.counters[chain] = append(p.counters[chain], nftables.Counter{ID: "gone", Packets: 99})
	got, err := r.client.ListPolicies(r.context(), &manxv1.ListPoliciesRequest{Name: "web", Rules: true})
	if err != nil || len(got.GetPolicies()) != 1 {
		t.Fatal(got, err)
	}
	x := got.GetPolicies()[0]
	if x.GetPackets() != 7 || x.GetBytes() != 70 || x.GetEndpoints() != 1 || len(x.GetRules()) != 2 ||
		x.GetRules()[0].GetPackets() != 3 || x.GetRules()[1].GetBytes() != 40 {
		t.Errorf("got %v", x)
	}
	if len(x.GetSelected()) != 1 || x.GetSelected()[0] != "WorkloadEndpoint shop/node--1-k8s-web-eth0" {
		t.Errorf("selected %v", x.GetSelected())
	}
	p.err = errors.New("no counters today")
	all, err := r.client.ListPolicies(r.context(), &manxv1.ListPoliciesRequest{})
	if err != nil || len(all.GetPolicies()) != 2 || all.GetCountersProblem() != "no counters today" {
		t.Error(all, err)
	}
}

func TestRulesetAsText(t *testing.T) {
	r, _ := withPolicy(t)
	got, err := r.client.GetRuleset(r.context(), &manxv1.GetRulesetRequest{})
	if err != nil || !strings.Contains(got.GetText(), "chain pi/GlobalNetworkPolicy/web {") {
		t.Error(got, err)
	}
}

func TestReachNamesTheInterface(t *testing.T) {
	row := func(prefix string, phase reconcile.Phase, device, actual string) route.Status {
		return route.Status{Prefix: netip.MustParsePrefix(prefix), Actual: []string{actual}, Interface: device,
			Status: reconcile.Status{Phase: phase, Reason: "why"}}
	}
	routes := map[string]route.Status{
		"10.65.1.1": row("10.65.1.0/26", "applied", "tunl0", "10.65.1.0/26 via 10.1.0.2 dev tunl0 onlink"),
		"10.65.1.7": row("10.65.1.7/32", "failed", "eth0", "10.65.1.7/32 via 10.1.0.3 dev eth0"),
		"10.65.1.9": row("10.65.1.9/32", "applied", "", "blackhole 10.65.1.9/32 proto bird"),
	}
	find := func(a netip.Addr) (route.Status, bool) {
		r, ok := routes[a.String()]
		return r, ok
	}
	for address, want := range map[string][3]string{
		"10.65.1.1": {"10.65.1.0/26", "tunl0", "applied: why"}, "10.65.1.7": {"10.65.1.7/32", "eth0", "failed: why"},
		"10.65.1.9": {"10.65.1.9/32", "", "applied: why"}, "10.66.0.1": {},
	} {
		got, device := reach(find, netip.MustParseAddr(address))
		if got.Prefix != want[0] || device != want[1] || got.Note != want[2] {
			t.Errorf("%s: %+v through %q, want %v", address, got, device, want)
		}
	}
}

// otherRules are those of another program.
type otherRules struct {
	tables []*hostfirewall.Table
	err    error
}

func (o otherRules) Tables() ([]*hostfirewall.Table, error) { return o.tables, o.err }

// An explanation has the chains of other programs that drop what policy allows, and only then.
func TestExplainOtherPrograms(t *testing.T) {
	r, _ := withPolicy(t)
	ask := func(flow string) *manxv1.Explanation {
		t.Helper()
		x, err := r.client.Explain(t.Context(), &manxv1.ExplainRequest{Source: "192.0.2.1", Destination: "shop/web",
			Flow: flow})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	chains := map[string]*hostfirewall.Chain{
		"FORWARD": {Name: "FORWARD", Base: &hostfirewall.Base{Hook: "forward", Drop: true}, Rules: []hostfirewall.Rule{
			{Number: 1, Verdict: hostfirewall.Accept, Unread: []string{"match set"}}}},
		"INPUT": {Name: "INPUT", Base: &hostfirewall.Base{Hook: "input", Drop: true}},
		"pre": {Name: "pre", Base: &hostfirewall.Base{Hook: "prerouting"}, Rules: []hostfirewall.Rule{
			{Number: 1, Verdict: hostfirewall.Drop, Unread: []string{"fib"}}}},
	}
	rules := otherRules{tables: []*hostfirewall.Table{{Family: "ip", Name: "filter", Chains: chains}}}
	if x := ask("udp/53"); !x.GetAllowed() || len(x.GetOthers()) > 0 {
		t.Errorf("without other programs: %v", x.GetOthers())
	}
	r.server.Policy.ShowFirewalls(rules)
	x := ask("udp/53")
	if len(x.GetOthers()) != 1 || !strings.Contains(strings.Join(x.GetNotes(), "\n"), "chain pre may drop it: rule 1") {
		t.Fatalf("%v, %q", x.GetOthers(), x.GetNotes())
	}
	o := x.GetOthers()[0]
	if o.GetNode() != "node-1" || o.GetTable() != "ip filter" || o.GetChain() != "FORWARD" ||
		o.GetHook() != "forward" || o.GetBy() != "policy drop" || o.GetCertain() || len(o.GetExcept()) != 1 {
		t.Errorf("%v", o)
	}
	if x := ask("tcp/80"); x.GetAllowed() || len(x.GetOthers()) > 0 {
		t.Errorf("policy denies it, and yet: %v", x.GetOthers())
	}
	r.server.Policy.ShowFirewalls(otherRules{err: errors.New("no such device")})
	if x := ask("udp/53"); !strings.Contains(strings.Join(x.GetNotes(), "\n"), "cannot be read: no such device") {
		t.Errorf("%q", x.GetNotes())
	}
}
