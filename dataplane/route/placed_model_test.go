package route

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/datastore/model"
)

// placedInputs are all that the routes by IPAM depend on, as they are at the end of a random sequence of changes.
type placedInputs struct {
	placed  map[string]string // the node by prefix
	learned map[string]string // the next hop by prefix
	own     map[string]bool   // further addresses of the host
	down    map[int]bool      // VXLAN devices
}

// learn is the change of one learned route; without a next hop it is withdrawn.
func learn(p, nh string) []locrib.Route {
	if nh == "" {
		return []locrib.Route{learned(p, 0)}
	}
	return []locrib.Route{learned(p, 0, nh)}
}

// device is a VXLAN device that is up or down.
func device(index int, up bool) kernel.Link {
	return kernel.Link{Index: index, Name: map[int]string{8: "vxlan.calico", 9: "vxlan-v6.calico"}[index], Up: up}
}

// desired returns the text of all routes of a Target, and of those in its kernel.
func (w *vxlanWorld) desired() []string {
	var list []string
	for _, s := range w.Statuses() {
		list = append(list, fmt.Sprint(s.Prefix, " ", s.Source, " ", s.NextHops, " ", s.Desired, " ", s.Reason))
	}
	routes, _ := w.kernel.ListRoutes(kernel.MainTable)
	for _, r := range routes {
		list = append(list, "kernel "+r.Text(w.rules.linkName))
	}
	slices.Sort(list)
	return list
}

