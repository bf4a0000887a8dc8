package dataplane

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/datastore/model"
)

// The addresses that workloads peer with are added to their interfaces, restored when another program removes them, and
// removed when no longer desired. Other addresses of the interfaces stay.
func TestAddressesTowardsWorkloadsThatSpeakBGP(t *testing.T) {
	h := newHost(t)
	h.pod("cali1")
	h.ip("addr add 169.254.9.9/32 dev cali1")
	a, _ := h.agent()
	a.set(model.NewSet(nodeObject("node-1", "10.1.0.5/24", "fd01::5/64"),
		endpointObject("a", "node-1", "cali1", "10.244.1.7/32", "fd10::1:7/128")))
	want := func(dev string, addresses ...string) {
		t.Helper()
		waitFor(t, "the addresses of "+dev+": "+strings.Join(addresses, " "), func() bool {
			out := h.ip("-o addr show dev " + dev)
			n := 0
			for _, text := range addresses {
				if strings.Contains(out, " "+text+" ") {
					n++
				}
			}
			return n == len(addresses) && strings.Count(out, "169.254.1.1/32")+
				strings.Count(out, "fd00:1::1/128") == n-1
		})
	}
	both := []hoststate.Peering{{Interface: "cali1", Address: netip.MustParseAddr("169.254.1.1")},
		{Interface: "cali1", Address: netip.MustParseAddr("fd00:1::1")},
		{Interface: "cali2", Address: netip.MustParseAddr("169.254.1.1")}}
	a.peering(both)
	want("cali1", "169.254.9.9/32", "169.254.1.1/32", "fd00:1::1/128")
	h.ip("addr del 169.254.1.1/32 dev cali1")
	want("cali1", "169.254.9.9/32", "169.254.1.1/32", "fd00:1::1/128")
	h.pod("cali2") // later
	h.ip("addr add 169.254.9.9/32 dev cali2")
	want("cali2", "169.254.9.9/32", "169.254.1.1/32")
	a.peering(both[2:])
	want("cali1", "169.254.9.9/32")
	want("cali2", "169.254.9.9/32", "169.254.1.1/32")
	a.Resync()
	settle(t, a)
	h.ip("link del cali2")
	h.pod("cali2")
	h.ip("addr add 169.254.9.9/32 dev cali2")
	want("cali2", "169.254.9.9/32", "169.254.1.1/32")
	a.peering(nil)
	want("cali2", "169.254.9.9/32")
	settle(t, a)
	if s := a.Status(); s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}
