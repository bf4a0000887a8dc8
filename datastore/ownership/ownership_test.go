package ownership

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

func TestRefuse(t *testing.T) {
	s := Set{
		Addresses: Addresses{netip.MustParseAddr("10.0.0.1"): 1, netip.MustParseAddr("fd00::1"): 2},
		Blocks:    NewBlocks(prefixes("10.244.1.0/26", "10.244.2.0/24", "10.244.9.9/32", "fd10::/122")...),
		Originated: map[netip.Prefix]bool{
			netip.MustParsePrefix("10.244.1.0/26"): true, netip.MustParsePrefix("10.244.7.7/32"): true},
	}
	for text, want := range map[string]string{
		"10.244.1.0/26":  "originates the prefix itself",
		"10.244.7.7/32":  "originates the prefix itself",
		"10.244.1.0/28":  "10.244.1.0/28 is in block 10.244.1.0/26, which belongs to this node",
		"10.244.2.0/24":  "is in block 10.244.2.0/24", // for example one that is being released
		"10.244.2.64/26": "is in block 10.244.2.0/24",
		"fd10::10/124":   "is in block fd10::/122",
		"10.0.0.1/32":    "10.0.0.1 is an address of this node",
		"fd00::1/128":    "fd00::1 is an address of this node",
		"10.244.1.5/32":  "", // borrowed
		"10.244.9.9/32":  "", // a block of one address
		"fd10::5/128":    "",
		"10.244.0.0/16":  "",
		"10.244.3.0/26":  "",
		"10.0.0.0/24":    "",
		"0.0.0.0/0":      "",
		"::/0":           "",
	} {
		got := s.Refuse(netip.MustParsePrefix(text))
		if got == "" != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if got := new(Set).Refuse(netip.MustParsePrefix("10.244.1.0/26")); got != "" {
		t.Errorf("a node without anything: %q", got)
	}
}

func TestAddresses(t *testing.T) {
	own := Addresses{}
	for text, interfaces := range map[string]int{"10.0.0.1": 1, "fe80::1": 1, "10.0.0.2": 0} {
		own[netip.MustParseAddr(text)] = interfaces
	}
	for text, want := range map[string]bool{
		"10.0.0.1": true, "::ffff:10.0.0.1": true, "fe80::1%eth0": true, "10.0.0.2": false, "10.0.0.3": false,
	} {
		if own.Has(netip.MustParseAddr(text)) != want {
			t.Errorf("%s: %t, want %t", text, !want, want)
		}
	}
	if own.Has(netip.Addr{}) || Addresses(nil).Has(netip.MustParseAddr("10.0.0.1")) {
		t.Error("what is no address belongs to the node, or a node without addresses has one")
	}
}

func TestBlockOf(t *testing.T) {
	key := func(name string) model.Key { return model.Key{Kind: model.KindBlockAffinity, Name: name} }
	const own = "host/n1/10.244.1.0/26"
	for _, c := range []struct {
		rule, key       string
		affinity        *model.BlockAffinity
		have, releasing bool
	}{
		{"as old versions wrote it", own, &model.BlockAffinity{}, true, false},
		{"confirmed", own, &model.BlockAffinity{State: model.StateConfirmed}, true, false},
		{"being released", own, &model.BlockAffinity{State: model.StatePendingDeletion}, true, true},
		{"pending", own, &model.BlockAffinity{State: model.StatePending}, false, false},
		{"unknown", own, &model.BlockAffinity{State: "odd"}, false, false},
		{"deleted", own, &model.BlockAffinity{State: model.StateConfirmed, Deleted: true}, false, false},
		{"gone", own, nil, false, false},
		{"of no node", "virtual/load-balancer/10.244.1.0/26", &model.BlockAffinity{State: model.StateConfirmed},
			false, false},
		{"no affinity", "nonsense", &model.BlockAffinity{State: model.StateConfirmed}, false, false},
	} {
		want := Block{}
		if c.have {
			want = Block{Node: "n1", CIDR: netip.MustParsePrefix("10.244.1.0/26"), Releasing: c.releasing}
		}
		if b, ok := BlockOf(key(c.key), c.affinity); ok != c.have || b != want {
			t.Errorf("%s: %+v %t, want %+v %t", c.rule, b, ok, want, c.have)
		}
	}
}
