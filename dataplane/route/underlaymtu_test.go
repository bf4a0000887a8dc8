package route

import (
	"fmt"
	"net/netip"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/datastore/model"
)

// The MTU of the network between the nodes is that of the interfaces and the routes which lead to them, and follows
// each of both. Interfaces that lead nowhere, to workloads or into a tunnel do not count.
func TestUnderlayMTU(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	link := func(index int, name string, mtu int) {
		l := kernel.Link{Index: index, Name: name, MTU: mtu, Up: true}
		w.kernel.PutLink(l)
		w.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	}
	route := func(dst string, mtu uint32, hops ...kernel.NextHop) {
		r := kernel.Route{Dst: prefix(dst), Protocol: kernel.ProtocolStatic, Type: kernel.Unicast, MTU: mtu,
			NextHops: hops}
		w.kernel.PutRoute(r)
		w.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: r}})
	}
	for _, name := range []string{"n2", "n3"} {
		w.node(name, map[string]string{"n2": "10.1.0.6/24", "n3": "10.9.0.7/24"}[name], "", "", "")
	}
	w.node("n1", "10.1.0.5/24", "", "", "")
	w.take()
	var got []hoststate.Underlay
	w.FollowUnderlay(func(u hoststate.Underlay) { got = append(got, u) })
	want := func(when string, mtu int) {
		t.Helper()
		before := len(got)
		_, _, _ = w.Flush()
		if len(got) == 0 || got[len(got)-1] != (hoststate.Underlay{MTU: mtu}) {
			t.Errorf("%s: %v, want %d", when, got, mtu)
		}
		if n := len(got); n > before+1 {
			t.Errorf("%s: published %d times", when, n-before)
		}
	}
	uplink, other := 2, 3
	want("at first", 0)
	published := len(got)
	link(uplink, "eth0", 9000)
	link(other, "storage", 1280)
	want("one link leads to all nodes", 9000)
	ways := 0
	w.FollowRoutesOfOthers(func() { ways++ })
	link(5, "cali1", 1200)
	link(77, "cali77", 1200)
	route("10.244.1.77/32", 0, kernel.NextHop{Link: 77})
	for _, e := range []kernel.EventType{kernel.EventAddress, kernel.EventAddressGone} {
		w.Handle([]kernel.Event{{Type: e, Address: kernel.Address{Link: 77, Prefix: prefix("fe80::ecee/64")}}})
	}
	if _, _, _ = w.Flush(); ways > 0 || len(got) != published+1 {
		t.Errorf("workloads come, and all nodes are looked at: %d, %v", ways, got)
	}
	route("10.9.0.0/24", 8000, kernel.NextHop{Gateway: addr("10.1.0.1"), Link: uplink})
	want("a route with an MTU of its own", 8000)
	route("10.9.0.0/24", 0, kernel.NextHop{Gateway: addr("10.1.0.1"), Link: uplink},
		kernel.NextHop{Gateway: addr("10.2.0.1"), Link: other})
	want("the smallest of several ways", 1280)
	route("10.9.0.0/24", 0, kernel.NextHop{Gateway: addr("10.1.0.1"), Link: uplink})
	link(uplink, "eth0", 1500)
	want("the link shrinks", 1500)
	route("10.9.0.7/32", 0, kernel.NextHop{Link: 9})
	want("a route into a tunnel", 1500)
	delete(w.set, model.ResourceKey(model.KindNode, "n2"))
	delete(w.set, model.ResourceKey(model.KindNode, "n3"))
	w.take()
	link(uplink, "eth0", 1400)
	want("without other nodes, the link of the own address", 1400)
}

