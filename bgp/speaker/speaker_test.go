package speaker

import (
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/locrib"
)

func TestRoutesBothWays(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.2")}
	d.Originated = []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), LocalPref: bgp.MaxPriority - bgp.NormalPriority,
		Communities: []uint32{64512<<16 | 7}, LargeCommunities: [][3]uint32{{1, 2, 3}}, Blackhole: true},
		{Prefix: pfx("10.244.9.0/26"), Withheld: true, Blackhole: true}}
	mustSet(t, s, d)
	p := dialFake(t, "127.0.1.2", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.2"})
	awaitSession(t, s, "127.0.1.2", "Established", established)

	attrs := map[gobgp.BGPAttrType]gobgp.PathAttributeInterface{}
	for _, a := range p.awaitRoute(pfx("10.244.0.0/26")).PathAttributes {
		attrs[a.GetType()] = a
	}
	if lp := attrs[gobgp.BGP_ATTR_TYPE_LOCAL_PREF].(*gobgp.PathAttributeLocalPref).Value; lp != 2147482623 {
		t.Errorf("LOCAL_PREF %d, want 2147482623", lp)
	}
	if nh := attrs[gobgp.BGP_ATTR_TYPE_NEXT_HOP].(*gobgp.PathAttributeNextHop).Value; nh != ip("127.0.0.1") {
		t.Errorf("next hop %s, want the local address of the session", nh)
	}
	if c := attrs[gobgp.BGP_ATTR_TYPE_COMMUNITIES].(*gobgp.PathAttributeCommunities).Value; len(c) != 1 ||
		c[0] != 64512<<16|7 {
		t.Errorf("communities %v, want 64512:7", c)
	}
	if attrs[gobgp.BGP_ATTR_TYPE_LARGE_COMMUNITY] == nil {
		t.Error("no large communities")
	}
	if p.open.HoldTime != 240 {
		t.Errorf("hold time %d in our OPEN, want 240", p.open.HoldTime)
	}

	p.send(update("10.0.0.2", 0, 2147482623, pfx("10.244.1.0/26"), pfx("10.244.2.0/26")))
	table := routeTable{}
	awaitRoutes(t, s, table, "two routes", func() bool { return len(table) == 2 })
	r := table[pfx("10.244.1.0/26")]
	if r.Metric != 1024 || len(r.Paths) != 1 ||
		r.Paths[0] != (locrib.Path{NextHop: ip("10.0.0.2"), Peer: ip("127.0.1.2")}) {
		t.Errorf("route %+v, want metric 1024 via 10.0.0.2 of 127.0.1.2", r)
	}
	p.send(withdrawal(pfx("10.244.1.0/26")))
	awaitRoutes(t, s, table, "the withdrawal", func() bool { return len(table) == 1 })

	d.Originated = nil
	mustSet(t, s, d)
	p.await("our withdrawal", func() bool { return p.routes[pfx("10.244.0.0/26")] == nil })
	if p.routes[pfx("10.244.9.0/26")] != nil {
		t.Error("a withheld prefix was announced")
	}
}
