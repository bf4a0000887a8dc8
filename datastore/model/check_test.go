package model

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestBlockRules(t *testing.T) {
	h := "h"
	sound := func() *Block {
		return &Block{
			CIDR:        netip.MustParsePrefix("10.0.0.0/30"),
			Allocations: []*int{new(int), nil, nil, nil},
			Unallocated: []int{3, 1, 2},
			Attributes:  []BlockAttribute{{HandleID: &h}},
		}
	}
	two := 2
	for _, c := range []struct {
		rule   string
		change func(*Block)
		want   []string
	}{
		{"a sound block", func(*Block) {}, nil},
		{"an empty block has attributes null", func(b *Block) {
			b.Allocations[0], b.Unallocated, b.Attributes = nil, []int{0, 1, 2, 3}, nil
		}, nil},
		{"no CIDR", func(b *Block) { b.CIDR = netip.Prefix{} }, []string{"cidr"}},
		{"host bits", func(b *Block) { b.CIDR = netip.MustParsePrefix("10.0.0.1/30") }, []string{"cidr"}},
		{"a whole network", func(b *Block) { b.CIDR = netip.MustParsePrefix("::/0") }, []string{"cidr"}},
		{"one entry for each address", func(b *Block) { b.Allocations = b.Allocations[:3] }, []string{"allocations"}},
		{"an allocation has an attribute", func(b *Block) { b.Allocations[1] = &two }, []string{"allocations[1]"}},
		{"a negative index", func(b *Block) { n := -1; b.Allocations[0] = &n }, []string{"allocations[0]"}},
		{"an attribute has an allocation", func(b *Block) { b.Attributes = append(b.Attributes, BlockAttribute{}) },
			[]string{"attributes[1]"}},
		{"a free address is in range", func(b *Block) { b.Unallocated[0] = 4 }, []string{"unallocated[0]"}},
		{"a free address is there once", func(b *Block) { b.Unallocated[0] = 1 }, []string{"unallocated[1]"}},
		{"a free address is not allocated", func(b *Block) { b.Unallocated[0] = 0 }, []string{"unallocated[0]"}},
		{"no address is lost", func(b *Block) { b.Unallocated = b.Unallocated[1:] }, []string{"unallocated"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			b := sound()
			c.change(b)
			var fields []string
			for _, e := range CheckBlock(b) {
				fields = append(fields, e.Field)
			}
			if !slices.Equal(fields, c.want) {
				t.Errorf("%v; want %v", CheckBlock(b), c.want)
			}
		})
	}
}

func TestPeerAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1":               "10.0.0.1:0",
		"10.0.0.1:179":           "10.0.0.1:179",
		"fd00::1":                "[fd00::1]:0",
		"[fd00::1]:1179":         "[fd00::1]:1179",
		"FD00:0::1":              "[fd00::1]:0",
		"::ffff:10.0.0.1":        "10.0.0.1:0",
		"[::ffff:10.0.0.1]:1179": "10.0.0.1:1179",
		"":                       "", "x": "", "10.0.0.1:": "", "10.0.0.1:0": "", "10.0.0.1:65536": "", "[fd00::1]": "",
		"fe80::1%eth0": "", "[fe80::1%eth0]:179": "", "10.0.0.0/24": "",
	} {
		got, err := ParsePeerIP(in)
		if (err == nil) != (want != "") || (err == nil && got.String() != want) {
			t.Errorf("%q gave %v, %v", in, got, err)
		}
	}
}

func TestAllocatablePools(t *testing.T) {
	condition := func(typ, status string) *IPPoolStatus {
		return &IPPoolStatus{Conditions: []metav1.Condition{{Type: typ, Status: metav1.ConditionStatus(status)}}}
	}
	for _, c := range []struct {
		rule string
		pool IPPool
		want bool
	}{
		{"ordinary", IPPool{}, true},
		{"disabled", IPPool{Spec: IPPoolSpec{Disabled: true}}, false},
		{"being deleted", IPPool{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}, false},
		{"said to be unusable", IPPool{Status: condition("Allocatable", "False")}, false},
		{"said to be usable", IPPool{Status: condition("Allocatable", "True")}, true},
		{"another condition", IPPool{Status: condition("Other", "False")}, true},
	} {
		if got := c.pool.Allocatable(); got != c.want {
			t.Errorf("%s: %v", c.rule, got)
		}
	}
}

func TestPoolOverlapNamesBothPools(t *testing.T) {
	pool := func(name, cidr string) *Object {
		return NewObject(ResourceKey(KindIPPool, name), &IPPool{Spec: IPPoolSpec{CIDR: cidr}})
	}
	others := NewSet(pool("a", "10.0.0.0/16"), pool("b", "10.1.0.0/16"), pool("six", "fd00::/48"))
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
		for _, e := range CheckPoolOverlap(o.Key, o.Value.(*IPPool), others) {
			rules = append(rules, e.Rule)
		}
		if !reflect.DeepEqual(rules, c.want) {
			t.Errorf("%s %s: %q", c.name, c.cidr, rules)
		}
	}
}

func TestMessagesNameFieldValueAndRule(t *testing.T) {
	err := &InvalidError{Key: ResourceKey(KindBGPPeer, "p"),
		Fields: []FieldError{{"spec.peerIP", "x", "must be an IP address"}, {"spec.asNumber", 0, "is required"}}}
	const want = `BGPPeer p is invalid: spec.peerIP = "x": must be an IP address; spec.asNumber = "0": is required`
	if got := fmt.Sprint(err); got != want {
		t.Errorf("got %s", got)
	}
}
