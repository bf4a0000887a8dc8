package gobgppolicy

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/bgp"
)

// grouped has sessions of both families, of two ASes of ours, and with lists of filters of which some do not exist.
func grouped() bgp.Desired {
	reject := func(name string) []bgp.Rule { return []bgp.Rule{{Name: name}} }
	here := func(s bgp.Session) bgp.Session { s.LocalAS = 65100; return s }
	return bgp.Desired{
		Sessions: []bgp.Session{internal("10.0.0.1", "f"), internal("10.0.0.2", "f", "gone"), internal("10.0.0.3"),
			internal("10.0.0.4", "gone"), internal("10.0.0.5", "f", "g"), internal("10.0.0.6", "g", "f"),
			external("10.0.0.7", "f"), here(external("10.0.0.8", "f")), internal("::ffff:10.0.0.9", "f"),
			internal("fd00::1", "f"), internal("fe80::1%eth0", "f"), external("fd00::2", "f")},
		Filters: []bgp.Filter{
			{Name: "f", ImportV4: reject("f in 4"), ExportV4: reject("f out 4"), ImportV6: reject("f in 6"),
				ExportV6: reject("f out 6")},
			{Name: "g", ImportV4: reject("g in 4"), ExportV4: reject("g out 4")},
			{Name: "unused", ImportV4: reject("unused")}},
	}
}

func TestGroups(t *testing.T) {
	g := openGolden(t, "groups.txt")
	defer g.close()
	p := Translate(grouped(), nil)
	g.compare("statements", added(grouped(), nil))
	var list []string
	for _, group := range p.Groups {
		list = append(list, fmt.Sprintf("%s IPv6=%t external=%t: %v, %d rules in, %d out", group.name, group.IPv6,
			group.external, group.Peers, len(group.Rules(false)), len(group.Rules(true))))
	}
	g.compare("groups", list)
}

// The order of sessions and interfaces makes no difference.
func TestTranslateInAnyOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	d := grouped()
	d.Refusals, d.Originated = refusals(), []bgp.Origin{{Prefix: pfx("10.1.0.0/26")}}
	want := Translate(d, nil)
	for range 50 {
		other := d
		other.Sessions = slices.Clone(d.Sessions)
		rnd.Shuffle(len(other.Sessions), func(i, j int) {
			other.Sessions[i], other.Sessions[j] = other.Sessions[j], other.Sessions[i]
		})
		p := Translate(other, nil)
		if !bytes.Equal(p.Encoded, want.Encoded) || !maps.EqualFunc(p.Peers(), want.Peers(), samePolicy) {
			t.Fatalf("another order of sessions: %v", other.Sessions)
		}
	}
}

func samePolicy(a, b PeerPolicy) bool {
	return a.In == b.In && a.Out == b.Out && maps.Equal(a.Own, b.Own)
}

