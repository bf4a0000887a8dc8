package policy

import (
	"math"
	"net/netip"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// The kernel loses its count of connections when the chain is written again.
func TestLimitsOutlivePolicies(t *testing.T) {
	w := workload("a", "cali1")
	w.Value.(*model.WorkloadEndpoint).Spec.QoSControls = &model.QoSControls{IngressMaxConnections: 3,
		EgressPacketRate: 10}
	set := model.NewSet(w)
	c := Build(Config{Node: testNode}, set, nil)
	c.Table().TakeChanges()
	p := globalPolicy("p", v3.GlobalNetworkPolicySpec{Types: twoTypes})
	set[p.Key] = p
	c.Update(set, p.Key)
	changed := map[string]bool{}
	for _, ch := range c.Table().TakeChanges().Chains {
		changed[ch.Name] = true
	}
	for name, want := range map[string]bool{
		"qos-to-workload/cali1": true, "limits-to-workload/cali1": false,
		"qos-from-workload/cali1": true, "limits-from-workload/cali1": false,
	} {
		if c.Table().Chain(name) == nil || changed[name] != want {
			t.Errorf("chain %s, %v, is written again: %v, want %v", name, c.Table().Chain(name), changed[name], want)
		}
	}
}

func TestLimitsOutOfRange(t *testing.T) {
	w := workload("a", "cali1")
	w.Value.(*model.WorkloadEndpoint).Spec.QoSControls = &model.QoSControls{IngressMaxConnections: 1 << 32,
		IngressPacketRate: 1, IngressPacketBurst: 1 << 32,
		EgressMaxConnections: -1, EgressPacketRate: -1}
	table := Build(Config{Node: testNode}, model.NewSet(w), nil).Table()
	var limits []ruleset.Limit
	for _, r := range table.Chain("limits-to-workload/cali1").Rules {
		if r.Over != (ruleset.Limit{}) {
			limits = append(limits, r.Over)
		}
	}
	if len(limits) != 3 || limits[0] != (ruleset.Limit{Packets: 1, Burst: 10000}) ||
		limits[1].Connections != math.MaxUint32 {
		t.Errorf("limits are %+v", limits)
	}
	if table.Chain("limits-from-workload/cali1") != nil || table.Chain("qos-from-workload/cali1") != nil {
		t.Error("negative limits count as some")
	}
}

// A limited workload gets no new connections from and to anybody, and keeps those that it has. Rules of others do not
// change.
func TestLimitedWorkloads(t *testing.T) {
	set := model.NewSet(workload("a", "cali1"), workload("b", "cali2"))
	p := globalPolicy("p", v3.GlobalNetworkPolicySpec{Types: twoTypes, Ingress: []v3.Rule{{Action: v3.Allow}},
		Egress: []v3.Rule{{Action: v3.Allow}}})
	set[p.Key] = p
	c := Build(Config{Node: testNode}, set, nil)
	accepted := func(in, out string, state uint32) bool {
		packet := ruleset.Packet{In: in, Out: out, Source: netip.MustParseAddr("10.0.0.1"), Protocol: 6,
			Destination: netip.MustParseAddr("10.0.0.2"), SourcePort: 1, DestinationPort: 2, State: state}
		return c.Table().EvalForward(nil, packet, nil).Accepted()
	}
	check := func(what string, limited bool) {
		t.Helper()
		for _, x := range []struct{ in, out string }{{"cali1", "eth0"}, {"eth0", "cali1"}, {"cali1", "cali2"},
			{"cali2", "cali1"}} {
			if accepted(x.in, x.out, ruleset.ConnNew) == limited {
				t.Errorf("%s: a new connection from %s to %s, want limited %v", what, x.in, x.out, limited)
			}
			if !accepted(x.in, x.out, ruleset.ConnEstablished) {
				t.Errorf("%s: a connection from %s to %s that exists is dropped", what, x.in, x.out)
			}
		}
		if !accepted("cali2", "eth0", ruleset.ConnNew) || !accepted("eth0", "cali2", ruleset.ConnNew) {
			t.Errorf("%s: another workload gets no new connection", what)
		}
	}
	check("at first", false)
	c.Table().TakeChanges()
	c.SetLimited([]Limit{{"cali1", false}, {"cali7", false}})
	c.Settle()
	if accepted("cali1", "eth0", ruleset.ConnNew) || !accepted("eth0", "cali1", ruleset.ConnNew) {
		t.Error("a workload that began too many connections gets new ones, or those of others do not reach it")
	}
	c.SetLimited([]Limit{{"cali1", true}})
	c.Settle()
	if !accepted("cali1", "eth0", ruleset.ConnNew) || accepted("eth0", "cali1", ruleset.ConnNew) {
		t.Error("a workload that answers too many connections gets new ones, or cannot begin any itself")
	}
	c.SetLimited(nil)
	c.Settle()
	check("no more", false)
	c.Table().TakeChanges()
	c.SetLimited([]Limit{{"cali1", false}, {"cali1", true}})
	c.Settle()
	check("limited", true)
	if changes := c.Table().TakeChanges(); len(changes.Chains) != 2 {
		t.Errorf("%d chains change", len(changes.Chains))
	}
	c.Update(set)
	check("after an update", true)
	c.SetLimited(nil)
	c.Settle()
	check("no more", false)
	if c.Table().Chain("limited-to-workload/cali1") != nil {
		t.Error("a chain of the limit is left")
	}
	if list := c.LocalWorkloads(); len(list) != 2 || list[0].Interface != "cali1" || list[0].Key.Name != "a" {
		t.Errorf("workloads %+v", list)
	}
}
