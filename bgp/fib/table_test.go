package fib

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/locrib"
)

func best(prefix, peer, nextHop string, lp, id uint32) *apiutil.Path {
	nlri, _ := gobgp.NewIPAddrPrefix(pfx(prefix))
	p := &apiutil.Path{Family: gobgp.RF_IPv4_UC, Nlri: nlri, PeerAddress: ip(peer), RemoteID: id}
	if nextHop == "" {
		p.Withdrawal = true
		return p
	}
	nh, _ := gobgp.NewPathAttributeNextHop(ip(nextHop))
	p.Attrs = []gobgp.PathAttributeInterface{nh, gobgp.NewPathAttributeLocalPref(lp)}
	return p
}

func TestFIBCoalescesByPrefix(t *testing.T) {
	f := New()
	f.Update([]*apiutil.Path{best("10.1.0.0/24", "10.0.0.2", "10.0.0.2", 100, 0),
		best("10.2.0.0/24", "10.0.0.2", "10.0.0.2", 100, 0)})
	f.Update([]*apiutil.Path{best("10.1.0.0/24", "10.0.0.2", "", 0, 0), best("10.1.0.0/24", "10.0.0.2", "10.0.0.9", 100,
		0)})
	got := f.Take(1)
	if len(got) != 1 || got[0].Paths[0].NextHop != ip("10.0.0.9") {
		t.Fatalf("took %v, want one route for 10.1.0.0/24 via 10.0.0.9", got)
	}
	select {
	case <-f.changed:
	default:
		t.Fatal("no signal although a route is left")
	}
	if got = f.Take(0); len(got) != 1 || got[0].Prefix != pfx("10.2.0.0/24") {
		t.Fatalf("took %v, want the rest", got)
	}
	if got = f.Take(0); got != nil {
		t.Fatalf("took %v, want nothing", got)
	}
	f.Update([]*apiutil.Path{best("10.2.0.0/24", "10.0.0.2", "10.0.0.2", 100, 0)})
	if got = f.Take(0); got != nil {
		t.Fatalf("an announcement without a difference gave %v", got)
	}
	f.Update([]*apiutil.Path{best("10.2.0.0/24", "10.0.0.2", "", 0, 0)})
	if got = f.Take(0); len(got) != 1 || len(got[0].Paths) != 0 || f.rows.Len() != 1 {
		t.Fatalf("after the withdrawal: %v, %d entries", got, f.rows.Len())
	}
	f.Update([]*apiutil.Path{{PeerAddress: netip.Addr{}, Nlri: best("10.9.0.0/24", "10.0.0.2", "", 0, 0).Nlri}})
	if got = f.Take(0); got != nil {
		t.Fatalf("a local path gave %v", got)
	}
}

// TestFIBAnyOrder: the same announcements in any order end in the same routes.
func TestFIBAnyOrder(t *testing.T) {
	paths := []*apiutil.Path{
		best("10.1.0.0/24", "10.0.0.2", "10.0.0.2", 100, 0), best("10.1.0.0/24", "10.0.0.3", "10.0.0.3", 100, 0),
		best("10.1.0.0/24", "10.0.0.3", "10.0.0.3", 100, 7), best("10.1.0.0/24", "10.0.0.4", "10.0.0.1", 100, 1),
	}
	var want []locrib.Path
	var permute func(done, rest []*apiutil.Path)
	permute = func(done, rest []*apiutil.Path) {
		if len(rest) == 0 {
			f := New()
			for _, p := range done {
				f.Update([]*apiutil.Path{p})
			}
			got := f.Take(0)[0].Paths
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) || len(got) != 3 || !slices.IsSortedFunc(got, comparePaths) {
				t.Fatalf("got %v, want %v", got, want)
			}
			return
		}
		for i := range rest {
			permute(append(slices.Clone(done), rest[i]), slices.Delete(slices.Clone(rest), i, i+1))
		}
	}
	permute(nil, paths)
}

