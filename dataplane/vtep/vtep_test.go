package vtep

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

func node(v4, tunnel string) *model.Node {
	return &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: v4}, IPv4VXLANTunnelAddr: tunnel}}
}

// The hardware addresses are those that Calico gives: others compute them from the name alone.
func TestMAC(t *testing.T) {
	if got := MAC("node1", model.IPv4); got != "66:f9:37:c3:7e:94" {
		t.Error(got)
	}
	if got := MAC("node1", model.IPv6); got != "66:0f:35:f2:60:df" {
		t.Error(got)
	}
}

func TestOf(t *testing.T) {
	withMAC := func(mac string) *model.Node {
		n := node("10.0.0.1/24", "10.244.1.1")
		n.Spec.VXLANTunnelMACAddr = mac
		return n
	}
	six := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv6Address: "fd00::1"},
		IPv6VXLANTunnelAddr: "fd10::1", VXLANTunnelMACAddrV6: "66:00:00:00:00:07"}}
	const noInterface = "which is none of an interface. Remove it from the Node (vxlanTunnelMACAddr): the " +
		"address then follows from the node's name"
	for _, c := range []struct {
		rule   string
		node   *model.Node
		family model.Family
		want   string // "address tunnel mac", or the error
	}{
		{"computed hardware address", node("10.0.0.1/24", "10.244.1.1"), model.IPv4,
			"10.0.0.1 10.244.1.1 66:f9:37:c3:7e:94"},
		{"a published one", withMAC("66:AA:00:00:00:01"), model.IPv4, "10.0.0.1 10.244.1.1 66:aa:00:00:00:01"},
		{"IPv6", six, model.IPv6, "fd00::1 fd10::1 66:00:00:00:00:07"},
		{"no IPv4", six, model.IPv4, "node node1 has no IPv4 address in its Node (spec.bgp)"},
		{"no tunnel address", node("10.0.0.1/24", ""), model.IPv4,
			"node node1 has published no address of vxlan.calico"},
		{"a malformed one", node("10.0.0.1/24", "x"), model.IPv4,
			"node node1 has published no address of vxlan.calico"},
		{"its own address", node("10.0.0.1/24", "10.0.0.1"), model.IPv4,
			"node node1 has published its own address 10.0.0.1 as that of vxlan.calico. Its manxd or calico-node " +
				"publishes another one while it runs"},
		{"a group's address", node("10.0.0.1/24", "224.0.0.5"), model.IPv4,
			"node node1 has published 224.0.0.5 as that of vxlan.calico, which is no host's. Its manxd or " +
				"calico-node publishes another one while it runs"},
		{"a loopback address", node("127.0.0.1/8", "10.244.1.1"), model.IPv4,
			"node node1 has the address 127.0.0.1 in its Node (spec.bgp), which is no host's"},
		{"all hosts of the link", node("255.255.255.255/0", "10.244.1.1"), model.IPv4, "which is no host's"},
		{"a link-local address", node("169.254.1.1/16", "10.244.1.1"), model.IPv4,
			"169.254.1.1 10.244.1.1 66:f9:37:c3:7e:94"},
		{"a group's hardware address", withMAC("01:00:5e:00:00:01"), model.IPv4, noInterface},
		{"none", withMAC("00:00:00:00:00:00"), model.IPv4, noInterface},
		{"nonsense", withMAC("x"), model.IPv4, noInterface},
		{"InfiniBand", withMAC("00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"), model.IPv4,
			noInterface},
	} {
		v, err := Of("node1", c.node, c.family)
		got := strings.Join([]string{v.Address.String(), v.Tunnel.String(), v.MAC}, " ")
		if err != nil {
			got = err.Error()
		}
		if !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.rule, got, c.want)
		}
	}
}

