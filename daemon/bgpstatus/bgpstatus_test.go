package bgpstatus

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
)

func TestStatusRoutes(t *testing.T) {
	ip, pfx := netip.MustParseAddr, netip.MustParsePrefix
	links := []kernel.Link{{Index: 2, Name: "eth0"}, {Index: 7, Name: "cali1"}, {Index: 8, Name: "tunl0"}}
	via := func(gateway string, link int) kernel.NextHop {
		h := kernel.NextHop{Link: link}
		if gateway != "" {
			h.Gateway = ip(gateway)
		}
		return h
	}
	route := func(dst string, p kernel.Protocol, hops ...kernel.NextHop) kernel.Route {
		return kernel.Route{Dst: pfx(dst), Protocol: p, Type: kernel.Unicast, NextHops: hops}
	}
	inKernel := []kernel.Route{
		route("0.0.0.0/0", kernel.ProtocolBoot, via("192.0.2.1", 2)),
		route("192.0.2.0/24", kernel.ProtocolKernel, via("", 2)),
		route("10.1.0.0/26", kernel.ProtocolBIRD, via("192.0.2.12", 2)),
		route("10.2.0.0/26", kernel.ProtocolBIRD, via("192.0.2.12", 2), via("192.0.2.13", 2)),
		route("10.3.0.0/26", kernel.ProtocolBIRD, via("192.0.2.1", 2)), // the gateway towards the next hop
		// a route of another program, with the prefix of a learned one
		route("10.4.0.0/26", kernel.ProtocolStatic, via("192.0.2.1", 2)),
		{Dst: pfx("10.9.0.0/26"), Protocol: kernel.ProtocolBIRD, Type: kernel.Blackhole},
		route("10.9.0.5/32", kernel.ProtocolBoot, via("", 7)),
		route("fe80::/64", kernel.ProtocolKernel, via("", 2)),
		route("ff00::/8", kernel.ProtocolKernel, via("", 2)),
		route("fd00::/64", kernel.ProtocolKernel, via("", 2)),
	}
	path := func(nextHop, peer string) locrib.Path { return locrib.Path{NextHop: ip(nextHop), Peer: ip(peer)} }
	learned := []locrib.Route{
		{Prefix: pfx("10.1.0.0/26"), Paths: []locrib.Path{path("192.0.2.12", "192.0.2.12")}},
		{Prefix: pfx("10.2.0.0/26"), Paths: []locrib.Path{path("192.0.2.12", "192.0.2.12"),
			path("192.0.2.13", "192.0.2.99")}},
		{Prefix: pfx("10.3.0.0/26"), Paths: []locrib.Path{path("198.51.100.7", "192.0.2.99")}},
		{Prefix: pfx("10.4.0.0/26"), Paths: []locrib.Path{path("192.0.2.12", "192.0.2.12")}},
	}
	sessions := []speaker.SessionStatus{
		{Session: bgp.Session{Address: ip("192.0.2.12"), Type: bgp.SessionMesh}, State: "Established"},
		{Session: bgp.Session{Address: ip("192.0.2.99"), Type: bgp.SessionGlobal}},
		{Session: bgp.Session{Address: ip("192.0.2.98"), Type: bgp.SessionNode}, State: "Active"},
		{Session: bgp.Session{Address: ip("10.9.0.5"), Type: bgp.SessionGlobal, Workload: "cali1"}, State: "Active"},
	}
	own := []bgp.Origin{{Prefix: pfx("10.9.0.0/26"), Blackhole: true}, {Prefix: pfx("10.96.0.0/12"), Shared: true},
		{Prefix: pfx("10.8.0.0/26"), Withheld: true}}
	var got []string
	for _, r := range statusRoutes(inKernel, links, learned, sessions, own) {
		use := "RIB"
		if r.Used {
			use = "FIB"
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s %s", r.Prefix, use, r.Gateway, r.Interface,
			r.Source, r.Peer)))
	}
	slices.Sort(got)
	want := []string{
		"0.0.0.0/0 FIB 192.0.2.1 eth0 Kernel invalid IP",
		"10.1.0.0/26 FIB 192.0.2.12 eth0 NodeMesh 192.0.2.12",
		"10.2.0.0/26 FIB 192.0.2.12 eth0 NodeMesh 192.0.2.12",
		"10.2.0.0/26 FIB 192.0.2.13 eth0 BGPPeer 192.0.2.99",
		"10.3.0.0/26 FIB 192.0.2.1 eth0 BGPPeer 192.0.2.99",
		"10.4.0.0/26 FIB 192.0.2.1 eth0 Kernel invalid IP",
		"10.4.0.0/26 RIB 192.0.2.12  NodeMesh 192.0.2.12",
		"10.9.0.0/26 FIB invalid IP blackhole Static invalid IP",
		"10.9.0.5/32 FIB invalid IP cali1 Kernel invalid IP",
		"10.96.0.0/12 RIB invalid IP  Static invalid IP",
		"192.0.2.0/24 FIB invalid IP eth0 Direct invalid IP",
		"fd00::/64 FIB invalid IP eth0 Direct invalid IP",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var types []string
	for _, s := range statusSessions(sessions) {
		types = append(types, fmt.Sprint(s.Peer, s.Type, s.State))
	}
	if want := []string{"192.0.2.12NodeMeshEstablished", "192.0.2.99GlobalPeerIdle",
		"192.0.2.98NodePeerActive"}; !slices.Equal(types, want) {
		t.Errorf("sessions %q, want %q", types, want)
	}
}
