package bgp

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// changer generates objects of all kinds that Compute reads, for node n0 and some others. Their names and addresses
// often coincide.
type changer struct {
	t *testing.T
	r *rand.Rand
}

func (c changer) pick(choices ...string) string { return choices[c.r.IntN(len(choices))] }

// object returns a new version of an object: mostly a workload, often a block, sometimes another object.
func (c changer) object() *model.Object {
	line := func(format string, args ...any) *model.Object {
		return world(c.t, fmt.Sprintf(format, args...))[0]
	}
	switch n := c.r.IntN(20); {
	case n < 8:
		return line(`wep w%d {"node":%q,"interfaceName":%q,"orchestrator":"k8s","ipNetworks":[%s]%s}@{"speaks":%q}`,
			c.r.IntN(4), c.pick("n0", "n0", "n0", "n1"), c.pick("cali1", "cali2", "eth0", ""),
			c.pick(`"10.1.1.7/32"`, `"10.1.1.8/32"`, `"10.1.9.1/32"`, `"10.2.1.7"`, `"192.0.2.9/32"`, `"x"`,
				`"10.3.0.0/32"`, `"10.4.0.9/32"`, `"10.1.1.7/32","fd00:1::1/128"`),
			c.pick("", "", `,"ipNATs":[{"internalIP":"10.1.1.7","externalIP":"192.0.2.8"}]`,
				`,"ipNATs":[{"internalIP":"10.1.1.7","externalIP":"10.1.1.9"}]`), c.pick("bgp", "none"))
	case n < 12:
		return line("block %s %s %s", c.pick("n0", "n0", "n1"),
			c.pick("10.1.1.0/26", "10.1.2.0/26", "10.2.1.0/26", "10.3.0.0/32", "fd00:1::/122"),
			c.pick("confirmed", "confirmed", "", "pending", "pendingDeletion"))
	case n < 14:
		return randomChange(c.r)
	case n < 16:
		i := c.r.IntN(3)
		return line(
			`node n%d {"bgp":{"ipv4Address":"10.0.0.%d/24"%s},"orchRefs":[{"nodeName":%q,"orchestrator":"k8s"}]}`+
				`@{"rack":%q}`, i, i+1, c.pick("", "", `,"asNumber":65001`, `,"ipv4IPIPTunnelAddr":"10.1.1.8"`),
			c.pick("a", "b"), c.pick("a", "b"))
	}
	switch c.r.IntN(5) {
	case 0:
		return line(`pool p%d {"cidr":%q%s}`, c.r.IntN(2), c.pick("10.1.0.0/16", "10.2.0.0/16", "10.0.0.0/8"),
			c.pick("", `,"disableBGPExport":true`))
	case 1:
		return line(`config default {%s}`, c.pick(``, `"serviceExternalIPs":[{"cidr":"10.1.0.0/16"}]`,
			`"serviceLoadBalancerIPs":[{"cidr":"80.0.0.0/8"}],"serviceLoadBalancerAggregation":"Disabled"`,
			`"ipv4NormalRoutePriority":2000`, `"serviceExternalIPs":[{"cidr":"10.4.0.9/32"}]`))
	case 2:
		return line(`filter f%d {"exportV4":[%s]}`, c.r.IntN(2), c.pick(
			`{"action":"Accept","interface":"cali1"}`,
			`{"action":"Reject","interface":"cali1"},{"action":"Accept","cidr":"10.1.0.0/16","matchOperator":"In"}`,
			`{"action":"Reject"},{"action":"Accept"}`, `{"action":"Accept","priority":1024}`,
			`{"action":"Accept","source":"RemotePeers"}`))
	case 3:
		return line(`peer p%d {%s,"asNumber":65009,"filters":[%s]}`, c.r.IntN(3), c.pick(`"peerIP":"192.0.2.1"`,
			`"peerIP":"192.0.2.1"`, `"localWorkloadSelector":"speaks == 'bgp'"`), c.pick("", `"f0"`, `"f0","f1"`))
	}
	return line(`felix %s {%s}`, c.pick("default", "node.n0"), c.pick(``, `"floatingIPs":"Enabled"`,
		`"ipv4ElevatedRoutePriority":77`, `"interfacePrefix":"cali,eth"`))
}