// No two nodes share an address: the older one has it, whichever order they come in.
func TestConflicts(t *testing.T) {
	old, young := node("10.0.0.1/24", "10.244.1.1"), node("10.0.0.2/24", "10.244.1.1")
	old.CreationTimestamp = metav1.Time{Time: time.Unix(1e9, 0)}
	young.CreationTimestamp = metav1.Time{Time: time.Unix(2e9, 0)}
	for _, order := range [][]string{{"z-old", "a-young"}, {"a-young", "z-old"}} {
		table := NewTable(model.IPv4)
		for _, name := range order {
			if !table.Set(name, map[string]*model.Node{"z-old": old, "a-young": young}[name]) {
				t.Errorf("%s is no change", name)
			}
		}
		if v, err := table.Of("z-old"); err != nil || v.Tunnel != netip.MustParseAddr("10.244.1.1") {
			t.Errorf("%v: the older one: %+v %v", order, v, err)
		}
		_, err := table.At(netip.MustParseAddr("10.0.0.2"))
		if err == nil || !strings.Contains(err.Error(), "nodes z-old and a-young both claim 10.244.1.1") {
			t.Errorf("%v: the younger one: %v", order, err)
		}
		if refused := table.Refused(); len(refused) != 1 || refused["a-young"] == nil {
			t.Errorf("refused: %v", refused)
		}
		table.Set("z-old", nil)
		n := 0
		for v := range table.All() {
			if n++; v.Node != "a-young" {
				t.Errorf("there is %+v", v)
			}
		}
		if n != 1 {
			t.Errorf("%d are left", n)
		}
	}
}

// A node that publishes the address of another as its tunnel address is not found by that address.
func TestAt(t *testing.T) {
	table := NewTable(model.IPv4)
	table.Set("n1", node("10.0.0.1/24", "10.244.1.1"))
	if v, err := table.At(netip.MustParseAddr("10.0.0.1")); err != nil || v.Node != "n1" {
		t.Errorf("%+v %v", v, err)
	}
	for _, a := range []string{"10.244.1.1", "10.0.0.9"} {
		if v, err := table.At(netip.MustParseAddr(a)); err == nil {
			t.Errorf("%s: %+v", a, v)
		}
	}
	if a := table.Address("n1"); a != netip.MustParseAddr("10.0.0.1") || table.Address("n9").IsValid() {
		t.Error(a)
	}
	if same := node("10.0.0.1/24", "10.244.1.1"); table.Set("n1", same) {
		t.Error("an equal node is a change")
	}
}

// No age gives a node the address of another for its tunnel: it would take the other's VTEP away.
func TestTunnelAtAnothersAddress(t *testing.T) {
	old, young := node("10.0.0.1/24", "10.0.0.2"), node("10.0.0.2/24", "10.244.1.1")
	old.CreationTimestamp = metav1.Time{Time: time.Unix(1e9, 0)}
	young.CreationTimestamp = metav1.Time{Time: time.Unix(2e9, 0)}
	table := NewTable(model.IPv4)
	table.Set("a-old", old)
	table.Set("z-young", young)
	if v, err := table.At(netip.MustParseAddr("10.0.0.2")); err != nil || v.Node != "z-young" {
		t.Errorf("%+v %v", v, err)
	}
	want := "node a-old has published 10.0.0.2, which is the address of node z-young, as its tunnel address"
	if _, err := table.Of("a-old"); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// The hardware address that follows from a node's name is that node's, however old another one is that publishes it.
func TestNobodyTakesAComputedMAC(t *testing.T) {
	old, young := node("10.0.0.1/24", "10.244.1.1"), node("10.0.0.2/24", "10.244.1.2")
	old.CreationTimestamp = metav1.Time{Time: time.Unix(1e9, 0)}
	young.CreationTimestamp = metav1.Time{Time: time.Unix(2e9, 0)}
	old.Spec.VXLANTunnelMACAddr = MAC("young", model.IPv4)
	table := NewTable(model.IPv4)
	table.Set("old", old)
	table.Set("young", young)
	if _, err := table.Of("young"); err != nil {
		t.Error(err)
	}
	want := "node old has published " + MAC("young", model.IPv4) +
		", which follows from the name of node young, as its hardware address"
	if _, err := table.Of("old"); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
