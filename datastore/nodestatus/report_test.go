package nodestatus

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

var (
	ip  = netip.MustParseAddr
	pfx = netip.MustParsePrefix
	at  = time.Date(2026, 11, 20, 23, 5, 9, 500, time.FixedZone("x", 3600))
)

var someFacts = Facts{
	Running: true, Version: "manx v1", RouterID: ip("172.29.8.11"), Started: at, Reconfigured: at.Add(time.Minute),
	Sessions: []Session{
		{Peer: ip("172.29.8.12"), Type: v3.BGPPeerTypeNodeMesh, State: v3.BGPSessionStateEstablished, Since: at},
		{Peer: ip("192.0.2.10"), Type: v3.BGPPeerTypeGlobalPeer, State: v3.BGPSessionStateConnect, Since: at},
		{Peer: ip("192.0.2.13"), Type: v3.BGPPeerTypeNodePeer, State: v3.BGPSessionStateIdle},
		{Peer: ip("2001:db8::11"), Type: v3.BGPPeerTypeGlobalPeer, State: v3.BGPSessionStateActive, Since: at},
	},
	Routes: []Route{
		{Prefix: pfx("10.42.1.0/26"), Gateway: ip("172.29.8.12"), Source: v3.RouteSourceTypeBGPPeer,
			Peer: ip("172.29.8.13")},
		{Prefix: pfx("fd00::40/122"), Interface: "blackhole", Used: true, Source: v3.RouteSourceTypeStatic},
		{Prefix: pfx("10.42.1.0/26"), Gateway: ip("172.29.8.12"), Interface: "eth0", Used: true,
			Source: v3.RouteSourceTypeNodeMesh, Peer: ip("172.29.8.12")},
		{Prefix: pfx("0.0.0.0/0"), Gateway: ip("172.29.8.1"), Interface: "eth0", Used: true,
			Source: v3.RouteSourceTypeKernel},
	},
}

const (
	noAgent  = `{"birdV4":{},"birdV6":{}}`
	noBGP    = `{"numberEstablishedV4":0,"numberNotEstablishedV4":0,"numberEstablishedV6":0,"numberNotEstablishedV6":0}`
	agent    = `{"state":"Ready","version":"manx v1","routerID":"172.29.8.11","lastBootTime":"2026-11-20 22:05:09","lastReconfigurationTime":"2026-11-20 22:06:09"}`
	sessions = `{"numberEstablishedV4":1,"numberNotEstablishedV4":2,"numberEstablishedV6":0,"numberNotEstablishedV6":1,"peersV4":[` +
		`{"peerIP":"172.29.8.12","type":"NodeMesh","state":"Established","since":"2026-11-20 22:05:09"},` +
		`{"peerIP":"192.0.2.10","type":"GlobalPeer","state":"Connect","since":"2026-11-20 22:05:09"},` +
		`{"peerIP":"192.0.2.13","type":"NodePeer","state":"Idle"}],` +
		`"peersV6":[{"peerIP":"2001:db8::11","type":"GlobalPeer","state":"Active","since":"2026-11-20 22:05:09"}]}`
	routes = `{"routesV4":[` +
		`{"type":"FIB","destination":"0.0.0.0/0","gateway":"172.29.8.1","interface":"eth0","learnedFrom":{"sourceType":"Kernel"}},` +
		`{"type":"FIB","destination":"10.42.1.0/26","gateway":"172.29.8.12","interface":"eth0","learnedFrom":{"sourceType":"NodeMesh","peerIP":"172.29.8.12"}},` +
		`{"type":"RIB","destination":"10.42.1.0/26","gateway":"172.29.8.12","interface":"N/A","learnedFrom":{"sourceType":"BGPPeer","peerIP":"172.29.8.13"}}],` +
		`"routesV6":[{"type":"FIB","destination":"fd00::40/122","gateway":"N/A","interface":"blackhole","learnedFrom":{"sourceType":"Static"}}]}`
)

func TestReport(t *testing.T) {
	for _, c := range []struct {
		rule    string
		classes []v3.NodeStatusClassType
		facts   Facts
		want    string // without lastUpdated
	}{
		{"nothing asked", nil, someFacts, `"agent":` + noAgent + `,"bgp":` + noBGP + `,"routes":{}`},
		{"agent", []v3.NodeStatusClassType{"Agent"}, someFacts, `"agent":{"birdV4":` + agent + `,"birdV6":` + agent +
			`},"bgp":` + noBGP + `,"routes":{}`},
		{"BGP", []v3.NodeStatusClassType{"BGP"}, someFacts, `"agent":` + noAgent + `,"bgp":` + sessions +
			`,"routes":{}`},
		{"routes, used ones first", []v3.NodeStatusClassType{"Routes"}, someFacts, `"agent":` + noAgent + `,"bgp":` +
			noBGP + `,"routes":` + routes},
		{"all", []v3.NodeStatusClassType{"Routes", "BGP", "Agent"}, someFacts, `"agent":{"birdV4":` + agent +
			`,"birdV6":` + agent + `},"bgp":` + sessions + `,"routes":` + routes},
		{"BGP does not run", []v3.NodeStatusClassType{"Agent", "BGP"}, Facts{Version: "manx v1"},
			`"agent":{"birdV4":{"state":"NotReady"},"birdV6":{"state":"NotReady"}},"bgp":` + noBGP + `,"routes":{}`},
		{"a class of a newer version", []v3.NodeStatusClassType{"Moon"}, someFacts, `"agent":` + noAgent + `,"bgp":` +
			noBGP + `,"routes":{}`},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got, err := json.Marshal(report(v3.CalicoNodeStatusSpec{Node: "n", Classes: c.classes}, c.facts, at))
			if err != nil {
				t.Fatal(err)
			}
			if want := `{"lastUpdated":"2026-11-20T22:05:09Z",` + c.want + `}`; string(got) != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// An object of the datastore must not grow without end.
func TestReportIsBounded(t *testing.T) {
	var f Facts
	for i := range 3 * maxRoutes {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		f.Routes = append(f.Routes, Route{Prefix: netip.PrefixFrom(a, 24), Used: i%3 == 2,
			Source: v3.RouteSourceTypeBGPPeer, Peer: ip("172.29.8.12")})
	}
	s := report(v3.CalicoNodeStatusSpec{Classes: []v3.NodeStatusClassType{"Routes"}}, f, at)
	if n := len(s.Routes.RoutesV4); n != maxRoutes {
		t.Errorf("%d routes", n)
	}
	for _, r := range s.Routes.RoutesV4 {
		if r.Type != v3.RouteTypeFIB {
			t.Fatalf("%+v stands before routes that are used", r)
		}
	}
	if b, _ := json.Marshal(s); len(b) > 600<<10 {
		t.Errorf("%d bytes for one family", len(b))
	}
}
