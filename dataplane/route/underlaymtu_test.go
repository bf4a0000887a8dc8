package route

import (
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
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