// After any changes, in any order, the routes are those of a Target that begins with the last state, and nothing is
// left of prefixes that are gone.
func TestPlacedDependsOnTheLastStateAlone(t *testing.T) {
	prefixes := []string{"10.247.2.0/26", "10.247.2.5/32", "10.247.3.0/26", "10.247.1.0/28", "10.247.1.9/32",
		"10.244.2.0/26", "fd47::2:0/122", "fd47::2:0/128", "fd47::3:0/122", "10.1.0.0/26", "10.1.0.1/32"}
	modes := []v3.VXLANMode{v3.VXLANModeAlways, v3.VXLANModeCrossSubnet, v3.VXLANModeNever}
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		one := func(list ...string) string { return list[r.IntN(len(list))] }
		w := newVXLANWorld(v3.VXLANModeAlways)
		at := placedInputs{map[string]string{}, map[string]string{}, map[string]bool{}, map[int]bool{}}
		servers := map[netip.Addr]string{}
		var log []string
		for range 40 {
			var step string
			switch r.IntN(12) {
			case 0, 1:
				p, node := one(prefixes...), one("", "n1", "n2", "n3", "n4")
				w.place(p + " " + node)
				if at.placed[p] = node; node == "" {
					delete(at.placed, p)
				}
				step = fmt.Sprint("place ", p, node)
			case 2, 3:
				name := one("n2", "n3", "n4")
				key := model.ResourceKey(model.KindNode, name)
				w.node(name, one("10.1.0.6/24", "10.9.0.7/24", "10.1.0.5/24", ""),
					one("fd01::6/64", "fd09::7/64", ""), one("10.247.2.0", "10.247.3.0", "10.247.1.0", ""),
					one("fd47::2:0", "fd47::3:0", ""))
				if r.IntN(3) == 0 {
					delete(w.set, key)
				}
				w.take(key)
				step = "node " + name
			case 4:
				name, cidr := "vx", one("10.247.0.0/16", "10.0.0.0/8")
				if r.IntN(2) == 0 {
					name, cidr = "vx6", "fd47::/48"
				}
				mode := modes[r.IntN(3)]
				if w.pool(name, cidr, mode); r.IntN(4) == 0 {
					delete(w.set, model.ResourceKey(model.KindIPPool, name))
				}
				w.take(model.ResourceKey(model.KindIPPool, name))
				step = fmt.Sprint("pool ", name, cidr, mode)
			case 5:
				p, nh := one(prefixes[:9]...), one("", "10.1.0.6", "10.9.0.7")
				if netip.MustParsePrefix(p).Addr().Is6() {
					continue
				}
				w.Learn(learn(p, nh))
				if at.learned[p] = nh; nh == "" {
					delete(at.learned, p)
				}
				step = "learn " + p + nh
			case 6:
				a := one("10.1.0.6", "10.9.0.7", "10.247.2.5", "fd01::6", "10.247.2.0")
				e := kernel.Address{Link: 3, Prefix: netip.PrefixFrom(addr(a), addr(a).BitLen())}
				if at.own[a] = !at.own[a]; at.own[a] {
					w.kernel.PutAddress(e)
					w.Handle([]kernel.Event{{Type: kernel.EventAddress, Address: e}})
				} else {
					_ = w.kernel.DeleteAddress(e)
					w.Handle([]kernel.Event{{Type: kernel.EventAddressGone, Address: e}})
				}
				step = fmt.Sprint("own ", a, at.own[a])
			case 7:
				index := 8 + r.IntN(2)
				at.down[index] = !at.down[index]
				w.kernel.PutLink(device(index, !at.down[index]))
				w.Handle([]kernel.Event{{Type: kernel.EventLink, Link: device(index, !at.down[index])}})
				step = fmt.Sprint("device ", index, at.down[index])
			case 8:
				affinity := w.affinity(one("10.247.1.0/26", "10.247.2.0/26", "fd47::3:0/122"))
				if w.put(affinity); r.IntN(2) == 0 {
					delete(w.set, affinity.Key)
				}
				w.take(affinity.Key)
				step = fmt.Sprint("own block ", affinity.Key)
			case 9:
				gateway := via("198.51.100.0/24", one("10.247.2.5", "10.247.3.9", "10.247.1.9"), 2,
					kernel.ProtocolStatic)
				w.kernel.DropRoute(gateway.Key())
				w.Handle([]kernel.Event{{Type: kernel.EventRouteGone, Route: w.gateway}})
				w.gateway = gateway
				w.kernel.PutRoute(gateway)
				w.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: gateway}})
				step = "gateway " + gateway.NextHops[0].Gateway.String()
			case 10:
				servers = map[netip.Addr]string{addr(one("10.247.2.5", "10.247.1.9")): "a server"}
				w.SetServers(servers)
				step = fmt.Sprint("servers ", servers)
			case 11:
				_, _, _ = w.Flush()
				step = "flush"
			}
			log = append(log, step)
		}
		fresh := newVXLANWorld(v3.VXLANModeAlways)
		fresh.set = w.set
		for i, down := range at.down {
			fresh.kernel.PutLink(device(i, !down))
		}
		for a, has := range at.own {
			if has {
				fresh.kernel.PutAddress(kernel.Address{Link: 3, Prefix: netip.PrefixFrom(addr(a), addr(a).BitLen())})
			}
		}
		if w.gateway.Dst.IsValid() {
			fresh.kernel.PutRoute(w.gateway)
		}
		fresh.SetServers(servers)
		fresh.take()
		for _, p := range slices.Sorted(maps.Keys(at.placed)) {
			fresh.place(p + " " + at.placed[p])
		}
		fresh.SetPlacesSynced(true)
		for p, nh := range at.learned {
			fresh.Learn(learn(p, nh))
		}
		w.SetPlacesSynced(true)
		for _, world := range []*vxlanWorld{w, fresh} {
			for range 3 {
				_, _, _ = world.Flush()
				world.clock = world.clock.Add(time.Hour)
			}
		}
		got, want := w.desired(), fresh.desired()
		for p := range at.placed { // a way of a former mode, of which a Target that begins knows nothing
			s := rowOf(w.Target, p)
			if !strings.HasPrefix(s.Reason, "the route by BGP stays for now: ") {
				continue
			}
			if at.learned[p] == "" || w.rules.overlayOf(w.kernelRoute(p)) != directly {
				t.Fatalf("seed %d: %q stays, while BGP has %q, after %q", seed, w.route(p), at.learned[p], log)
			}
			about := func(text string) bool {
				return strings.HasPrefix(strings.TrimPrefix(text, "kernel "), p+" ")
			}
			got, want = slices.DeleteFunc(got, about), slices.DeleteFunc(want, about)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d, after %q:\n%q\nwant\n%q", seed, log, minus(got, want), minus(want, got))
		}
		if got, want := len(w.extras), len(fresh.extras); got != want {
			t.Fatalf("seed %d: %d prefixes have extras, want %d, after %q", seed, got, want, log)
		}
	}
}

// kernelRoute returns the first route to a prefix in the kernel.
func (w *vxlanWorld) kernelRoute(p string) *kernel.Route {
	routes, _ := w.kernel.ListRoutes(kernel.MainTable)
	for _, r := range routes {
		if r.Dst == prefix(p) {
			return &r
		}
	}
	return &kernel.Route{}
}

func minus(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
