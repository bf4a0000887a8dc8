package speaker

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

// GoBGP needs a listener to take connections at all. Nobody can connect to it, not even on this host.
func TestNobodyReachesGoBGPsListener(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	mustSet(t, s, d)
	have, err := s.Server().GetBgp(t.Context(), &api.GetBgpRequest{})
	if err != nil {
		t.Fatal(err)
	}
	g := have.GetGlobal()
	if len(g.GetListenAddresses()) != 1 || g.GetListenPort() <= 0 {
		t.Fatalf("GoBGP listens on %v, port %d", g.GetListenAddresses(), g.GetListenPort())
	}
	for _, address := range []string{g.GetListenAddresses()[0], "127.0.0.1", "0.0.0.0"} {
		to := netip.AddrPortFrom(netip.MustParseAddr(address), uint16(g.GetListenPort())).String()
		if c, err := net.DialTimeout("tcp", to, time.Second); err == nil {
			_ = c.Close()
			t.Errorf("a connection to %s was accepted", to)
		}
	}
	if port, addresses := s.Listening(); port != int32(d.Global.ListenPort) || !slices.Equal(addresses,
		[]string{"127.0.0.1"}) {
		t.Errorf("peers are said to reach %v, port %d", addresses, port)
	}
}

// The routes advertised to a peer are those that it was sent, with the attributes that it got: behind the export filter
// and the rules of BGP.
func TestAdvertisedRoutesAreAsSent(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	external := passive("127.0.1.170")
	external.PeerAS, external.Filters = 65010, []string{"f"}
	internal := passive("127.0.1.171")
	d.Sessions = []bgp.Session{external, internal}
	community := uint32(64512<<16 | 7)
	hidden := pfx("10.244.9.0/26")
	d.Filters = []bgp.Filter{{Name: "f", ExportV4: []bgp.Rule{
		{Name: "hidden", Prefix: &bgp.PrefixMatch{CIDR: hidden, Min: 26, Max: 26}},
		{Name: "rest", Accept: true, Operations: []bgp.Operation{{AddCommunity: &community},
			{PrependASPath: []uint32{64512, 64512}}}},
	}}}
	d.ExportPrefixes = []netip.Prefix{pfx("10.244.0.0/16")}
	d.Originated = []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), LocalPref: 1000}, {Prefix: hidden, LocalPref: 1000}}
	mustSet(t, s, d)
	out := dialFake(t, "127.0.1.170", listenOf(d), fakeOptions{as: 65010, id: "10.99.1.170"})
	in := dialFake(t, "127.0.1.171", listenOf(d), fakeOptions{as: 64512, id: "10.99.1.171"})
	learned := pfx("10.244.5.0/26")
	in.send(update("10.0.0.5", 65020, 300, learned))
	out.await("both routes", func() bool { return len(out.routes) == 2 })

	sequence, err := s.AdvertisedTo(ip("127.0.1.170"))
	if err != nil {
		t.Fatal(err)
	}
	list := slices.Collect(sequence)
	if len(list) != 3 {
		t.Fatalf("%+v", list)
	}
	for _, p := range list {
		if p.Prefix == hidden {
			if p.Verdict.Accept || p.Verdict.Rule != "hidden rejects" {
				t.Errorf("%+v", p)
			}
			continue
		}
		out.mu.Lock()
		u := out.routes[p.Prefix]
		out.mu.Unlock()
		if u == nil {
			t.Errorf("%s was not sent", p.Prefix)
			continue
		}
		var path, communities []uint32
		for _, a := range u.PathAttributes {
			switch a := a.(type) {
			case *gobgp.PathAttributeAsPath:
				for _, segment := range a.Value {
					path = append(path, segment.GetAS()...)
				}
			case *gobgp.PathAttributeCommunities:
				communities = a.Value
			}
		}
		if !p.Verdict.Accept || !slices.Equal(p.ASPath, path) || !slices.Equal(p.Communities, communities) ||
			!slices.Equal(p.Verdict.Route.ASPath, path) || !slices.Equal(p.Verdict.Route.Communities, communities) ||
			p.NextHop != ip("127.0.0.1") || p.LocalPref != nil || !slices.Equal(communities, []uint32{community}) {
			t.Errorf("%s is shown with AS path %v, communities %v, next hop %s; sent were %v, %v", p.Prefix, p.ASPath,
				p.Communities, p.NextHop, path, communities)
		}
	}
	back, err := s.AdvertisedTo(ip("127.0.1.171"))
	if err != nil {
		t.Fatal(err)
	}
	for p := range back {
		if p.Prefix == learned && (p.Verdict.Accept || p.Verdict.Rule != "it was learned from this peer") {
			t.Errorf("%s: %+v", p.Prefix, p.Verdict)
		}
	}
}
