package route

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore/model"
)

// mode sets the mode of a pool, "IPIP" or one of VXLAN.
func (w *vxlanWorld) mode(name, mode string) {
	key := model.ResourceKey(model.KindIPPool, name)
	cidr := map[string]string{"vx": "10.247.0.0/16", "vx6": "fd47::/48"}[name]
	if mode != "IPIP" {
		w.pool(name, cidr, v3.VXLANMode(mode))
	} else {
		p := &model.IPPool{}
		p.Spec.CIDR, p.Spec.IPIPMode = cidr, v3.IPIPModeAlways
		w.put(model.NewObject(key, p))
	}
	w.take(key)
}

// ipip brings the device of IPIP, or takes it away.
func (w *vxlanWorld) ipip(up bool) {
	l := kernel.Link{Index: 4, Name: "tunl0", Up: up}
	w.kernel.PutLink(l)
	w.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
}

// later lets time pass.
func (w *vxlanWorld) later(d time.Duration) { w.clock = w.clock.Add(d) }

// route returns all routes to a prefix that the kernel has.
func (w *vxlanWorld) route(p string) string {
	var list []string
	routes, _ := w.kernel.ListRoutes(kernel.MainTable)
	for _, r := range routes {
		if r.Dst == prefix(p) {
			list = append(list, strings.TrimPrefix(r.Text(w.rules.linkName), p+" "))
		}
	}
	return strings.Join(list, " and ")
}

// A pool without VXLAN, or with IPIP, gets VXLAN: each step of the cluster comes later than the one before.
func TestTheWayByBGPStaysUntilTheTunnelIsReady(t *testing.T) {
	for _, c := range []struct{ mode, pool, block, hop, old, tunnel, fresh string }{
		{"Never", "vx", "10.247.2.0/26", "10.1.0.6", "via 10.1.0.6 dev eth0 proto bird", "10.247.2.0",
			"via 10.247.2.0 dev vxlan.calico onlink proto 80"},
		{"IPIP", "vx", "10.247.2.0/26", "10.1.0.6", "via 10.1.0.6 dev tunl0 onlink proto 80", "10.247.2.0",
			"via 10.247.2.0 dev vxlan.calico onlink proto 80"},
		{"Never", "vx6", "fd47::2:0/122", "fd01::6", "via fd01::6 dev eth0 proto bird metric 1", "fd47::2:0",
			"via fd47::2:0 dev vxlan-v6.calico onlink proto 80 metric 1024"},
	} {
		w := newVXLANWorld(v3.VXLANModeNever)
		w.node("n2", "10.1.0.6/24", "fd01::6/64", "", "")
		w.take()
		w.mode(c.pool, c.mode)
		w.kernel.PutLink(kernel.Link{Index: 7, Name: "tunl0", Up: true})
		w.kernel.PutLink(kernel.Link{Index: 8, Name: "vxlan.calico"})
		w.kernel.PutLink(kernel.Link{Index: 9, Name: "vxlan-v6.calico"})
		w.Learn([]locrib.Route{learned(c.block, 0, c.hop)})
		step := func(what, want, reason string) {
			t.Helper()
			_, _, _ = w.Flush()
			if got, s := w.route(c.block), rowOf(w.Target, c.block); got != want || s.Reason != reason {
				t.Errorf("%s to VXLAN, %s, %s: %q (%s)\nwant %q (%s)", c.mode, c.block, what, got, s.Reason, want,
					reason)
			}
		}
		stays := "the route by BGP stays for now: "
		step("before", c.old, "")
		w.mode(c.pool, "Always")
		step("the mode has changed", c.old, stays+"IPAM's blocks have not been read yet")
		w.place(c.block + " n2")
		device := map[string]string{"vx": "vxlan.calico", "vx6": "vxlan-v6.calico"}[c.pool]
		step("there are placements", c.old, stays+"node n2 has published no address of "+device)
		w.later(time.Hour)
		step("an hour without a tunnel address", c.old, stays+"node n2 has published no address of "+device)
		w.node("n2", "10.1.0.6/24", "fd01::6/64", "10.247.2.0", "fd47::2:0")
		w.take(model.ResourceKey(model.KindNode, "n2"))
		step("it is published", c.old, fmt.Sprintf("%spool %s uses VXLAN, and interface %s is not up (yet)", stays,
			c.pool, device))
		index := map[string]int{"vx": 8, "vx6": 9}[c.pool]
		w.kernel.PutLink(kernel.Link{Index: index, Name: device, Up: true})
		w.Handle([]kernel.Event{{Type: kernel.EventLink, Link: kernel.Link{Index: index, Name: device, Up: true}}})
		step("the device is up", c.old, stays+"the tunnel to node n2 is new")
		if next := w.Next(); next > settle {
			t.Errorf("the next Flush is in %v", next)
		}
		w.later(settle)
		step("the other node had time", c.fresh, "")
		w.mode(c.pool, c.mode)
		if c.mode == "IPIP" {
			step("back", c.fresh, "the route to node n2 by IPAM's blocks stays for now: the tunnel of the pool's new "+
				"mode is new")
			w.later(settle)
		}
		step("back, at last", c.old, "")
		if len(w.held) > 0 {
			t.Errorf("held: %v", w.held)
		}
	}
}