// A peer's policy differs exactly where its routes have to be evaluated again.
func TestPeers(t *testing.T) {
	base := func() bgp.Desired {
		return bgp.Desired{Sessions: []bgp.Session{internal("10.0.0.1", "f"), internal("10.0.0.2", "f"),
			external("10.0.0.3"), outsider("10.0.0.4")},
			Filters: []bgp.Filter{{Name: "f", ImportV4: []bgp.Rule{{Name: "in", PeerType: "eBGP"}},
				ExportV4: []bgp.Rule{{Name: "out", PeerType: "eBGP"}}}},
			Refusals: refusals(), Originated: []bgp.Origin{{Prefix: pfx("10.1.0.0/26"), LocalPref: 100}}}
	}
	rules := func(d *bgp.Desired) *bgp.Filter {
		d.Filters = []bgp.Filter{{Name: "f", ImportV4: slices.Clone(d.Filters[0].ImportV4),
			ExportV4: slices.Clone(d.Filters[0].ExportV4)}}
		return &d.Filters[0]
	}
	for _, c := range []struct {
		name         string
		change       func(*bgp.Desired)
		in, out, own string // last octets of the peers whose parts differ
	}{
		{"nothing", func(*bgp.Desired) {}, "", "", ""},
		{"an import rule", func(d *bgp.Desired) { rules(d).ImportV4[0].PeerType = "" }, "1 2", "", ""},
		{"an export rule", func(d *bgp.Desired) { rules(d).ExportV4[0].PeerType = "" }, "", "1 2", "1 2"},
		{"the name of a rule", func(d *bgp.Desired) { rules(d).ExportV4[0].Name = "other" }, "", "", ""},
		{"the next hop", func(d *bgp.Desired) { d.Sessions[1].NextHop = bgp.NextHopSelf }, "", "2", ""},
		{"no filter", func(d *bgp.Desired) { d.Sessions[0].Filters = nil }, "", "", ""},
		{"another refusal for all", func(d *bgp.Desired) { d.Refusals = d.Refusals[1:] }, "1 2 3 4", "", ""},
		{"another refusal of outsiders", func(d *bgp.Desired) {
			d.Refusals = slices.Clone(d.Refusals)
			d.Refusals[3].Match.Max = 31
		}, "4", "", ""},
		{"another exception", func(d *bgp.Desired) {
			d.Refusals = slices.Clone(d.Refusals)
			d.Refusals[3].Except = nil
		}, "", "", ""},
		{"another own block", func(d *bgp.Desired) {
			d.Refusals = slices.Clone(d.Refusals)
			d.Refusals[0].Also = []netip.Prefix{pfx("10.1.2.0/26")}
		}, "", "", ""},
		{"another reason", func(d *bgp.Desired) {
			d.Refusals = slices.Clone(d.Refusals)
			d.Refusals[0].Reason = "other"
		}, "", "", ""},
		{"an own route for filters only", func(d *bgp.Desired) { d.Originated[0].FilterOnly = true }, "", "",
			"1 2 3 4"},
	} {
		before, d := Translate(base(), nil).Peers(), base()
		c.change(&d)
		after := Translate(d, nil).Peers()
		differ := func(same func(a, b PeerPolicy) bool) string {
			var list []string
			for i := 1; i <= 4; i++ {
				a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
				if !same(before[a], after[a]) {
					list = append(list, fmt.Sprint(i))
				}
			}
			return strings.Join(list, " ")
		}
		in := differ(func(a, b PeerPolicy) bool { return a.In == b.In })
		out := differ(func(a, b PeerPolicy) bool { return a.Out == b.Out })
		own := differ(func(a, b PeerPolicy) bool { return maps.Equal(a.Own, b.Own) })
		if in != c.in || out != c.out || own != c.own {
			t.Errorf("%s: in %q, out %q, own %q; want %q, %q, %q", c.name, in, out, own, c.in, c.out, c.own)
		}
	}
}

func TestRangesAndExceptions(t *testing.T) {
	d := relaying(bgp.DrainDraining)
	d.Refusals = refusals()
	p := Translate(d, nil)
	want := map[netip.Prefix]string{
		pfx("10.1.0.0/16"):  "export [7] [[1 2 3]]",
		pfx("10.2.0.0/16"):  "[] []",
		pfx("10.1.0.0/26"):  "hidden own but [[512 2147483647] [100]]",
		pfx("10.3.0.0/16"):  "hidden ",
		pfx("fd03::/48"):    "hidden ",
		pfx("fd01::/48"):    "export ",
		pfx("10.96.0.0/12"): "service ",
	}
	if !maps.Equal(p.Ranges, want) {
		t.Errorf("ranges %q, want %q", p.Ranges, want)
	}
	excepted := []netip.Prefix{pfx("10.1.0.0/26"), pfx("10.1.1.0/26"), pfx("fd01::/122")}
	if !slices.Equal(p.Excepted, excepted) {
		t.Errorf("exceptions %v, want %v", p.Excepted, excepted)
	}
	if p.Drain != bgp.DrainDraining {
		t.Errorf("drain %q", p.Drain)
	}
	a := map[netip.Prefix]string{pfx("10.1.0.0/16"): "a", pfx("10.2.0.0/16"): "b", pfx("10.3.0.0/16"): "c"}
	b := map[netip.Prefix]string{pfx("10.1.0.0/16"): "a", pfx("10.2.0.0/16"): "x", pfx("10.4.0.0/16"): ""}
	got := slices.SortedFunc(slices.Values(Unequal(a, b)), netip.Prefix.Compare)
	if want := []netip.Prefix{pfx("10.2.0.0/16"), pfx("10.3.0.0/16"), pfx("10.4.0.0/16")}; !slices.Equal(got, want) {
		t.Errorf("unequal %v, want %v", got, want)
	}
}

