package dataplane

import (
	"fmt"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
)

// BenchmarkPolicyStep measures what the agent adds to a change of one of 250 workloads, on a kernel that takes all.
func BenchmarkPolicyStep(b *testing.B) {
	rules := kernel.NewFakeRules()
	a := NewPolicy(PolicyConfig{Rules: rules, Logger: zap.NewNop(), Policy: policy.Config{Node: "node-1"},
		Reached: func(endpointstatus.Policy) {}})
	set := model.Set{}
	var keys []model.Key
	for i := range 250 {
		o := endpointObject(fmt.Sprintf("w%d", i), "node-1", fmt.Sprintf("cali%d", i), fmt.Sprintf("10.0.0.%d/32", i))
		set[o.Key], keys = o, append(keys, o.Key)
	}
	a.SetState(State{Reader: set, All: true})
	a.step()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		a.SetState(State{Reader: set, Changed: keys[i%250 : i%250+1]})
		a.step()
	}
}