// A pool without a tunnel gets IPIP: the direct way stays while there is no tunnel, and follows BGP.
func TestTheDirectWayStaysUntilIPIPIsReady(t *testing.T) {
	const block, direct, tunnel = "10.247.2.0/26", "via 10.1.0.6 dev eth0 proto bird",
		"via 10.1.0.6 dev tunl0 onlink proto 80"
	const stays = "the route by BGP stays for now: "
	w := newVXLANWorld(v3.VXLANModeNever)
	w.ipip(false)
	w.Learn(learn(block, "10.1.0.6"))
	step := func(what, want, reason string) {
		t.Helper()
		_, _, _ = w.Flush()
		if got, s := w.route(block), rowOf(w.Target, block); got != want || !strings.HasPrefix(s.Reason, reason) ||
			reason == "" && s.Reason != "" {
			t.Errorf("%s: %q (%s)\nwant %q (%s)", what, got, s.Reason, want, reason)
		}
	}
	step("before", direct, "")
	w.mode("vx", "IPIP")
	const missing = "pool vx uses IPIP, and interface tunl0 is not up (yet)"
	step("there is no tunnel", direct, stays+missing)
	w.later(time.Hour)
	step("nor is there one later", direct, stays+missing)
	w.Learn(learn(block, "10.1.0.9"))
	step("BGP has another next hop", "via 10.1.0.9 dev eth0 proto bird", stays+missing)
	w.Learn(learn(block, ""))
	step("BGP has none", "", "")
	w.Learn(learn(block, "10.1.0.6"))
	step("BGP has one again", "", missing) // no way is left that could stay
	w.mode("vx", "Never")
	step("without a tunnel again", direct, "")
	w.ipip(true)
	w.mode("vx", "IPIP")
	step("the tunnel is new", direct, stays+"the tunnel of the pool's new mode is new")
	if next := w.Next(); next > settle {
		t.Errorf("the next Flush is in %v", next)
	}
	w.later(settle)
	step("the other node had time", tunnel, "")
	w.mode("vx", "Never")
	step("back", direct, "")
	if len(w.held) > 0 {
		t.Errorf("held: %v", w.held)
	}
}