func TestFIBRefuses(t *testing.T) {
	f := New()
	d := bgp.Desired{
		Originated: []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), Blackhole: true}, {Prefix: pfx("10.244.7.7/32")}},
		Addresses:  []netip.Addr{ip("10.0.0.1"), ip("10.244.9.1")}, // the second one that of a tunnel
	}
	f.setOwn(ownOf(d))
	v6, _ := gobgp.NewPathAttributeMpReachNLRI(gobgp.RF_IPv4_UC,
		[]gobgp.PathNLRI{{NLRI: best("10.8.0.0/24", "10.0.0.2", "", 0, 0).Nlri}}, ip("fd00::2"))
	rfc8950 := best("10.8.0.0/24", "10.0.0.2", "10.0.0.2", 100, 0)
	rfc8950.Attrs = []gobgp.PathAttributeInterface{v6}
	f.Update([]*apiutil.Path{
		best("10.244.0.0/26", "10.0.0.2", "10.0.0.2", 100, 0),
		best("10.3.0.0/24", "10.0.0.2", "10.0.0.1", 100, 0), best("10.4.0.0/24", "10.0.0.2", "127.0.0.1", 100, 0),
		rfc8950,
		// a borrowed address inside our block is another node's right
		best("10.244.0.5/32", "10.0.0.2", "10.0.0.2", 100, 0),
		best("0.0.0.0/0", "10.0.0.2", "10.0.0.2", 100, 0),
		best("10.244.0.16/28", "10.0.0.2", "10.0.0.2", 100, 0), best("10.244.7.7/32", "10.0.0.2", "10.0.0.2", 100, 0),
		best("10.0.0.1/32", "10.0.0.2", "10.0.0.2", 100, 0), best("10.5.0.0/24", "10.0.0.2", "10.244.9.1", 100, 0),
	})
	var ok []string
	for _, r := range f.Take(0) {
		if len(r.Paths) > 0 {
			ok = append(ok, r.Prefix.String())
		}
	}
	if want := []string{"10.244.0.5/32", "0.0.0.0/0"}; !slices.Equal(ok, want) {
		t.Errorf("usable %v, want %v", ok, want)
	}
	reasons := map[string]string{"10.244.0.0/26": "originates the prefix itself", "10.3.0.0/24": "would loop",
		"10.244.0.16/28": "is in block 10.244.0.0/26, which belongs to this node",
		"10.244.7.7/32":  "originates the prefix itself",
		"10.0.0.1/32":    "10.0.0.1 is an address of this node", "10.5.0.0/24": "would loop",
		"10.4.0.0/24": "not the address of another host", "10.8.0.0/24": "RFC 8950"}
	for _, r := range f.Rejected() {
		want := reasons[r.Prefix.String()]
		if want == "" || !strings.Contains(r.Reason, want) {
			t.Errorf("%s: reason %q, want %q", r.Prefix, r.Reason, want)
		}
		delete(reasons, r.Prefix.String())
	}
	if len(reasons) > 0 {
		t.Errorf("not refused: %v", reasons)
	}
	// The block is released: from now on the announcement of any node is accepted.
	released := d
	released.Originated = d.Originated[1:]
	f.setOwn(ownOf(released))
	usable := func() (list []string) {
		for _, r := range f.Take(0) {
			list = append(list, fmt.Sprintf("%s %d", r.Prefix, len(r.Paths)))
		}
		slices.Sort(list)
		return list
	}
	borrowed := "10.244.0.5/32 1" // evaluated again, and still accepted
	if got := usable(); !slices.Equal(got, []string{"10.244.0.0/26 1", "10.244.0.16/28 1", borrowed}) {
		t.Errorf("after the release: %v", got)
	}
	f.setOwn(ownOf(d))
	if got := usable(); !slices.Equal(got, []string{"10.244.0.0/26 0", "10.244.0.16/28 0", borrowed}) {
		t.Errorf("after taking the block again: %v", got)
	}
	f.setOwn(ownOf(d))
	if got := usable(); len(got) != 0 {
		t.Errorf("the same again: %v", got)
	}
	d.Addresses = d.Addresses[:1] // the tunnel is gone
	f.setOwn(ownOf(d))
	if got := usable(); !slices.Contains(got, "10.5.0.0/24 1") {
		t.Errorf("after the tunnel's address is gone: %v", got)
	}
}

