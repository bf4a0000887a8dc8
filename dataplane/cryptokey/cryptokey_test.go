package cryptokey

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/kernel/wireguard"
	"github.com/manxnet/manx/datastore/model"
)

func keyOf(text string) wireguard.Key { return sha256.Sum256([]byte(text)) }

// node has an address of both families, was created at a second, and publishes the keys of a name; empty: none.
func node(i int, created int64, key string) *model.Node {
	n := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: fmt.Sprintf("192.0.2.%d/24", i),
		IPv6Address: fmt.Sprintf("fd01::%d/64", i)}}}
	n.CreationTimestamp = metav1.Unix(created, 0)
	if key != "" {
		n.Status.WireguardPublicKey, n.Status.WireguardPublicKeyV6 = keyOf(key).String(), keyOf(key+"6").String()
	}
	return n
}

func everywhere(netip.Prefix) bool { return true }

func nothing(netip.Prefix, string) string { return "" }

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// newInput is node n1, with a peer n2, n3 without a key, and blocks of all of them.
func newInput() Input {
	t := NewTable(model.IPv4)
	t.Set("n1", node(1, 1, "k1"))
	t.Set("n2", node(2, 2, "k2"))
	t.Set("n3", node(3, 3, ""))
	return Input{InPool: everywhere, Refuse: nothing, Node: "n1", OwnKey: keyOf("k1"), Nodes: t,
		Places: map[netip.Prefix]string{
			prefix("10.244.1.0/26"): "n1", prefix("10.244.2.0/26"): "n2", prefix("10.244.3.0/26"): "n3",
			prefix("10.244.2.9/32"): "n3", prefix("10.244.1.9/32"): "n2", prefix("10.244.2.7/32"): "n1"}}
}

func TestDecide(t *testing.T) {
	in := newInput()
	in.Local = []netip.Prefix{prefix("10.244.1.5/32"), prefix("10.244.9.5/32"), prefix("10.244.1.9/32")}
	p := Decide(in)
	k2 := keyOf("k2")
	want := map[netip.Prefix]Way{
		prefix("10.244.1.0/26"): {Node: "n1"}, prefix("10.244.2.7/32"): {Node: "n1"},
		prefix("10.244.2.0/26"): {Node: "n2", Peer: k2}, prefix("10.244.3.0/26"): {Node: "n3"},
		prefix("10.244.2.9/32"): {Node: "n3"},
		prefix("10.244.9.5/32"): {Node: "n1"}, // a workload here, of no block here
		prefix("10.244.1.9/32"): {Node: "n1"}, // a workload here wins over the block
	}
	if !maps.Equal(p.Ways, want) {
		t.Errorf("the ways are %v, want %v", p.Ways, want)
	}
	if n := p.Peers["n2"]; len(p.Peers) != 1 || n.Key != k2 || n.Address != netip.MustParseAddr("192.0.2.2") {
		t.Errorf("the peers are %v", p.Peers)
	}
	if want := map[netip.Prefix]wireguard.Key{prefix("192.0.2.2/32"): k2}; !maps.Equal(p.Hosts, want) {
		t.Errorf("the hosts are %v", p.Hosts)
	}
	if len(p.Plain) != 1 || p.Plain["n3"] != "n3 publishes no key" {
		t.Errorf("plain: %v", p.Plain)
	}
}

// Each node that cannot be a peer has a reason, and nothing else changes.
func TestReasons(t *testing.T) {
	for _, c := range []struct {
		rule string
		set  func(Input)
		node string
		want string
	}{
		{"a bad key", func(in Input) {
			n := node(4, 4, "")
			n.Status.WireguardPublicKey = "bm8ga2V5"
			in.Nodes.Set("n4", n)
		}, "n4", `n4 publishes a bad key: "bm8ga2V5" is no public key of WireGuard, which is 32 bytes in base64`},
		{"a key of zeros", func(in Input) {
			n := node(4, 4, "")
			n.Status.WireguardPublicKey = strings.Repeat("A", 43) + "="
			in.Nodes.Set("n4", n)
		}, "n4", `n4 publishes a bad key: "` + strings.Repeat("A", 43) + `=" is no public key of WireGuard, which is ` +
			`32 bytes in base64`},
		{"no address", func(in Input) {
			n := node(4, 4, "k4")
			n.Spec.BGP = nil
			in.Nodes.Set("n4", n)
		}, "n4", "n4 has no IPv4 address in its Node"},
		{"no address of a host", func(in Input) {
			n := node(4, 4, "k4")
			n.Spec.BGP.IPv4Address = "224.0.0.5"
			in.Nodes.Set("n4", n)
		}, "n4", "n4 has the address 224.0.0.5 in its Node, which is no host's"},
		{"the key of an older node", func(in Input) { in.Nodes.Set("n4", node(4, 4, "k2")) }, "n4",
			"n2 and n4 publish the same key: the older one, n2, has it"},
		{"the key of a younger node", func(in Input) { in.Nodes.Set("n4", node(4, 1, "k2")) }, "n2",
			"n4 and n2 publish the same key: the older one, n4, has it"},
		{"the key of this host", func(in Input) { in.Nodes.Set("n4", node(4, 0, "k1")) }, "n4",
			"n4 publishes the key of this host, n1"},
	} {
		in := newInput()
		c.set(in)
		p := Decide(in)
		if got := p.Plain[c.node]; got != c.want {
			t.Errorf("%s: %q, want %q", c.rule, got, c.want)
		}
		if _, peer := p.Peers[c.node]; peer || len(p.Peers)+len(p.Plain) != len(in.Nodes.nodes)-1 {
			t.Errorf("%s: the peers are %v, and plain %v", c.rule, p.Peers, p.Plain)
		}
	}
	in := newInput()
	n := node(4, 4, "k4")
	n.Spec.BGP, n.Spec.Addresses = nil, []model.NodeAddress{{Address: "fd01::4", Type: "InternalIP"},
		{Address: "203.0.113.4", Type: "ExternalIP"}, {Address: "192.0.2.4", Type: "InternalIP"}}
	in.Nodes.Set("n4", n)
	if p := Decide(in); p.Peers["n4"].Address != netip.MustParseAddr("192.0.2.4") {
		t.Errorf("without spec.bgp: %v, %v", p.Peers, p.Plain)
	}
}

