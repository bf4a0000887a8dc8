package dataplane

import (
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
)

// The pods of other nodes change all the time. They cost the targets of this host nothing.
func TestPodsOfOthersFlushNothing(t *testing.T) {
	fake := kerneltest.New()
	fake.PutLink(kernel.Link{Index: 2, Name: "eth0", MTU: 1500, Up: true, Running: true})
	fake.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("10.1.0.5/24")})
	now := time.Unix(1e9, 0)
	a := newHostAgent(Config{Kernel: fake, NodeName: "node-1", Logger: zap.NewNop()}, func() time.Time { return now })
	n := 0
	for i, target := range a.targets {
		a.targets[i] = flushCounter{target, &n}
	}
	step := func(what string, flushed bool, s State) {
		t.Helper()
		n = 0
		a.SetState(s)
		if a.step(); (n > 0) != flushed {
			t.Errorf("%s: %d flushes", what, n)
		}
	}
	set := baseObjects()
	key := func(name string) model.Key {
		return model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name}
	}
	foreign := State{Reader: set, Changed: []model.Key{key("b"), {Kind: model.KindEndpointSlice, Name: "s"}}}
	step("the first state", true, State{Reader: set, All: true})
	a.step() // with the routes of the host, which have just been read
	step("a pod of another node", false, foreign)
	step("its end", false, State{Reader: model.NewSet(), Changed: []model.Key{key("gone")}})
	step("a pod of this node", true, State{Reader: set, Changed: []model.Key{key("b"), key("a")}})
	step("another node", true, State{Reader: set, Changed: []model.Key{key("b"),
		model.ResourceKey(model.KindNode, "node-2")}})
	synced := foreign
	synced.DatastoreSynced = true
	step("the datastore is read", true, synced)
	step("a pod of another node again", false, synced)
	peering := synced
	peering.Peering = append(peering.Peering, struct {
		Interface string
		Address   netip.Addr
	}{"cali1", netip.MustParseAddr("169.254.1.1")})
	step("a peering", true, peering)
	a.SetPolicy(endpointstatus.Policy{})
	step("a pod of another node, and policy is in the kernel", true, peering)
	now = now.Add(time.Hour)
	step("a pod of another node, an hour later", true, peering)
}

// The agent of the host is triggered only when policy of its own workloads may be in the kernel.
func TestPolicyReportsOwnWorkloads(t *testing.T) {
	reports := 0
	a := NewPolicy(PolicyConfig{Rules: kerneltest.NewRules(), Links: kerneltest.New(), Logger: zap.NewNop(),
		Policy: policy.Config{Node: "node-1"}, Reached: func(endpointstatus.Policy) { reports++ }})
	step := func(what string, reported bool) {
		t.Helper()
		reports = 0
		if a.step(); (reports > 0) != reported {
			t.Errorf("%s: %d reports", what, reports)
		}
	}
	own := endpointObject("a", "node-1", "cali1", "10.244.1.7/32")
	other := endpointObject("b", "node-2", "cali2", "10.244.2.7/32")
	set := model.NewSet(own, other)
	a.SetState(State{Reader: set, All: true})
	step("the first state", true)
	a.SetState(State{Reader: set, Changed: []model.Key{other.Key}})
	step("a workload of another node", false)
	a.InterfacesChanged([]kernel.Event{{Type: kernel.EventLink, Link: kernel.Link{Index: 9, Name: "cali9"}}})
	step("an interface", false)
	newer := *own // with the same rules
	newer.Revision = 9
	a.SetState(State{Reader: model.NewSet(&newer, other), Changed: []model.Key{own.Key}})
	step("another version of a workload of this node", true)
	a.SetState(State{Reader: model.NewSet(other), Changed: []model.Key{own.Key}})
	step("the end of a workload of this node", true)
}