// A session has the refusals of its family; only outsiders have those of outsiders. The text has their ranges, without
// reasons and exceptions.
func TestRefusalsBySession(t *testing.T) {
	of := RefusalsBySession(refusals())
	for _, c := range []struct {
		session bgp.Session
		text    string
		reasons string
	}{
		{internal("10.0.0.1"), "{127.0.0.0/8 8 32 false};{0.0.0.0/0 29 32 false};", "loopback, long"},
		{internal("::ffff:10.0.0.1"), "{127.0.0.0/8 8 32 false};{0.0.0.0/0 29 32 false};", "loopback, long"},
		{outsider("10.0.0.2"), "{127.0.0.0/8 8 32 false};{0.0.0.0/0 29 32 false};{10.1.0.0/16 16 32 false};",
			"loopback, long, pool"},
		{internal("fd00::1"), "{fe80::/10 10 128 false};", "link-local"},
		{outsider("fd00::1"), "{fe80::/10 10 128 false};{fd01::/48 48 128 false};", "link-local, pool"},
	} {
		r := of(c.session)
		var reasons []string
		for _, refusal := range r.List {
			reasons = append(reasons, refusal.Reason)
		}
		if r.Text != c.text || strings.Join(reasons, ", ") != c.reasons {
			t.Errorf("%s: %q of %q, want %q of %q", c.session.Address, r.Text, reasons, c.text, c.reasons)
		}
	}
}

// A set of neighbours holds its peers and no peer of another session, in the shortest prefixes.
func TestCover(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var d bgp.Desired
		var peers []netip.Addr
		seen := map[netip.Addr]bool{}
		for range 1 + rnd.IntN(12) {
			a := netip.AddrFrom4([4]byte{10, 0, byte(rnd.IntN(2)), byte(rnd.IntN(16))})
			if rnd.IntN(3) == 0 {
				a = netip.AddrFrom16([16]byte{0xfd, 15: byte(rnd.IntN(16))})
			}
			if seen[a] {
				continue
			}
			seen[a] = true
			d.Sessions = append(d.Sessions, bgp.Session{Address: a})
			if rnd.IntN(2) == 0 {
				peers = append(peers, a)
			}
		}
		b := &policyBuilder{d: d}
		var set []netip.Prefix
		for _, text := range b.cover(peers) {
			set = append(set, pfx(text))
		}
		holds := func(a netip.Addr, set []netip.Prefix) bool {
			return slices.ContainsFunc(set, func(p netip.Prefix) bool { return p.Contains(a) })
		}
		for _, s := range d.Sessions {
			if holds(s.Address, set) != slices.Contains(peers, s.Address) {
				t.Fatalf("%v of %v: the set %v is wrong about %s", peers, seen, set, s.Address)
			}
		}
		for i, p := range set { // one bit less would hold another session, or the whole family
			if p.Bits() == 1 {
				continue
			}
			shorter := []netip.Prefix{netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()}
			if !slices.ContainsFunc(d.Sessions, func(s bgp.Session) bool {
				return holds(s.Address, shorter) && !slices.Contains(peers, s.Address)
			}) {
				t.Fatalf("%v of %v: the prefix %s is too long", peers, seen, set[i])
			}
		}
	}
}

func TestBehindOwnAS(t *testing.T) {
	for _, c := range []struct{ list, want []uint32 }{
		{nil, nil},
		{[]uint32{65009}, []uint32{64512, 65009}},
		{[]uint32{64512}, []uint32{64512}},
		{[]uint32{65009, 64512}, []uint32{64512, 65009}},
		{[]uint32{64512, 65009}, []uint32{64512, 64512, 65009}},
	} {
		if got := BehindOwnAS(64512, c.list); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.list, got, c.want)
		}
	}
}
