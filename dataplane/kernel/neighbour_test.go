package kernel

import (
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

// Entries of each kind are read back as they were set. Those of other programs stay.
func TestNeighbours(t *testing.T) {
	ns, c := testNS(t)
	far := nettest.Namespace(t)
	nettest.Run(t, "ip", "-n", ns, "link", "add", "cali1", "up", "type", "veth", "peer", "name", "eth0", "address",
		"0a:00:00:00:00:01", "netns", far)
	link := linkIndex(t, c, "cali1")
	nettest.Run(t, "ip", "-n", ns, "neigh", "add", "10.0.0.9", "lladdr", "0a:00:00:00:00:09", "dev", "cali1")
	nettest.Run(t, "ip", "-n", ns, "neigh", "add", "10.0.0.8", "lladdr", "0a:00:00:00:00:08", "nud", "reachable", "dev",
		"cali1")
	group, groupMAC := SolicitedNode(addr("fd00::12:3456"))
	set := []Neighbour{
		{Link: link, Address: addr("10.0.0.1"), MAC: "0a:00:00:00:00:01", Kind: Permanent},
		{Link: link, Address: addr("fd00::1"), MAC: "0a:00:00:00:00:01", Kind: Permanent},
		{Link: link, Address: group, MAC: groupMAC, Kind: Permanent},
		{Link: link, Address: addr("10.0.0.8"), Kind: Resolved}, // keeps what is known
		{Link: link, Address: addr("fd00::2"), Kind: Resolved},
		{Link: link, Address: addr("10.0.0.9"), Kind: Resolved}, // belongs to another program
	}
	for range 2 {
		for _, n := range set {
			if err := c.SetNeighbour(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []Neighbour{
		{Link: link, Address: addr("10.0.0.1"), MAC: "0a:00:00:00:00:01", Kind: Permanent, Own: true},
		{Link: link, Address: addr("10.0.0.8"), MAC: "0a:00:00:00:00:08", Kind: Resolved, Own: true},
		{Link: link, Address: addr("10.0.0.9"), MAC: "0a:00:00:00:00:09", Kind: Permanent},
		{Link: link, Address: addr("fd00::1"), MAC: "0a:00:00:00:00:01", Kind: Permanent, Own: true},
		{Link: link, Address: addr("fd00::2"), Kind: Resolved, Own: true},
		{Link: link, Address: addr("ff02::1:ff12:3456"), MAC: "33:33:ff:12:34:56", Kind: Permanent, Own: true},
	}
	list := func() []Neighbour {
		all, err := c.ListNeighbours()
		if err != nil {
			t.Fatal(err)
		}
		all = slices.DeleteFunc(all, func(n Neighbour) bool { return n.Link != link })
		slices.SortFunc(all, func(a, b Neighbour) int { return a.Address.Compare(b.Address) })
		return all
	}
	if have := list(); !slices.Equal(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
	for range 2 {
		for _, n := range set {
			if err := c.RemoveNeighbour(link, n.Address); err != nil {
				t.Fatal(err)
			}
		}
	}
	if have := list(); !slices.Equal(have, want[2:3]) {
		t.Errorf("after removal: %+v", have)
	}
	if err := c.RemoveNeighbour(999, addr("10.0.0.1")); err != nil {
		t.Errorf("an entry of an interface that is gone: %v", err)
	}
	if err := c.SetNeighbour(Neighbour{Link: 999, Address: addr("10.0.0.1"), Kind: Resolved}); err == nil {
		t.Error("an entry on no interface")
	}
}

// The far end of a veth is read from this namespace.
func TestFarEnd(t *testing.T) {
	ns, c := testNS(t)
	far := nettest.Namespace(t)
	nettest.Run(t, "ip", "-n", ns, "link", "add", "cali1", "up", "type", "veth", "peer", "name", "eth0", "address",
		"0a:00:00:00:00:01", "netns", far)
	link := linkIndex(t, c, "cali1")
	nettest.Run(t, "ip", "-n", far, "addr", "add", "10.0.0.1/32", "dev", "eth0")
	nettest.Run(t, "ip", "-n", far, "addr", "add", "fd00::1/128", "dev", "eth0", "nodad")
	nettest.Run(t, "ip", "-n", far, "addr", "add", "10.0.0.2/32", "dev", "lo")
	e, err := c.FarEnd(link)
	if err != nil {
		t.Fatal(err)
	}
	if e.MAC != "0a:00:00:00:00:01" || e.Port || !e.Has(addr("10.0.0.1")) || !e.Has(addr("fd00::1")) ||
		e.Has(addr("10.0.0.2")) {
		t.Errorf("the end is %+v", e)
	}
	nettest.Run(t, "ip", "-n", far, "link", "add", "br0", "type", "bridge")
	nettest.Run(t, "ip", "-n", far, "link", "set", "eth0", "master", "br0", "address", "0a:00:00:00:00:02")
	if e, err := c.FarEnd(link); err != nil || !e.Port || e.MAC != "0a:00:00:00:00:02" {
		t.Errorf("as a port of a bridge it is %+v, %v", e, err)
	}
	for _, index := range []int{1, 999} { // lo, and none
		if e, err := c.FarEnd(index); err == nil {
			t.Errorf("interface %d has the far end %+v", index, e)
		}
	}
}

func TestOverflowsAreCounted(t *testing.T) {
	const stat = "entries  allocs table_fulls \n00000004 0000b847 0000000a \n00000004 0000adb2 00000010 \n"
	if n := tableFulls(stat); n != 26 {
		t.Errorf("%d", n)
	}
	if n := tableFulls(strings.ReplaceAll(stat, "table_fulls", "other")); n != 0 {
		t.Errorf("without the column: %d", n)
	}
	c, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.NeighbourOverflows(); err != nil { // tests run in the host's namespace
		t.Error(err)
	}
}
