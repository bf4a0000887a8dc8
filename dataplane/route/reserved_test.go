package route

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/ippool"
)

// A workload gets no route for an address of the host's correspondents, whoever wrote that it has it.
func TestReservedAddresses(t *testing.T) {
	f := testKernel()
	target, _ := testTarget(f)
	const special = "no workload can have"
	claims := map[string]string{
		"10.1.0.5": "an address of this host", "fd01::5": "an address of this host",
		"10.246.1.1": "an address of this host", "10.1.0.1": "a gateway of this host",
		"192.0.2.9": "a BGP peer", "10.1.0.77": "in subnet 10.1.0.0/24 of this host",
		"10.1.0.9": "a node of the cluster", "10.96.0.1": "the Kubernetes API",
		"169.254.169.254": special, "127.0.0.53": special, "0.0.0.0": special, "0.1.2.3": special,
		"224.0.0.5": special, "255.255.255.255": special, "::1": special, "fe80::1": special, "ff02::1": special,
	}
	c := testConfig()
	c.IsNode = func(a netip.Addr) bool { return a == addr("10.1.0.9") }
	target.SetServers(map[netip.Addr]string{addr("10.96.0.1"): "the Kubernetes API"})
	target.setPeers([]netip.Addr{addr("192.0.2.9"), addr("10.245.3.1")})
	e := Endpoint{Name: "evil/pod", Interface: "cali1"}
	for a := range claims {
		e.Addresses = append(e.Addresses, netip.PrefixFrom(addr(a), addr(a).BitLen()))
	}
	// The second is a peer in a pool: a workload that speaks BGP.
	e.Addresses = append(e.Addresses, prefixes("198.51.100.7/32", "10.245.3.1/32")...)
	c.Endpoints = append(c.Endpoints, e)
	target.Configure(c)
	_, _, _ = target.Flush()
	for a, why := range claims {
		row := rowOf(target, netip.PrefixFrom(addr(a), addr(a).BitLen()).String())
		if row.Phase != reconcile.Blocked || !strings.Contains(row.Reason, why) ||
			!strings.Contains(row.Reason, "evil/pod") || len(row.Actual) > 0 {
			t.Errorf("%s: %+v, want blocked: %s", a, row, why)
		}
	}
	if row := rowOf(target, "198.51.100.7/32"); row.Phase != reconcile.Applied {
		t.Errorf("an address of nobody: %+v", row)
	}
	if row := rowOf(target, "10.245.3.1/32"); row.Phase != reconcile.Applied {
		t.Errorf("a peer in a pool: %+v", row)
	}
	if n := target.Notices(); len(n) != len(claims) || n[0].Subject != "WorkloadEndpoint evil/pod" {
		t.Errorf("%d notices: %v", len(n), n)
	}
}

// The decision follows the host: a gateway, an address or a node that comes later takes the route away, and one that
// goes gives it back.
func TestReservedAddressesThatComeAndGo(t *testing.T) {
	f := testKernel()
	target, advance := testTarget(f)
	c := testConfig()
	node := netip.Addr{}
	c.IsNode = func(a netip.Addr) bool { return a == node }
	c.Endpoints = append(c.Endpoints, Endpoint{Name: "evil/pod", Interface: "cali1",
		Addresses: prefixes("198.51.100.7/32")})
	target.Configure(c)
	has := func(what string, want bool) {
		t.Helper()
		_, _, _ = target.Flush()
		if _, there := f.Route(kernel.RouteKey{Dst: prefix("198.51.100.7/32"), Metric: 1024}); there != want {
			t.Errorf("%s: a route %t, want %t", what, there, want)
		}
	}
	has("at first", true)
	gateway := via("203.0.113.0/24", "198.51.100.7", 2, kernel.ProtocolStatic)
	target.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: gateway}})
	has("a gateway", false)
	target.Handle([]kernel.Event{{Type: kernel.EventRouteGone, Route: gateway}})
	has("a gateway no more", true)
	// An operator may route through a workload.
	target.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: via("203.0.113.0/24", "198.51.100.7", 5,
		kernel.ProtocolStatic)}})
	has("a gateway behind the workload's interface", true)
	own := kernel.Address{Link: 2, Prefix: prefix("198.51.100.7/24")}
	target.Handle([]kernel.Event{{Type: kernel.EventAddress, Address: own}})
	has("an address of the host", false)
	target.Handle([]kernel.Event{{Type: kernel.EventAddressGone, Address: own}})
	has("an address of the host no more", true)
	subnet := via("198.51.100.0/24", "", 2, kernel.ProtocolKernel)
	target.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: subnet}})
	has("in a subnet of the host", false)
	pooled := c
	pooled.Pools = append(ippool.NewTable(ippool.Pool{Name: "lan", CIDR: prefix("198.51.100.0/26")}), c.Pools...)
	target.Configure(pooled)
	has("in a pool inside of that subnet", true)
	target.Configure(c)
	has("in a pool no more", false)
	target.Handle([]kernel.Event{{Type: kernel.EventRouteGone, Route: subnet}})
	has("in a subnet of the host no more", true)
	target.SetServers(map[netip.Addr]string{addr("198.51.100.7"): "a name server"})
	has("a server", false)
	target.SetServers(nil)
	has("a server no more", true)
	target.setPeers([]netip.Addr{addr("198.51.100.7")})
	has("a BGP peer", false)
	target.setPeers(nil)
	has("a BGP peer no more", true)
	node = addr("198.51.100.7")
	target.decideWorkloadsAgain()
	has("a node", false)
	mine := c
	mine.Blocks = append(slices.Clone(c.Blocks), prefix("198.51.100.0/26"))
	target.Configure(mine)
	has("another node claims an address of this host's block", true)
	target.Configure(c)
	has("the block is gone", false)
	node = netip.Addr{}
	target.decideWorkloadsAgain()
	has("a node no more", true)
	// What the kernel has is read from time to time: events may be lost.
	f.PutRoute(gateway)
	target.Resync()
	advance(time.Minute)
	has("a gateway that was read", false)
}
