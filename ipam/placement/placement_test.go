package placement

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// block has four addresses, each with the attribute of its index; -1: free.
func block(affinity string, attributes []model.BlockAttribute, allocations ...int) *model.Block {
	b := &model.Block{CIDR: netip.MustParsePrefix("10.244.1.0/30"), Attributes: attributes}
	if affinity != "" {
		b.Affinity = &affinity
	}
	for _, i := range allocations {
		if i < 0 {
			b.Allocations = append(b.Allocations, nil)
		} else {
			b.Allocations = append(b.Allocations, &i)
		}
	}
	return b
}

func on(node string) model.BlockAttribute {
	return model.BlockAttribute{Secondary: map[string]string{"node": node}}
}

// The addresses of a block are on the node that has the block, except those that other nodes have borrowed.
func TestOf(t *testing.T) {
	cooling := on("n9")
	cooling.ReleasedAt = &metav1.Time{Time: time.Now()}
	gone := block("host:n1", nil, -1, -1, -1, -1)
	gone.Deleted = true
	one, three := netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("10.244.1.3")
	for _, c := range []struct {
		rule     string
		block    *model.Block
		node     string
		borrowed map[netip.Addr]string
	}{
		{"of a node", block("host:n1", []model.BlockAttribute{on("n1")}, 0, -1, -1, 0), "n1", nil},
		{"borrowed", block("host:n1", []model.BlockAttribute{on("n1"), on("n2"), on("n3")}, 0, 1, -1, 2), "n1",
			map[netip.Addr]string{one: "n2", three: "n3"}},
		{"of no node", block("", []model.BlockAttribute{on("n2")}, -1, 0, -1, -1), "",
			map[netip.Addr]string{one: "n2"}},
		{"of Services", block("virtual:load-balancer", []model.BlockAttribute{{}}, 0, -1, -1, -1), "", nil},
		{"an address that cools down", block("host:n1", []model.BlockAttribute{cooling}, -1, 0, -1, -1), "n1", nil},
		{"an index without attribute", block("host:n1", nil, 7, -1, -1, -1), "n1", nil},
		{"being deleted", gone, "", nil},
	} {
		want := &Placement{Block: c.block.CIDR, Node: c.node, Borrowed: c.borrowed}
		if got := of(c.block); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", c.rule, got, want)
		}
	}
}

func TestChanges(t *testing.T) {
	cidr := netip.MustParsePrefix("10.244.1.0/30")
	one, two := netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("10.244.1.2")
	host := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 32) }
	lent := &Placement{Block: cidr, Node: "n1", Borrowed: map[netip.Addr]string{one: "n2"}}
	for _, c := range []struct {
		rule       string
		old, fresh *Placement
		want       []Change
	}{
		{"a new block", nil, lent, []Change{{cidr, "n1"}, {host(one), "n2"}}},
		{"no change", lent, lent, nil},
		{"another address", lent, &Placement{Block: cidr, Node: "n1", Borrowed: map[netip.Addr]string{two: "n2"}},
			[]Change{{host(two), "n2"}, {host(one), ""}}},
		{"the block and the address change their nodes", lent,
			&Placement{Block: cidr, Node: "n2", Borrowed: map[netip.Addr]string{one: "n1"}},
			[]Change{{cidr, "n2"}, {host(one), "n1"}}},
		{"the block is released", lent, nil, []Change{{cidr, ""}, {host(one), ""}}},
	} {
		if got := Changes(c.old, c.fresh); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.rule, got, c.want)
		}
	}
}

// Blocks lose all but their placement; other objects stay.
func TestReduce(t *testing.T) {
	o := model.NewObject(model.BlockKey(netip.MustParsePrefix("10.244.1.0/30")), block("host:n1", nil, -1, -1, -1, -1))
	o.Revision = 7
	if got := Reduce(o); got.Key != o.Key || got.Revision != 7 || got.Value.(*Placement).Node != "n1" {
		t.Errorf("%+v", got)
	}
	other := model.NewObject(model.ResourceKey(model.KindIPPool, "p"), &model.IPPool{})
	if Reduce(other) != other {
		t.Error("a pool is not what it was")
	}
}

// Without IPAM a block is where its affinity is, if that is confirmed and of a host.
func TestReduceAffinity(t *testing.T) {
	for _, c := range []struct {
		kind model.AffinityType
		b    model.BlockAffinity
		want string
	}{
		{model.AffinityHost, model.BlockAffinity{State: model.StateConfirmed}, "n1"},
		{model.AffinityHost, model.BlockAffinity{State: model.StatePending}, ""},
		{model.AffinityHost, model.BlockAffinity{State: model.StateConfirmed, Deleted: true}, ""},
		{model.AffinityVirtual, model.BlockAffinity{State: model.StateConfirmed}, ""},
	} {
		cidr := netip.MustParsePrefix("10.244.1.0/24")
		o := model.NewObject(model.AffinityKey(model.Affinity{Type: c.kind, Host: "n1", CIDR: cidr}), &c.b)
		if p, ok := Reduce(o).Value.(*Placement); !ok || p.Block != cidr || p.Node != c.want {
			t.Errorf("%s, %+v: %+v, want node %q", c.kind, c.b, p, c.want)
		}
	}
}