// A pool loses VXLAN before BGP has a route: that by IPAM stays for a while, and not longer than its node.
func TestTheWayByIPAMStaysUntilBGPHasOne(t *testing.T) {
	const block, byIPAM = "10.247.2.0/26", "via 10.247.2.0 dev vxlan.calico onlink proto 80"
	for _, c := range []struct {
		rule string
		then func(*vxlanWorld)
		want string
	}{
		{"at first", func(*vxlanWorld) {}, byIPAM},
		{"BGP has one", func(w *vxlanWorld) { w.Learn(learn(block, "10.1.0.6")) },
			"via 10.1.0.6 dev eth0 proto bird"},
		{"BGP has a next hop without a way", func(w *vxlanWorld) { w.Learn(learn(block, "127.0.0.1")) }, byIPAM},
		{"for long", func(w *vxlanWorld) { w.later(overlay.Linger) }, ""},
		{"the node is gone", func(w *vxlanWorld) {
			delete(w.set, model.ResourceKey(model.KindNode, "n2"))
			w.take(model.ResourceKey(model.KindNode, "n2"))
		}, ""},
		{"VXLAN is back", func(w *vxlanWorld) { w.mode("vx", "Always") }, byIPAM},
	} {
		w := newVXLANWorld(v3.VXLANModeAlways)
		w.place(block + " n2")
		_, _, _ = w.Flush()
		w.mode("vx", "Never")
		_, _, _ = w.Flush()
		if s := rowOf(w.Target, block); w.route(block) != byIPAM || s.Reason !=
			"the route to node n2 by IPAM's blocks stays for now: BGP has none yet" {
			t.Errorf("%s: %q (%s)", c.rule, w.route(block), s.Reason)
		}
		c.then(w)
		_, _, _ = w.Flush()
		if got := w.route(block); got != c.want {
			t.Errorf("%s: %q, want %q", c.rule, got, c.want)
		}
		if c.want == "" && rowOf(w.Target, block).Phase != "" {
			t.Errorf("%s: left: %+v", c.rule, rowOf(w.Target, block))
		}
	}
}

// A pool has IPIP in place of VXLAN, and this kernel has no IPIP: the reason is that, not BGP.
func TestTheWayByIPAMStaysWithoutIPIP(t *testing.T) {
	const block = "10.247.2.0/26"
	w := newVXLANWorld(v3.VXLANModeAlways)
	w.ipip(false)
	w.place(block + " n2")
	w.Learn(learn(block, "10.1.0.6"))
	_, _, _ = w.Flush()
	w.mode("vx", "IPIP")
	_, _, _ = w.Flush()
	if got, s := w.route(block), rowOf(w.Target, block); !strings.Contains(got, "dev vxlan.calico") || s.Reason !=
		"the route to node n2 by IPAM's blocks stays for now: pool vx uses IPIP, and interface tunl0 is not up (yet)" {
		t.Errorf("%q (%s)", got, s.Reason)
	}
}

// On a node without BGP the reason of a way that stays is that.
func TestTheWayByIPAMStaysWithoutBGP(t *testing.T) {
	const block = "10.247.2.0/26"
	w := newVXLANWorld(v3.VXLANModeAlways)
	key := model.ResourceKey(model.KindNode, "n1")
	own := *model.Get[model.Node](w.set, key)
	own.Annotations = map[string]string{model.AnnotationBGPOff: "BGP is off (CALICO_NETWORKING_BACKEND=vxlan)"}
	w.put(model.NewObject(key, &own))
	w.take(key)
	w.place(block + " n2")
	_, _, _ = w.Flush()
	w.mode("vx", "Never")
	_, _, _ = w.Flush()
	if s := rowOf(w.Target, block); s.Reason !=
		"the route to node n2 by IPAM's blocks stays for now: BGP is off (CALICO_NETWORKING_BACKEND=vxlan)" {
		t.Error(s.Reason)
	}
}

