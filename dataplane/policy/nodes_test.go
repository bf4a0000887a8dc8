package policy

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/dataplane/policy/members"
	"github.com/manxnet/manx/datastore/model"
)

// countingReader counts the objects that are read.
type countingReader struct {
	model.Set
	read int
}

func (r *countingReader) Get(k model.Key) *model.Object {
	r.read++
	return r.Set.Get(k)
}

func (r *countingReader) All(kind model.Kind) iter.Seq[*model.Object] {
	return func(yield func(*model.Object) bool) {
		for o := range r.Set.All(kind) {
			if r.read++; !yield(o) {
				return
			}
		}
	}
}

func nodeAt(i int, address string) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindNode, fmt.Sprint("node-", i)),
		&model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: address}}})
}

// TestANodeCostsOneNode: policy reads the changed Node alone, whether its address changes, it comes or goes.
func TestANodeCostsOneNode(t *testing.T) {
	r := &countingReader{Set: model.Set{}}
	for i := range 1000 {
		o := nodeAt(i, fmt.Sprintf("172.16.%d.%d/12", i>>8, i&255))
		r.Set[o.Key] = o
	}
	c := Build(Config{Node: testNode}, r, nil)
	for _, step := range []struct {
		name string
		o    *model.Object
		has  bool
	}{
		{"another address", nodeAt(5, "172.20.0.1/12"), true},
		{"the same again", nodeAt(5, "172.20.0.1/12"), true},
		{"a new node", nodeAt(1000, "172.20.0.2/12"), true},
		{"it goes", nodeAt(1000, "172.20.0.2/12"), false},
	} {
		if r.Set[step.o.Key] = step.o; !step.has {
			delete(r.Set, step.o.Key)
		}
		r.read = 0
		c.Update(r, step.o.Key)
		if r.read > 1 {
			t.Errorf("%s: %d objects are read, want the node alone", step.name, r.read)
		}
		address := step.o.Value.(*model.Node).Addresses()[0]
		if got := inSet(c, hostsSet+"4", address); got != step.has {
			t.Errorf("%s: %s is among the addresses of nodes: %t, want %t", step.name, address, got, step.has)
		}
	}
	if inSet(c, hostsSet+"4", netip.MustParseAddr("172.16.0.5")) {
		t.Error("the former address of a node is still there")
	}
}

func inSet(c *Calculator, name string, a netip.Addr) bool {
	for e := range c.table.Elements(name) {
		if e.Prefix.Contains(a) {
			return true
		}
	}
	return false
}

// TestNodesInAnyOrder: after any changes the set has the addresses that exist, of nodes that may share one, and of the
// settings.
func TestNodesInAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	set := model.Set{}
	felix := &model.FelixConfiguration{}
	felix.Spec.ExternalNodesCIDRList = &[]string{"192.0.2.8/30"}
	external := model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix)
	c := New(Config{Node: testNode})
	c.Update(set)
	for n := range 2000 {
		var o *model.Object
		if random.IntN(20) == 0 {
			o = external
		} else {
			i := random.IntN(12)
			o = nodeAt(i, fmt.Sprintf("192.0.2.%d/24", random.IntN(16)))
		}
		if set[o.Key] = o; random.IntN(3) == 0 {
			delete(set, o.Key)
		}
		if random.IntN(10) == 0 {
			c.Update(set) // as after a full read
		} else {
			c.Update(set, o.Key)
		}
		var want, got []netip.Prefix
		for _, n := range model.All[model.Node](set, model.KindNode) {
			want = append(want, netip.PrefixFrom(n.Addresses()[0], 32))
		}
		if set[external.Key] != nil {
			want = append(want, netip.MustParsePrefix("192.0.2.8/30"))
		}
		for e := range c.table.Elements(hostsSet + "4") {
			got = append(got, e.Prefix)
		}
		if !slices.Equal(members.Reduce(got), members.Reduce(want)) {
			t.Fatalf("after %d changes: %v, want %v", n, members.Reduce(got), members.Reduce(want))
		}
	}
}
