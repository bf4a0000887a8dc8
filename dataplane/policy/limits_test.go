package policy

import (
	"math"
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