// A caller that computes only after changes for which DependsOn returns true has, after any sequence of changes, the
// state of a computation from scratch.
func TestComputingOnlyWhatDependsIsComputingAlways(t *testing.T) {
	computed, skipped := map[model.Kind]int{}, map[model.Kind]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		c := changer{t, r}
		_, lines := randomCluster(r)
		set := model.NewSet(world(t, lines...)...)
		in := Input{Reader: set, Node: "n0", Refuse: RefuseSettings{Pools: r.IntN(3) == 0}}
		have := Compute(in)
		for step := range 200 {
			next := maps.Clone(set)
			after := c.object()
			key, before := after.Key, set.Get(after.Key)
			if before != nil && r.IntN(3) == 0 {
				after = nil
				delete(next, key)
			} else {
				next[key] = after
			}
			in.Reader = next
			want := Compute(in)
			if have.DependsOn("n0", before, after) {
				have = want
				computed[key.Kind]++
			} else {
				skipped[key.Kind]++
			}
			if !reflect.DeepEqual(have, want) {
				t.Fatalf("seed %d, step %d, %s: %+v becomes %+v:\n have %+v\n want %+v", seed, step, key,
					valueText(before), valueText(after), have, want)
			}
			set = next
		}
	}
	for _, kind := range []model.Kind{model.KindNode, model.KindBlockAffinity, model.KindWorkloadEndpoint,
		model.KindEndpointSlice} {
		if computed[kind] < 50 || skipped[kind] < 50 {
			t.Errorf("of changes of %s %d have BGP computed, %d do not: want many of both", kind, computed[kind],
				skipped[kind])
		}
	}
}

// The objects whose appearance can change a decision decide the same without all the others: they are what a node needs
// for a start without the datastore.
func TestObjectsThatADecisionDependsOnDecideTheSame(t *testing.T) {
	kept, left := map[model.Kind]int{}, map[model.Kind]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 12))
		c := changer{t, r}
		_, lines := randomCluster(r)
		set := model.NewSet(world(t, lines...)...)
		for range 40 {
			o := c.object()
			set[o.Key] = o
		}
		in := Input{Reader: set, Node: "n0", Refuse: RefuseSettings{Pools: r.IntN(3) == 0}}
		want := Compute(in)
		part := model.Set{}
		for k, o := range set {
			if set.Get(k) != nil && want.DependsOn("n0", nil, o) {
				part[k] = o
				kept[k.Kind]++
			} else {
				left[k.Kind]++
			}
		}
		in.Reader = part
		have := Compute(in)
		have.Notices, want.Notices = nil, nil // about objects that are not used, too
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("seed %d:\n have %+v\n want %+v", seed, have, want)
		}
	}
	for _, kind := range []model.Kind{model.KindBlockAffinity, model.KindWorkloadEndpoint} {
		if kept[kind] < 20 || left[kind] < 20 {
			t.Errorf("of %s %d are kept, %d are not: want many of both", kind, kept[kind], left[kind])
		}
	}
}

func valueText(o *model.Object) string {
	if o == nil {
		return "nothing"
	}
	return fmt.Sprintf("%+v", o.Value)
}

// A local pod starts on a node with a block, beside 1,000 nodes, of which 500 have sessions with this node.
func BenchmarkPodBeside500Sessions(b *testing.B) {
	lines := []string{"pool pods {\"cidr\":\"10.244.0.0/16\"}", "block n0000 10.244.0.0/26 confirmed"}
	for i := range 1000 {
		reflector := ""
		if i >= 501 {
			reflector = `,"routeReflectorClusterID":"10.9.9.9"` // in no mesh
		}
		lines = append(lines, fmt.Sprintf(`node n%04d {"bgp":{"ipv4Address":"10.0.%d.%d/16"%s}}`, i, i/250, i%250+1,
			reflector))
	}
	objects := world(b, lines...)
	pod := world(b, `wep w {"node":"n0000","interfaceName":"cali1","ipNetworks":["10.244.0.7/32"]}`)[0]
	d := Compute(Input{Reader: shuffled{objects}, Node: "n0000"})
	if len(d.Sessions) != 500 || d.DependsOn("n0000", nil, pod) {
		b.Fatalf("%d sessions, and BGP depends on the pod: %t", len(d.Sessions), d.DependsOn("n0000", nil, pod))
	}
	b.Run("decided by the pod", func(b *testing.B) {
		for b.Loop() {
			d.DependsOn("n0000", nil, pod)
		}
	})
	b.Run("decided by all", func(b *testing.B) {
		objects := append(slices.Clone(objects), pod)
		for b.Loop() {
			Compute(Input{Reader: shuffled{objects}, Node: "n0000"})
		}
	})
}