// TestNextHopOfAWorkload: a workload that speaks BGP names itself, and no other one.
func TestNextHopOfAWorkload(t *testing.T) {
	f := New()
	f.Configure(bgp.Desired{Originated: []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), Blackhole: true}},
		Sessions: []bgp.Session{{Address: ip("10.244.0.5"), LocalAS: 64512, PeerAS: 65001, Workload: "cali1"}}})
	f.Update([]*apiutil.Path{best("10.1.0.0/24", "10.244.0.5", "10.244.0.5", 100, 0),
		best("10.2.0.0/24", "10.244.0.5", "10.244.0.6", 100, 0)})
	if got := f.Take(0); len(got) != 2 || len(got[0].Paths) != 1 || len(got[1].Paths) != 0 {
		t.Errorf("took %v", got)
	}
}

// Routes are sent again to a new session only if it may have missed such a change.
func TestChangesByOthers(t *testing.T) {
	f := New()
	f.Update([]*apiutil.Path{best("10.1.0.0/24", "10.0.0.2", "10.0.0.2", 100, 0),
		best("10.2.0.0/24", "10.0.0.3", "10.0.0.3", 100, 0)})
	f.Update([]*apiutil.Path{{Nlri: best("10.9.0.0/24", "10.0.0.2", "", 0, 0).Nlri}}) // our own
	f.Update([]*apiutil.Path{best("10.1.0.0/24", "10.0.0.2", "", 0, 0)})
	for peer, want := range map[string]uint64{"10.0.0.2": 2, "10.0.0.3": 3, "10.0.0.4": 4} {
		if got := f.ChangesByOthers(ip(peer)); got != want {
			t.Errorf("changes that are not %s's: %d, want %d", peer, got, want)
		}
	}
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

// keptBytes returns the bytes of the heap that are in use.
func keptBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkFIB100k measures the cost of a learned route between GoBGP and the agents, and the memory kept.
func BenchmarkFIB100k(b *testing.B) {
	const n, perUpdate = 100_000, 500
	var updates [][]*apiutil.Path
	attrs := best("10.0.0.0/24", "10.0.0.2", "10.0.0.2", 100, 0).Attrs
	for i := range n {
		if i%perUpdate == 0 {
			updates = append(updates, nil)
		}
		a := netip.AddrFrom4([4]byte{20, byte(i >> 10), byte(i >> 2), byte(i << 6)})
		nlri, _ := gobgp.NewIPAddrPrefix(netip.PrefixFrom(a, 26))
		p := &apiutil.Path{Family: gobgp.RF_IPv4_UC, Nlri: nlri, PeerAddress: ip("10.0.0.2"), Attrs: attrs}
		last := &updates[len(updates)-1]
		*last = append(*last, p)
	}
	var kept uint64
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		before := keptBytes()
		b.StartTimer()
		f := New()
		for _, u := range updates {
			f.Update(u)
			f.Take(4096)
		}
		b.StopTimer()
		kept += keptBytes() - before
		runtime.KeepAlive(f)
		b.StartTimer()
	}
	b.ReportMetric(float64(kept)/float64(n*b.N), "kept-B/route")
}

// A peer with different attributes for each route, which change all the time, does not make the table keep unused
// attributes.
func TestFIBForgetsAttributes(t *testing.T) {
	f := New()
	for round := range 20 {
		for i := range 500 {
			p := fmt.Sprintf("10.%d.%d.0/24", i/250, i%250)
			f.Update([]*apiutil.Path{best(p, "10.0.0.2", "10.0.0.2", uint32(1000*round+i), 0)})
		}
	}
	if n := f.attributes.Len(); n > 5000 {
		t.Errorf("%d sets of attributes are kept for 500 routes", n)
	}
	for _, r := range f.Take(0) {
		if len(r.Paths) != 1 || r.Metric != bgp.MaxPriority-19000-metricIndex(r.Prefix) {
			t.Fatalf("%+v", r)
		}
	}
}

func metricIndex(p netip.Prefix) uint32 {
	a := p.Addr().As4()
	return uint32(a[1])*250 + uint32(a[2])
}
