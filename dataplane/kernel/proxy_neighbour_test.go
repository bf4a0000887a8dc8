package kernel

import (
	"slices"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

// Entries are read back as they were set, and those of other programs stay as they are.
func TestProxyNeighbours(t *testing.T) {
	ns, c := testNS(t)
	nettest.Run(t, "ip", "-n", ns, "link", "add", "eth0", "up", "type", "veth", "peer", "name", "eth0p")
	link := linkIndex(t, c, "eth0")
	nettest.Run(t, "ip", "-n", ns, "neigh", "add", "proxy", "10.0.0.9", "dev", "eth0")
	nettest.Run(t, "ip", "-n", ns, "neigh", "add", "10.0.0.8", "lladdr", "0a:00:00:00:00:08", "dev", "eth0")
	compare := func(want ...ProxyNeighbour) {
		t.Helper()
		have, err := c.ListProxyNeighbours()
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(have, func(a, b ProxyNeighbour) int { return a.Address.Compare(b.Address) })
		if !slices.Equal(have, want) {
			t.Errorf("have %+v\nwant %+v", have, want)
		}
	}
	foreign := ProxyNeighbour{Link: link, Address: addr("10.0.0.9")}
	all := []string{"10.0.0.1", "10.0.0.9", "fd00::1"}
	for range 2 {
		for _, a := range all {
			if err := c.SetProxyNeighbour(link, addr(a)); err != nil {
				t.Fatal(err)
			}
		}
	}
	compare(ProxyNeighbour{Link: link, Address: addr("10.0.0.1"), Own: true}, foreign,
		ProxyNeighbour{Link: link, Address: addr("fd00::1"), Own: true})
	for range 2 {
		for _, a := range all {
			if err := c.RemoveProxyNeighbour(link, addr(a)); err != nil {
				t.Fatal(err)
			}
		}
	}
	compare(foreign)
	if err := c.RemoveProxyNeighbour(link+1000, addr("10.0.0.1")); err != nil {
		t.Errorf("an interface that is gone: %v", err)
	}
}