// A block that moves while its way by IPAM stays gets the way to its new node, or none: never that to its old one.
func TestTheWayByIPAMFollowsTheBlock(t *testing.T) {
	const always, cross = v3.VXLANModeAlways, v3.VXLANModeCrossSubnet
	tunnel := func(gateway string) string { return "via " + gateway + " dev vxlan.calico onlink proto 80" }
	for _, c := range []struct {
		rule, block string
		mode        v3.VXLANMode
		fresh       string // the mode of the pool from then on
		then        func(w *vxlanWorld, block string)
		want        string
	}{
		{"another node", "10.247.2.0/26", always, "Never",
			func(w *vxlanWorld, b string) { w.place(b + " n3") }, tunnel("10.247.3.0")},
		{"another node, IPv6", "fd47::2:0/122", always, "Never",
			func(w *vxlanWorld, b string) { w.place(b + " n3") },
			"via fd47::3:0 dev vxlan-v6.calico onlink proto 80 metric 1024"},
		{"a borrowed address", "10.247.2.9/32", always, "Never",
			func(w *vxlanWorld, b string) { w.place(b + " n3") }, tunnel("10.247.3.0")},
		{"another node, and IPIP's tunnel is new", "10.247.2.0/26", always, "IPIP", func(w *vxlanWorld, b string) {
			w.Learn(learn(b, "10.9.0.7"))
			w.place(b + " n3")
		}, tunnel("10.247.3.0")},
		{"from the same subnet to another one", "10.247.2.0/26", cross, "Never",
			func(w *vxlanWorld, b string) { w.place(b + " n3") }, tunnel("10.247.3.0")},
		{"from another subnet to the same one", "10.247.3.0/26", cross, "Never",
			func(w *vxlanWorld, b string) { w.place(b + " n2") }, "via 10.1.0.6 dev eth0 proto 80"},
		{"this node", "10.247.2.0/26", always, "Never", func(w *vxlanWorld, b string) { w.place(b + " n1") }, ""},
		{"this node, without its address", "10.247.2.0/26", always, "Never", func(w *vxlanWorld, b string) {
			w.node("n1", "10.1.0.99/24", "", "10.247.1.0", "")
			w.take(model.ResourceKey(model.KindNode, "n1"))
			w.place(b + " n1")
		}, ""},
		{"no node", "10.247.2.0/26", always, "Never", func(w *vxlanWorld, b string) { w.place(b + " ") }, ""},
		{"a node that has published no tunnel", "10.247.2.0/26", always, "Never",
			func(w *vxlanWorld, b string) { w.place(b + " n9") }, ""},
		{"BGP had one, and has none", "10.247.2.0/26", always, "IPIP", func(w *vxlanWorld, b string) {
			w.Learn(learn(b, "10.1.0.6"))
			w.later(settle)
			_, _, _ = w.Flush()
			w.Learn(learn(b, ""))
		}, ""},
		{"the node has another tunnel address", "10.247.2.0/26", always, "Never", func(w *vxlanWorld, _ string) {
			w.node("n2", "10.1.0.6/24", "fd01::6/64", "10.247.2.7", "fd47::2:0")
			w.take(model.ResourceKey(model.KindNode, "n2"))
		}, tunnel("10.247.2.7")},
		{"the node has no tunnel any more", "10.247.2.0/26", always, "Never", func(w *vxlanWorld, _ string) {
			w.node("n2", "10.1.0.6/24", "fd01::6/64", "", "")
			w.take(model.ResourceKey(model.KindNode, "n2"))
		}, ""},
	} {
		w := newVXLANWorld(c.mode)
		w.kernel.PutLink(kernel.Link{Index: 7, Name: "tunl0", Up: true})
		node := "n2"
		if c.block == "10.247.3.0/26" {
			node = "n3"
		}
		w.place(c.block + " " + node)
		_, _, _ = w.Flush()
		before := w.route(c.block)
		w.mode("vx", c.fresh)
		w.mode("vx6", "Never")
		if _, _, _ = w.Flush(); w.route(c.block) != before || before == "" {
			t.Errorf("%s: the mode has changed: %q, want %q", c.rule, w.route(c.block), before)
		}
		c.then(w, c.block)
		if _, _, _ = w.Flush(); w.route(c.block) != c.want {
			t.Errorf("%s: %q, want %q", c.rule, w.route(c.block), c.want)
		}
		const why = "by IPAM's blocks stays for now"
		if s := rowOf(w.Target, c.block); c.want != "" && !strings.Contains(s.Reason, why) {
			t.Errorf("%s: the reason is %q", c.rule, s.Reason)
		}
		w.later(overlay.Linger)
		if _, _, _ = w.Flush(); strings.Contains(w.route(c.block), "vxlan") || len(w.held) > 0 {
			t.Errorf("%s, at last: %q is held until %v", c.rule, w.route(c.block), w.held)
		}
	}
}

