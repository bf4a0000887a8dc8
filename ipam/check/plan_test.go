package check

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

var update = flag.Bool("update", false, "write the golden file anew")

var today = time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)

// cluster is a store with IPAM objects.
type cluster struct {
	*testing.T
	*memory.Store
}

func newCluster(t *testing.T) cluster {
	c := cluster{t, memory.New()}
	c.put(model.ResourceKey(model.KindIPPool, "p"), &model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.0.0.0/16",
		BlockSize: 26, NodeSelector: "all()", AllowedUses: nil}})
	c.put(model.ResourceKey(model.KindNode, "n1"), &model.Node{})
	return c
}

func (c cluster) put(k model.Key, v any) { c.Put(model.NewObject(k, v)) }

// assign assigns an address of n1 to a pod, as long ago.
func (c cluster) assign(address, handle, pod string, ago time.Duration) {
	c.Helper()
	a := ipam.New(c.Store, nil, func() time.Time { return today.Add(-ago) })
	err := a.AssignIP(c.Context(), ipam.AddressRequest{Address: netip.MustParseAddr(address), Host: "n1",
		Handle: handle, Attrs: map[string]string{"node": "n1", "namespace": "shop", "pod": pod,
			"timestamp": today.Add(-ago).String()}})
	if err != nil {
		c.Fatal(err)
	}
}

func (c cluster) endpoint(pod, node string, addresses ...string) {
	name, err := model.WorkloadEndpointName(model.WorkloadEndpointIDs{Node: node, Orchestrator: "k8s", Pod: pod,
		Endpoint: "eth0"})
	if err != nil {
		c.Fatal(err)
	}
	w := &model.WorkloadEndpoint{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop",
		CreationTimestamp: metav1.NewTime(today.Add(-3 * time.Hour))}}
	w.Spec.Node, w.Spec.Pod, w.Spec.IPNetworks = node, pod, addresses
	c.put(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: name}, w)
}

func (c cluster) check(o Options) Result {
	set := model.Set{}
	for _, kind := range Kinds {
		list, _, err := c.List(context.Background(), kind, "")
		if err != nil {
			c.Fatal(err)
		}
		for _, x := range list {
			set[x.Key] = x
		}
	}
	return Check(set, o)
}

func (c cluster) steps() []Step {
	steps, _ := c.check(Options{}).Plan(today, 15*time.Minute)
	return steps
}

func (c cluster) repair(steps []Step) []Outcome {
	c.Helper()
	done, err := Repair(c.Context(), c.Store, steps, func(context.Context) ([]Step, error) { return c.steps(), nil })
	if err != nil {
		c.Error(err)
	}
	return done
}

func (c cluster) assigned(address string) bool {
	return len(c.check(Options{}).Allocations[address]) > 0
}

// broken makes each kind of contradiction.
func broken(t *testing.T) cluster {
	c := newCluster(t)
	c.assign("10.0.0.1", "used", "web", 100*time.Hour)
	c.endpoint("web", "n1", "10.0.0.1/32")
	c.assign("10.0.0.2", "gone", "gone", 100*time.Hour)
	c.assign("10.0.0.3", "young", "young", 5*time.Minute)
	c.assign("10.0.0.4", "mine", "mine", 2*time.Hour)
	c.endpoint("thief", "n1", "10.0.0.4/32", "10.0.0.9/32", "192.0.2.1/32")
	c.endpoint("lost", "n9", "10.0.0.1/32")
	c.put(model.HandleKey("idle"), &model.Handle{Block: map[string]int{"10.0.0.0/26": 1}})
	c.put(model.HandleKey("mine"), &model.Handle{Block: map[string]int{"10.0.0.0/26": 2}})
	c.Remove(model.HandleKey("used"))
	owner, dead := "host:n1", "host:n8"
	block := func(cidr string, owner *string) {
		p := netip.MustParsePrefix(cidr)
		b := &model.Block{CIDR: p, Affinity: owner, Allocations: make([]*int, 64),
			AffinityClaimTime:           &metav1.Time{Time: today.Add(-time.Hour)},
			SequenceNumberForAllocation: map[string]uint64{}}
		for i := range 64 {
			b.Unallocated = append(b.Unallocated, i)
		}
		c.put(model.BlockKey(p), b)
	}
	claim := func(host, cidr string) {
		p := netip.MustParsePrefix(cidr)
		c.put(model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: host, CIDR: p}),
			&model.BlockAffinity{State: model.StateConfirmed})
	}
	block("10.0.1.0/26", &owner)
	block("10.0.2.0/26", &dead)
	block("10.0.4.0/26", nil)
	claim("n8", "10.0.2.0/26")
	claim("n1", "10.0.3.0/26")
	claim("n7", "10.0.0.0/26")
	return c
}

