package validation_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

func TestBlockRules(t *testing.T) {
	h := "h"
	sound := func() *model.Block {
		return &model.Block{
			CIDR:        netip.MustParsePrefix("10.0.0.0/30"),
			Allocations: []*int{new(int), nil, nil, nil},
			Unallocated: []int{3, 1, 2},
			Attributes:  []model.BlockAttribute{{HandleID: &h}},
		}
	}
	two := 2
	for _, c := range []struct {
		rule   string
		change func(*model.Block)
		want   []string
	}{
		{"a sound block", func(*model.Block) {}, nil},
		{"an empty block has attributes null", func(b *model.Block) {
			b.Allocations[0], b.Unallocated, b.Attributes = nil, []int{0, 1, 2, 3}, nil
		}, nil},
		{"no CIDR", func(b *model.Block) { b.CIDR = netip.Prefix{} }, []string{"cidr"}},
		{"host bits", func(b *model.Block) { b.CIDR = netip.MustParsePrefix("10.0.0.1/30") }, []string{"cidr"}},
		{"a whole network", func(b *model.Block) { b.CIDR = netip.MustParsePrefix("::/0") }, []string{"cidr"}},
		{"one entry for each address", func(b *model.Block) { b.Allocations = b.Allocations[:3] },
			[]string{"allocations"}},
		{"an allocation has an attribute", func(b *model.Block) { b.Allocations[1] = &two },
			[]string{"allocations[1]"}},
		{"a negative index", func(b *model.Block) { n := -1; b.Allocations[0] = &n }, []string{"allocations[0]"}},
		{"an attribute has an allocation", func(b *model.Block) {
			b.Attributes = append(b.Attributes, model.BlockAttribute{})
		}, []string{"attributes[1]"}},
		{"a free address is in range", func(b *model.Block) { b.Unallocated[0] = 4 }, []string{"unallocated[0]"}},
		{"a free address is there once", func(b *model.Block) { b.Unallocated[0] = 1 }, []string{"unallocated[1]"}},
		{"a free address is not allocated", func(b *model.Block) { b.Unallocated[0] = 0 }, []string{"unallocated[0]"}},
		{"no address is lost", func(b *model.Block) { b.Unallocated = b.Unallocated[1:] }, []string{"unallocated"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			b := sound()
			c.change(b)
			var fields []string
			for _, e := range validation.CheckBlock(b) {
				fields = append(fields, e.Field)
			}
			if !slices.Equal(fields, c.want) {
				t.Errorf("%v; want %v", validation.CheckBlock(b), c.want)
			}
		})
	}
}

func TestPoolOverlapNamesBothPools(t *testing.T) {
	pool := func(name, cidr string) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindIPPool, name),
			&model.IPPool{Spec: model.IPPoolSpec{CIDR: cidr}})
	}
	others := model.NewSet(pool("a", "10.0.0.0/16"), pool("b", "10.1.0.0/16"), pool("six", "fd00::/48"))
	for _, c := range []struct {
		name, cidr string
		want       []string
	}{
		{"new", "10.2.0.0/16", nil},
		{"new", "10.0.1.0/24", []string{"IPPool new overlaps IPPool a, which is 10.0.0.0/16"}},
		{"new", "10.0.0.0/8", []string{"IPPool new overlaps IPPool a, which is 10.0.0.0/16",
			"IPPool new overlaps IPPool b, which is 10.1.0.0/16"}},
		{"a", "10.0.0.0/16", nil},
	} {
		o := pool(c.name, c.cidr)
		var rules []string
		for _, e := range validation.CheckPoolOverlap(o.Key, o.Value.(*model.IPPool), others) {
			rules = append(rules, e.Rule)
		}
		if !reflect.DeepEqual(rules, c.want) {
			t.Errorf("%s %s: %q", c.name, c.cidr, rules)
		}
	}
}

// An object that passes validation can be read, and the other way round.
func TestNodeAddressAsValidated(t *testing.T) {
	for _, text := range []string{"10.0.0.5/24", "10.0.0.5", "::ffff:10.0.0.5", "::ffff:10.0.0.5/120", "fd00::5/64",
		"fd00::5", "fe80::5%eth0", "10.0.0.5/33", "node-1", "::ffff:10.0.0.5/24"} {
		for _, b := range []*model.NodeBGPSpec{{IPv4Address: text}, {IPv6Address: text}} {
			family := model.IPv4
			if b.IPv4Address == "" {
				family = model.IPv6
			}
			node := &model.Node{Spec: model.NodeSpec{BGP: b}}
			node.Name = "n1"
			valid := len(validation.Validate(model.ResourceKey(model.KindNode, "n1"), node)) == 0
			if readable := b.Address(family).IsValid(); readable != valid {
				t.Errorf("%q as IPv%d: readable %t, valid %t", text, family, readable, valid)
			}
		}
	}
}