// A way that an earlier run of the daemon left stays as well.
func TestTheWayStaysOverARestart(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	w.node("n2", "10.1.0.6/24", "", "", "")
	w.take()
	w.kernel.PutRoute(via("10.247.2.0/26", "10.1.0.6", 2, kernel.ProtocolBIRD))
	w.Learn(learn("10.247.2.0/26", "10.1.0.6"))
	w.place("10.247.2.0/26 n2")
	_, _, _ = w.Flush()
	if got, s := w.route("10.247.2.0/26"), rowOf(w.Target, "10.247.2.0/26"); !strings.Contains(got, "dev eth0") ||
		!strings.HasPrefix(s.Reason, "the route by BGP stays for now") {
		t.Errorf("%q (%s)", got, s.Reason)
	}
}

// A way by IPAM that an earlier run of the daemon left does not stay in a pool without VXLAN, as nothing has the time
// of the change. It goes as soon as BGP's routes are known.
func TestTheWayByIPAMEndsWithARestart(t *testing.T) {
	const block = "10.247.2.0/26"
	before := newVXLANWorld(v3.VXLANModeAlways)
	before.place(block + " n2")
	_, _, _ = before.Flush()
	w := newVXLANWorld(v3.VXLANModeNever)
	w.kernel.PutRoute(*before.kernelRoute(block))
	w.Synced(false)
	_, _, _ = w.Flush()
	if got, want := w.route(block), before.route(block); got != want || got == "" {
		t.Errorf("before BGP's routes are known: %q, want %q", got, want)
	}
	w.Synced(true)
	if _, _, _ = w.Flush(); w.route(block) != "" {
		t.Errorf("afterwards: %q", w.route(block))
	}
}

// Whatever order the parts of a change come in, and however often the mode changes: a block that BGP and IPAM have on
// one node never is without a route, nor has it one through a tunnel that nobody has published.
func TestNoModeChangeLeavesAGap(t *testing.T) {
	blocks := []string{"10.247.2.0/26", "fd47::2:0/122"}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := newVXLANWorld(v3.VXLANModeNever)
		w.kernel.PutLink(kernel.Link{Index: 7, Name: "tunl0", Up: true})
		w.node("n2", "10.1.0.6/24", "fd01::6/64", "", "")
		w.take()
		w.Learn(learn(blocks[0], "10.1.0.6"))
		w.Learn(learn(blocks[1], "fd01::6"))
		_, _, _ = w.Flush()
		published, placed, vxlan := false, false, false
		var log []string
		for range 60 {
			step := ""
			switch r.IntN(6) {
			case 0:
				mode := []string{"Never", "Always", "CrossSubnet", "IPIP"}[r.IntN(4)]
				vxlan = mode == "Always" || mode == "CrossSubnet"
				step = "mode " + mode
				if w.mode("vx", mode); mode == "IPIP" {
					mode = "Never"
				}
				w.mode("vx6", mode)
			case 1:
				if !published || !vxlan { // while it is needed, no node takes it back
					published = !published
				}
				if published {
					w.node("n2", "10.1.0.6/24", "fd01::6/64", "10.247.2.0", "fd47::2:0")
				} else {
					w.node("n2", "10.1.0.6/24", "fd01::6/64", "", "")
				}
				w.take(model.ResourceKey(model.KindNode, "n2"))
				step = fmt.Sprint("published ", published)
			case 2:
				if vxlan {
					w.place(blocks[0]+" n2", blocks[1]+" n2")
					placed = true
				} else {
					w.SetPlacesSynced(false)
					placed = false
				}
				step = fmt.Sprint("placed ", placed)
			case 3:
				d := []time.Duration{time.Millisecond, settle, overlay.Linger}[r.IntN(3)]
				w.later(d)
				step = fmt.Sprint("later ", d)
			default:
				step = "flush"
			}
			log = append(log, step)
			_, _, _ = w.Flush()
			for _, p := range blocks {
				got := w.route(p)
				if got == "" || strings.Contains(got, " and ") ||
					strings.Contains(got, "vxlan") && !published && vxlan {
					t.Fatalf("seed %d: %s: %q (%s), after %q", seed, p, got, rowOf(w.Target, p).Reason, log)
				}
			}
		}
	}
}