// TestReportOfEachProblem compares the findings and the plan with the golden file.
func TestReportOfEachProblem(t *testing.T) {
	c := broken(t)
	pods := model.Set{}
	w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1", Pod: "web",
		IPNetworks: []string{"10.0.0.7/32"}}}
	w.Namespace = "shop"
	k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: "w"}
	pods[k] = model.NewObject(k, w)
	r := c.check(Options{Pods: pods})
	r.AddKernel("10.0.0.8/32", "route 10.0.0.8 dev cali1", today.Add(-time.Minute))
	r.AddKernel("10.0.0.1/32", "route of a pod", today)
	r.AddKernel("10.0.0.0/26", "route of a block", today)
	r.AddKernel("192.0.2.7/32", "route of another program", today)
	var text strings.Builder
	for _, p := range Problems {
		if len(r.Found[p]) == 0 {
			t.Errorf("no %s", p)
		}
		for _, f := range r.Found[p] {
			fmt.Fprintf(&text, "%s: %s\n", p, f.Line(today))
		}
	}
	steps, kept := r.Plan(today, 15*time.Minute)
	for _, s := range steps {
		fmt.Fprintf(&text, "do: %s\n", s.Do)
	}
	for _, f := range kept {
		fmt.Fprintf(&text, "keep: %s: %s\n", f.Text, f.Why)
	}
	const golden = "testdata/problems.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, _ := os.ReadFile(golden); string(want) != text.String() {
		t.Errorf("got\n%swant\n%s", text.String(), want)
	}
}

// TestRepair does all steps once; then there is nothing more to do, and every address that was kept is still there.
func TestRepair(t *testing.T) {
	c := broken(t)
	steps := c.steps()
	for _, o := range c.repair(steps) {
		if o.Err != nil || o.Skipped != "" {
			t.Errorf("%s: %v %s", o.Do, o.Err, o.Skipped)
		}
	}
	if again := c.steps(); len(again) > 0 {
		t.Errorf("left to do: %+v", again)
	}
	for address, want := range map[string]bool{"10.0.0.1": true, "10.0.0.2": false, "10.0.0.3": true,
		"10.0.0.4": true} {
		if c.assigned(address) != want {
			t.Errorf("%s: assigned is %t", address, !want)
		}
	}
	for _, o := range c.repair(steps) {
		if o.Skipped == "" {
			t.Errorf("done a second time: %s: %v", o.Do, o.Err)
		}
	}
}

// TestFactsChangeBeforeTheWrite: whatever changes between the plan and the write, the address stays.
func TestFactsChangeBeforeTheWrite(t *testing.T) {
	for name, change := range map[string]func(cluster){
		"the pod has it":       func(c cluster) { c.endpoint("gone", "n1", "10.0.0.2/32") },
		"another pod has it":   func(c cluster) { c.endpoint("other", "n1", "10.0.0.2/32") },
		"a pod has its range":  func(c cluster) { c.endpoint("other", "n1", "10.0.0.0/30") },
		"the pod is there":     func(c cluster) { c.endpoint("gone", "n1") },
		"a pod is unreadable":  func(c cluster) { c.endpoint("other", "n1", "10.0.0.2/33") },
		"a tunnel has it":      func(c cluster) { c.tunnel("10.0.0.2") },
		"it was assigned anew": func(c cluster) { c.assignAnew() },
		"a pod claims it": func(c cluster) {
			c.endpoint("other", "n1", "10.0.0.2/32")
			c.claim("other", "10.0.0.77/32")
		},
		"its handle has another one": func(c cluster) { c.assign("10.0.0.20", "gone", "gone", time.Second) },
	} {
		for _, late := range []bool{false, true} { // before the second check, or between that and the write
			if late && name != "the pod has it" && name != "the pod is there" && name != "it was assigned anew" {
				continue // only the block and the pod's own endpoint are read so late
			}
			t.Run(fmt.Sprintf("%s late %t", name, late), func(t *testing.T) {
				c := newCluster(t)
				c.assign("10.0.0.2", "gone", "gone", 100*time.Hour)
				steps := c.steps()
				if len(steps) != 1 {
					t.Fatalf("steps: %+v", steps)
				}
				done, err := Repair(t.Context(), c.Store, steps, func(context.Context) ([]Step, error) {
					if !late {
						change(c)
						return c.steps(), nil
					}
					defer change(c)
					return c.steps(), nil
				})
				if err != nil || len(done) != 1 || done[0].Skipped == "" || !c.assigned("10.0.0.2") {
					t.Errorf("%+v, %v, assigned is %t", done, err, c.assigned("10.0.0.2"))
				}
			})
		}
	}
	c := newCluster(t)
	c.assign("10.0.0.2", "gone", "gone", 100*time.Hour)
	failed := errors.New("the datastore does not answer")
	if done, err := Repair(t.Context(), c.Store, c.steps(), func(context.Context) ([]Step, error) {
		return nil, failed
	}); !errors.Is(err, failed) || len(done) > 0 {
		t.Errorf("without a second check: %v, %v", done, err)
	}
}

