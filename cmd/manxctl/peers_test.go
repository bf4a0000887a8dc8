package main_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// fillIn fills in every field of the established session that describe shows, and a BFD session.
func fillIn(p *manxv1.Peer) {
	p.LastErrorBy, p.Restarts = "sent", 1
	p.Messages = &manxv1.PeerMessages{In: 40, UpdatesIn: 4, Out: 30, UpdatesOut: 3}
	p.Wanted = &manxv1.Wanted{Source: "10.0.0.1", HoldSeconds: 240, KeepaliveSeconds: 80, RestartSeconds: 120,
		MultihopTtl: 64, NextHop: "auto", Filters: []string{"f1", "f2"},
		ReflectorClient: true, ReflectorClusterId: "244.0.0.1", AllowOwnAs: 1, MaxPrefixes: 1000}
	p.Negotiated.Families, p.Negotiated.AddPathReceive, p.Negotiated.LocalAddress = []string{"ipv4-unicast"}, true,
		"10.0.0.1"
	p.Differences = []string{"the peer takes only one path for each prefix (no ADD-PATH, RFC 7911)"}
	p.Conflicts = []string{"BGPConfiguration/default is kept, BGPPeer/tor-9 dropped: the mesh has the address"}
	p.Notices = []string{"BGPConfiguration/default: spec.x is unknown"}
	p.Bfd = &manxv1.PeerBFD{State: "Up", SinceUnixMs: p.SinceUnixMs, Downs: 1, TransmitMs: 50, ReceiveMs: 50,
		DetectionMs: 200, Multiplier: 3, Multihop: true}
}

func TestPeersAreTheSessionsOfThisNode(t *testing.T) {
	s, d := newPlayedDaemon(t)
	d.change(func() {
		fillIn(d.peers[0])
		p := d.peers[1]
		p.LastError, p.LastErrorBy, p.LastErrorAtUnixMs = p.GetReason(), "local", p.GetSinceUnixMs()
	})
	for name, args := range map[string][]string{
		"peers": {"get", "peers"}, "peers-json": {"get", "peers", "-o", "json"},
		"peers-yaml":      {"get", "peer", "192.0.2.1", "-o", "yaml"},
		"peers-of-object": {"get", "peers", "tor-1"}, "peers-name": {"get", "peers", "-o", "name"},
		"peers-watch": {"get", "peers", "-w"}, "peers-watch-json": {"get", "peers", "-w", "-o", "json"},
		"describe-peer":    {"describe", "peer", "10.0.0.2", "2001:db8::1"},
		"describe-bgppeer": {"describe", "bgppeer", "tor-1"}, "describe-dropped": {"describe", "bgppeer", "tor-9"},
	} {
		r := s.runWithDaemon(args...)
		if r.code != 0 || r.err != "" {
			t.Errorf("%s: exit code %d, %s", name, r.code, r.err)
		}
		if strings.HasPrefix(r.out, "PEER") {
			r.out = wideAges(r.out)
		}
		golden(t, name, ages.ReplaceAllString(r.out, "AGE"))
	}
	golden(t, "peers-wide", wideAges(s.runWithDaemon("get", "peers", "-o", "wide", "--no-headers").out))
	if out := s.runWithDaemon("get", "peers", "--no-headers").out; strings.Contains(out, "PHASE") ||
		!strings.HasPrefix(out, "10.0.0.2 ") {
		t.Errorf("without headers:\n%s", out)
	}

	s.runWithDaemon("describe", "peer", "10.9.9.9").want(t, 1, "", "Error: there is no session with 10.9.9.9")
	s.runWithDaemon("describe", "bgppeer", "nobody").want(t, 1, "",
		"Error: BGPPeer/nobody configures no session of this node")
	s.runWithDaemon("describe", "bgppeer", "10.0.0.2").want(t, 2, "", `want "describe peer 10.0.0.2"`)
	s.runWithDaemon("get", "peers", "-l", "a=b").want(t, 2, "", "peers are the BGP sessions of this node")
	s.runWithDaemon("get", "peers", "-w", "-o", "yaml").want(t, 2, "", "-w goes with")
	s.runWithDaemon("get", "peers", "10.0.0.2", "-w").want(t, 2, "", "-w is for all peers")
	s.runWithDaemon("get", "hostobjects", "-w").want(t, 2, "", "-w is for peers and objects of the datastore")
	d.change(func() { d.peers = nil })
	s.runWithDaemon("get", "peers").want(t, 0, "", "No peers found.")
}

func TestRoutesOfPeersAreAskedFor(t *testing.T) {
	s, d := newPlayedDaemon(t)
	for _, c := range []struct {
		name string
		args []string
		want *manxv1.ListPeerRoutesRequest
	}{
		{"routes-advertised", []string{"--advertised-to", "10.0.0.2"}, &manxv1.ListPeerRoutesRequest{
			Direction: "advertised", Peer: "10.0.0.2"}},
		{"routes-received", []string{"--received-from", "tor-1", "-o", "wide"}, &manxv1.ListPeerRoutesRequest{
			Direction: "received", Peer: "tor-1"}},
		{"routes-rejected", []string{"--rejected", "-o", "json"}, &manxv1.ListPeerRoutesRequest{Direction: "rejected"}},
		{"", []string{"--rejected", "--peer", "nothing"}, &manxv1.ListPeerRoutesRequest{Direction: "rejected",
			Peer: "nothing"}},
	} {
		r := s.runWithDaemon(append([]string{"routes"}, c.args...)...)
		if q := <-d.peerRouteRequests; r.code != 0 || !proto.Equal(q, c.want) {
			t.Errorf("%v: exit code %d, requested %v\n%s", c.args, r.code, q, r.err)
		}
		if c.name != "" {
			golden(t, c.name, r.out)
		} else if r.err != "No routes found.\n" {
			t.Errorf("nothing to show: %q", r.err)
		}
	}
	s.runWithDaemon("routes", "--advertised-to", "a", "--rejected").want(t, 2, "",
		"use one of --advertised-to, --rejected")
	s.runWithDaemon("routes", "--rejected", "--within", "10.0.0.0/8").want(t, 2, "",
		"--within is for routes of the kernel")
	s.runWithDaemon("routes", "--peer", "a").want(t, 2, "", "--peer goes with --rejected")
	s.runWithDaemon("routes", "-o", "wide").want(t, 2, "", "wide")
}
