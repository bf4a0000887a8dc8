package dataplane

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
)

// BenchmarkLearnStep measures the agent's cost for one route that BGP has learned, on a kernel in memory.
func BenchmarkLearnStep(b *testing.B) {
	fake := kerneltest.New()
	fake.PutLink(kernel.Link{Index: 2, Name: "eth0", MTU: 1500, Up: true, Running: true})
	fake.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("10.1.0.5/24")})
	now := time.Unix(1e9, 0)
	a := newHostAgent(Config{Kernel: fake, NodeName: "node-1", Logger: zap.NewNop()}, func() time.Time { return now })
	a.SetState(State{Reader: baseObjects(), All: true})
	a.step()
	paths := []locrib.Path{{NextHop: netip.MustParseAddr("10.1.0.9")}}
	list := make([][]locrib.Route, 1000)
	for i, p := range blocks(len(list)) {
		list[i] = []locrib.Route{{Prefix: p, Paths: paths, Metric: 1024}}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l := list[i%len(list)]
		l[0].Metric = uint32(1024 + i/len(list)%2)
		a.Learn(l)
		a.step()
	}
}

// BenchmarkPolicyStep measures the agent's cost for a change of one of 250 workloads, on a kernel that accepts every
// change.
func BenchmarkPolicyStep(b *testing.B) {
	rules := kerneltest.NewRules()
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
