package gobgppolicy

import (
	"net/netip"
	"testing"

	"github.com/manxnet/manx/bgp"
)

func ip(s string) netip.Addr          { return netip.MustParseAddr(s) }
func pfx(s string) netip.Prefix       { return netip.MustParsePrefix(s) }
func std(a, n uint32) *uint32         { return new(a<<16 | n) }
func large(a, b, c uint32) *[3]uint32 { return &[3]uint32{a, b, c} }

// internal and external are sessions of AS 64512.
func internal(address string, filters ...string) bgp.Session {
	return bgp.Session{Address: ip(address), LocalAS: 64512, PeerAS: 64512, Filters: filters}
}

func external(address string, filters ...string) bgp.Session {
	return bgp.Session{Address: ip(address), LocalAS: 64512, PeerAS: 65001, Filters: filters}
}

func sessions(list ...bgp.Session) bgp.Desired { return bgp.Desired{Sessions: list} }

// TestTranslate compares whole policies with testdata/policies.txt: the order of statements is the order of evaluation.
func TestTranslate(t *testing.T) {
	g := openGolden(t, "policies.txt")
	defer g.close()
	for _, c := range []struct {
		name string
		d    bgp.Desired
	}{
		{"no session", bgp.Desired{}},
		{"an internal session", sessions(internal("10.0.0.1"))},
		{"an external session", sessions(external("10.0.0.1"))},
		{"drained", bgp.Desired{Drain: bgp.DrainWithdrawn, Sessions: []bgp.Session{external("10.0.0.1")},
			ExportPrefixes: []netip.Prefix{pfx("10.1.0.0/16")}}},
		{"next hops", sessions(modified(internal("10.0.0.1"), func(s *bgp.Session) { s.NextHop = bgp.NextHopSelf }),
			modified(external("10.0.0.2"), func(s *bgp.Session) { s.NextHop = bgp.NextHopKeep }),
			modified(external("10.0.0.3"), func(s *bgp.Session) { s.NextHop = bgp.NextHopAuto }))},
		{"learned routes", relaying(bgp.DrainNone)},
		{"learned routes of a node that drains", relaying(bgp.DrainDraining)},
		{"own routes without filters", bgp.Desired{Sessions: []bgp.Session{internal("10.0.0.1"), internal("fd00::1")},
			Originated: []bgp.Origin{{Prefix: pfx("10.1.0.0/26")}, {Prefix: pfx("10.1.1.0/26"), Withheld: true},
				{Prefix: pfx("10.1.2.0/26"), FilterOnly: true}, {Prefix: pfx("fd01::/122"), FilterOnly: true},
				{Prefix: pfx("10.1.3.0/26"), FilterOnly: true, Withheld: true}}}},
		{"refusals", bgp.Desired{Sessions: []bgp.Session{internal("10.0.0.1"), outsider("10.0.0.2"),
			outsider("fd00::2")}, Refusals: refusals()}},
		{"refusals without sessions of IPv6, and without outsiders", bgp.Desired{
			Sessions: []bgp.Session{external("10.0.0.1")}, Refusals: refusals()}},
		{"refusals of outsiders without exceptions", bgp.Desired{Sessions: []bgp.Session{outsider("10.0.0.2")},
			Refusals: bgp.Refusals{{Outsiders: true, Match: inside("10.1.0.0/16")}}}},
		{"refusals of single prefixes", bgp.Desired{Sessions: []bgp.Session{internal("10.0.0.1"), internal("fd00::1")},
			Refusals: bgp.Refusals{{Match: nothing("0.0.0.0/0"), Also: []netip.Prefix{pfx("10.1.0.0/26")}},
				{Match: nothing("::/0")}}}},
	} {
		g.compare(c.name, lines(Translate(c.d, nil)))
	}
}

func modified(s bgp.Session, change func(*bgp.Session)) bgp.Session {
	change(&s)
	return s
}

func outsider(address string) bgp.Session {
	return modified(external(address), func(s *bgp.Session) { s.Outsider = true })
}

func inside(cidr string) bgp.PrefixMatch {
	p := pfx(cidr)
	return bgp.PrefixMatch{CIDR: p, Min: p.Bits(), Max: p.Addr().BitLen()}
}

func nothing(cidr string) bgp.PrefixMatch { return bgp.PrefixMatch{CIDR: pfx(cidr), Min: 1} }

func refusals() bgp.Refusals {
	return bgp.Refusals{
		{Match: inside("127.0.0.0/8"), Reason: "loopback"}, {Match: inside("fe80::/10"), Reason: "link-local"},
		{Match: bgp.PrefixMatch{CIDR: pfx("0.0.0.0/0"), Min: 29, Max: 32}, Reason: "long"},
		{Outsiders: true, Match: inside("10.1.0.0/16"), Reason: "pool",
			Except: []netip.Prefix{pfx("10.1.0.0/26"), pfx("10.1.1.0/26")}},
		{Outsiders: true, Match: inside("fd01::/48"), Reason: "pool", Except: []netip.Prefix{pfx("fd01::/122")}},
	}
}

// relaying is the state of a node that passes on learned routes of both families.
func relaying(drain bgp.Drain) bgp.Desired {
	return bgp.Desired{
		Drain: drain, Sessions: []bgp.Session{internal("10.0.0.1")},
		Tags: []bgp.Tag{{Prefix: pfx("10.1.0.0/16"), Communities: []uint32{7},
			LargeCommunities: [][3]uint32{{1, 2, 3}}},
			{Prefix: pfx("10.2.0.0/16")}},
		NoExportPrefixes: []netip.Prefix{pfx("10.1.0.0/26"), pfx("10.3.0.0/16"), pfx("fd03::/48")},
		OwnBlocks:        []netip.Prefix{pfx("10.1.0.0/26")},
		Elevated:         [2][]uint32{{512, bgp.MaxPriority}, {100}},
		ExportPrefixes:   []netip.Prefix{pfx("10.1.0.0/16"), pfx("fd01::/48")},
		Services:         []netip.Prefix{pfx("10.96.0.0/12")},
	}
}