// The MTU of one node of many costs one lookup, and that of a workload's interface none.
func TestUnderlayMTUOfManyNodes(t *testing.T) {
	const nodes = 1000
	w := newVXLANWorld(v3.VXLANModeAlways)
	node := func(i int, address string) {
		name := fmt.Sprintf("node-%d", i)
		w.node(name, address, "", "", "")
		w.take(model.ResourceKey(model.KindNode, name))
	}
	for i := range nodes {
		node(i, fmt.Sprintf("10.1.%d.%d/16", 1+i/250, 1+i%250))
	}
	for i, mtu := range map[int]int{2: 9000, 3: 1500} {
		w.kernel.PutLink(kernel.Link{Index: i, Name: fmt.Sprintf("eth%d", i-2), MTU: mtu, Up: true})
	}
	var got hoststate.Underlay
	w.FollowUnderlay(func(u hoststate.Underlay) { got = u })
	lookup, lookups := w.mtuTo, 0
	w.mtuTo = func(a netip.Addr) int {
		lookups++
		return lookup(a)
	}
	want := func(when string, n, mtu int) {
		t.Helper()
		lookups = 0
		if _, _, _ = w.Flush(); lookups != n || got.MTU != mtu {
			t.Errorf("%s: %d lookups, want %d; MTU %d, want %d", when, lookups, n, got.MTU, mtu)
		}
	}
	want("at first", nodes+4, 9000) // with n2 and n3, each of which has two addresses
	want("nothing", 0, 9000)
	node(7, "10.3.0.7/24")
	want("a node is behind another link", 1, 1500)
	node(7, "10.3.0.7/24")
	want("it is written again", 0, 1500)
	node(7, "10.1.9.9/24")
	want("it comes back", 1, 9000)
	node(7, "10.3.0.7/24")
	want("and again", 1, 1500)
	delete(w.set, model.ResourceKey(model.KindNode, "node-7"))
	w.take(model.ResourceKey(model.KindNode, "node-7"))
	want("it goes", 1, 9000)
	address := func(link int, p string) {
		w.Handle([]kernel.Event{{Type: kernel.EventAddress, Address: kernel.Address{Link: link, Prefix: prefix(p)}}})
	}
	address(5, "fe80::ecee/64")
	want("an address of a workload's interface", 0, 9000)
	address(3, "10.3.0.6/24")
	want("an address of the host", nodes+3, 9000)
}

// The size of what gets to a node is the MTU of the routes to its pods alone: not of those through a gateway that has
// the address of a Node, nor of those to other networks.
func TestPathOfANextHop(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeCrossSubnet)
	for i, name := range map[int]string{2: "eth0", 8: "vxlan.calico"} {
		w.kernel.PutLink(kernel.Link{Index: i, Name: name, MTU: 1500, Up: true})
	}
	w.node("router", "10.1.0.1/24", "", "10.247.4.0", "")
	w.node("tor", "10.1.0.2/24", "", "", "")
	w.take()
	w.place("10.247.4.0/26 router", "10.247.2.0/26 n2")
	for p, nextHop := range map[string]string{"10.244.2.0/26": "10.1.0.6", "10.244.4.0/26": "10.1.0.1",
		"10.244.5.0/26": "10.1.0.2", "192.0.2.0/24": "10.1.0.6", "10.244.6.0/26": "10.9.0.7"} {
		w.Learn([]locrib.Route{learned(p, 1024, nextHop)})
	}
	mtus := func() map[string]uint32 {
		_, _, _ = w.Flush()
		all, err := w.kernel.ListRoutes(kernel.MainTable)
		list := map[string]uint32{}
		for _, r := range all {
			if err == nil && r.Protocol != kernel.ProtocolKernel {
				list[r.Dst.String()] = r.MTU
			}
		}
		return list
	}
	w.SetPaths(map[netip.Addr]int{addr("10.1.0.6"): 1400, addr("10.1.0.1"): 1300, addr("10.1.0.2"): 1280,
		addr("10.9.0.7"): 1450})
	want := func(when string, want map[string]uint32) {
		t.Helper()
		got := mtus()
		for p, mtu := range want {
			if have, there := got[p]; !there || have != mtu {
				t.Errorf("%s: %s has MTU %d (%t), want %d", when, p, have, there, mtu)
			}
		}
	}
	want("10.1.0.1 is a gateway", map[string]uint32{
		"10.247.2.0/26": 1400, // in the subnet, without the overlay
		"10.244.2.0/26": 1400,
		"10.244.6.0/26": 1450, // through the gateway to another subnet
		"10.244.4.0/26": 0,
		"10.244.5.0/26": 1280,
		"192.0.2.0/24":  0, // in no pool
	})
	r := kernel.Route{Dst: prefix("203.0.113.0/24"), Protocol: kernel.ProtocolStatic, Type: kernel.Unicast,
		NextHops: []kernel.NextHop{{Gateway: addr("10.1.0.2"), Link: 2}}}
	w.kernel.PutRoute(r)
	w.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: r}})
	want("10.1.0.2 is one, too", map[string]uint32{"10.244.5.0/26": 0, "10.244.2.0/26": 1400})
	w.kernel.DropRoute(r.Key())
	w.Handle([]kernel.Event{{Type: kernel.EventRouteGone, Route: r}})
	want("it is none any more", map[string]uint32{"10.244.5.0/26": 1280, "10.244.4.0/26": 0})
}