// What another node claims in IPAM never leads the packets that the tunnel itself needs into the tunnel.
func TestRefusedPrefixes(t *testing.T) {
	in := newInput()
	in.Places = map[netip.Prefix]string{prefix("192.0.2.0/26"): "n2", prefix("192.0.2.3/32"): "n2",
		prefix("10.9.0.0/26"): "n2", prefix("10.244.2.0/26"): "n2"}
	in.InPool = func(p netip.Prefix) bool { return p != prefix("10.9.0.0/26") }
	p := Decide(in)
	want := map[netip.Prefix]string{prefix("192.0.2.0/26"): "192.0.2.1 is the address of this host",
		prefix("192.0.2.3/32"): "192.0.2.3 is the address of a node", prefix("10.9.0.0/26"): "it is in no IP pool"}
	if !maps.Equal(p.Refused, want) || len(p.Ways) != 1 {
		t.Errorf("refused %v, ways %v", p.Refused, p.Ways)
	}
}

// Any order of changes ends as a full read, and a change that is not reported changes no plan.
func TestTableFollowsNodes(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		table, nodes := NewTable(model.IPv6), map[string]*model.Node{}
		in := Input{InPool: everywhere, Refuse: nothing, Node: "n0", Nodes: table, Places: map[netip.Prefix]string{}}
		for i := range 5 {
			in.Places[prefix(fmt.Sprintf("fd10::%d00/120", i+1))] = fmt.Sprintf("n%d", i)
		}
		in.Places[prefix("fd01::3/128")] = "n1"
		for range 60 {
			before := Decide(in)
			i := r.IntN(5)
			name := fmt.Sprintf("n%d", i)
			n := node(1+r.IntN(3), int64(r.IntN(3)), []string{"", "a", "b", "c"}[r.IntN(4)])
			if nodes[name] = n; r.IntN(4) == 0 {
				n = nil
				delete(nodes, name)
			}
			changed := table.Set(name, n)
			after := Decide(in)
			if !changed && !reflect.DeepEqual(before, after) {
				t.Fatalf("seed %d: a change of %s is not reported", seed, name)
			}
			fresh := in
			fresh.Nodes = NewTable(model.IPv6)
			for name, n := range nodes {
				fresh.Nodes.Set(name, n)
			}
			if !reflect.DeepEqual(after, Decide(fresh)) {
				t.Fatalf("seed %d: %+v, read at once %+v", seed, after, Decide(fresh))
			}
			seen := map[wireguard.Key]string{}
			for _, p := range after.Peers {
				if other, twice := seen[p.Key]; twice || p.Name == "n0" {
					t.Fatalf("seed %d: %s and %s have one key", seed, p.Name, other)
				}
				seen[p.Key] = p.Name
			}
		}
	}
}

// BenchmarkDecide plans for 5,000 nodes with two blocks each.
func BenchmarkDecide(b *testing.B) {
	in := Input{InPool: everywhere, Refuse: nothing, Node: "n0", Nodes: NewTable(model.IPv4),
		Places: map[netip.Prefix]string{}}
	for i := range 5000 {
		n := node(1, time.Now().Unix(), fmt.Sprint(i))
		n.Spec.BGP.IPv4Address = netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}).String()
		in.Nodes.Set(fmt.Sprintf("n%d", i), n)
		for half := range 2 {
			a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(half) * 128})
			in.Places[netip.PrefixFrom(a, 26)] = fmt.Sprintf("n%d", i)
		}
	}
	for b.Loop() {
		Decide(in)
	}
}

func TestCovered(t *testing.T) {
	covered := Plan{Ways: map[netip.Prefix]Way{prefix("fd10::/122"): {}, prefix("fd10::5/128"): {},
		prefix("fd10::40/122"): {}}}.Covered()
	for p, want := range map[string]bool{"fd10::/122": false, "fd10::5/128": true, "fd10::9/128": true,
		"fd10::80/122": false, "fd10::80/128": false, "fd10::/64": false} {
		if covered(prefix(p)) != want {
			t.Errorf("%s: %t", p, !want)
		}
	}
}

// The own address that a node publishes lets it send from there alone if it is no pod's, and nothing that this host
// needs.
func TestHostsOfPeers(t *testing.T) {
	for _, c := range []struct {
		rule, address string
		refuse        func(netip.Prefix, string) string
		want          bool
	}{
		{"a host", "192.0.2.4", nothing, true},
		{"a pod of another node", "10.244.3.9", nothing, false},
		{"a pod of this host", "10.244.1.5", nothing, false},
		{"another node's", "192.0.2.2", nothing, false},
		{"a gateway", "192.0.2.254", func(netip.Prefix, string) string { return "a gateway" }, false},
	} {
		in := newInput()
		in.Refuse = c.refuse
		n := node(4, 4, "k4")
		n.Spec.BGP.IPv4Address = c.address + "/24"
		in.Nodes.Set("n4", n)
		if key, has := Decide(in).Hosts[prefix(c.address+"/32")]; (has && key == keyOf("k4")) != c.want {
			t.Errorf("%s: %t", c.rule, has)
		}
	}
}