func (c cluster) tunnel(address string) {
	c.put(model.ResourceKey(model.KindNode, "n1"), &model.Node{Spec: model.NodeSpec{IPv4VXLANTunnelAddr: address}})
}

func (c cluster) assignAnew() {
	if _, err := ipam.New(c.Store, nil, nil).ReleaseByHandle(c.Context(), "gone"); err != nil {
		c.Error(err)
	}
	c.assign("10.0.0.2", "gone", "gone", time.Second)
}

// claim gives an endpoint confirmed addresses other than its own.
func (c cluster) claim(pod, address string) {
	name, _ := model.WorkloadEndpointName(model.WorkloadEndpointIDs{Node: "n1", Orchestrator: "k8s", Pod: pod,
		Endpoint: "eth0"})
	o, err := c.Get(c.Context(), model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: name})
	if err != nil {
		c.Fatal(err)
	}
	o.Value.(*model.WorkloadEndpoint).Spec.Claim = &model.Claim{IPNetworks: []string{address}}
	c.Put(o)
}

// TestNonsenseReleasesNothing: names and times that a writer made up are never a reason to release an address.
func TestNonsenseReleasesNothing(t *testing.T) {
	for name, attrs := range map[string]map[string]string{
		"no attributes":       {},
		"no time":             {"pod": "x", "namespace": "shop", "node": "n1"},
		"a time to come":      {"pod": "x", "namespace": "shop", "node": "n1", "timestamp": "2999-01-01T00:00:00Z"},
		"a name with a slash": {"pod": "-", "namespace": "../..", "node": "n1", "timestamp": "2020-01-01T00:00:00Z"},
		"no node":             {"pod": "x", "namespace": "shop", "timestamp": "2020-01-01T00:00:00Z"},
		"a virtual machine": {"pod": "x", "namespace": "shop", "node": "n1", "timestamp": "2020-01-01T00:00:00Z",
			"vmi-name": "vm"},
		"a service": {"pod": "x", "namespace": "shop", "service": "s", "timestamp": "2020-01-01T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			err := ipam.New(c.Store, nil, nil).AssignIP(t.Context(), ipam.AddressRequest{
				Address: netip.MustParseAddr("10.0.0.2"), Host: "n1", Handle: "h", Attrs: attrs})
			if err != nil {
				t.Fatal(err)
			}
			steps := c.steps()
			if name == "a virtual machine" && len(steps) > 0 {
				t.Errorf("a machine that may be stopped has a problem: %v", steps[0])
			}
			c.repair(steps)
			if !c.assigned("10.0.0.2") {
				t.Error("it was released")
			}
		})
	}
	c := newCluster(t)
	for _, owner := range []string{"host:", ":n1", "host:a/b", "host:a/10.0.0.0/26", "nonsense"} {
		p := netip.MustParsePrefix("10.0.5.0/26")
		b := &model.Block{CIDR: p, Affinity: &owner, Allocations: make([]*int, 64),
			SequenceNumberForAllocation: map[string]uint64{}}
		c.put(model.BlockKey(p), b)
		if steps := c.steps(); len(steps) > 0 {
			t.Errorf("owner %q: %s", owner, steps[0].Do)
		}
	}
}
