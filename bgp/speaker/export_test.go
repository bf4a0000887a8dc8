package speaker

import (
	"net/netip"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

// exportLab has a speaker in AS 64512 with an iBGP peer that announces routes and an eBGP peer that listens.
func exportLab(t *testing.T, from, to string, change func(*bgp.Desired)) (*Speaker, bgp.Desired, *fakePeer, *fakePeer) {
	t.Helper()
	s, d := testSpeaker(t, Config{})
	outside := passive(to)
	outside.PeerAS = 64600
	d.Sessions = []bgp.Session{passive(from), outside}
	d.Originated = []bgp.Origin{{Prefix: pfx("172.20.0.0/24"), LocalPref: 1000}} // own routes need no pool
	d.ExportPrefixes = []netip.Prefix{pfx("10.244.0.0/16")}
	d.NoExportPrefixes = []netip.Prefix{pfx("10.244.128.0/17")}
	if change != nil {
		change(&d)
	}
	mustSet(t, s, d)
	in := dialFake(t, from, listenOf(d), fakeOptions{as: 64512, id: "10.99.5.1"})
	out := dialFake(t, to, listenOf(d), fakeOptions{as: 64600, id: "10.99.5.2"})
	awaitSession(t, s, from, "Established", established)
	awaitSession(t, s, to, "Established", established)
	return s, d, in, out
}

func TestExportRulesChange(t *testing.T) {
	t.Parallel()
	s, d, in, out := exportLab(t, "127.0.1.70", "127.0.1.71", nil)
	in.send(update("10.0.0.70", 0, 100, pfx("10.244.1.0/26"), pfx("10.244.200.0/26"), pfx("0.0.0.0/0"),
		pfx("10.0.0.0/8"), pfx("10.245.1.0/26")))
	in.send(update("10.0.0.70", 0, 100, pfx("10.244.2.0/26"))) // the last one: earlier ones have been decided

	exported := func(want ...string) {
		t.Helper()
		for _, w := range want {
			out.await("route "+w, func() bool { return out.routes[pfx(w)] != nil })
		}
		out.await("no other route", func() bool { return len(out.routes) == len(want) })
	}
	exported("172.20.0.0/24", "10.244.1.0/26", "10.244.2.0/26")
	for _, a := range out.awaitRoute(pfx("10.244.1.0/26")).PathAttributes {
		if nh, ok := a.(*gobgp.PathAttributeNextHop); ok && nh.Value != ip("127.0.0.1") {
			t.Errorf("next hop %s towards eBGP, want this node", nh.Value)
		}
	}

	d.ExportPrefixes = append(d.ExportPrefixes, pfx("10.245.0.0/16"))
	mustSet(t, s, d)
	exported("172.20.0.0/24", "10.244.1.0/26", "10.244.2.0/26", "10.245.1.0/26")

	d.ExportPrefixes = d.ExportPrefixes[1:]
	mustSet(t, s, d)
	exported("172.20.0.0/24", "10.245.1.0/26")

	d.NoExportPrefixes = append(d.NoExportPrefixes, pfx("10.245.1.0/26"))
	mustSet(t, s, d)
	exported("172.20.0.0/24")

	d.ExportPrefixes, d.NoExportPrefixes = nil, nil
	mustSet(t, s, d)
	exported("172.20.0.0/24")
	if in.isClosed() || out.isClosed() {
		t.Error("a change of the rules ended a session")
	}
}

// A new own block is announced, and nothing else is sent again because of it.
func TestOwnBlockIsSentAlone(t *testing.T) {
	t.Parallel()
	s, d, in, out := exportLab(t, "127.0.1.80", "127.0.1.81", nil)
	in.send(update("10.0.0.70", 0, 100, pfx("10.244.1.0/26")))
	out.await("the learned route", func() bool { return out.routes[pfx("10.244.1.0/26")] != nil })
	time.Sleep(1500 * time.Millisecond) // the resend after a session came up
	before := out.received(gobgp.BGP_MSG_UPDATE)
	d.Originated = append(d.Originated, bgp.Origin{Prefix: pfx("10.244.7.0/26"),
		LocalPref: bgp.MaxPriority - bgp.NormalPriority})
	d.NoExportPrefixes = append(d.NoExportPrefixes, pfx("10.244.7.0/26"))
	mustSet(t, s, d)
	out.await("the block", func() bool { return out.routes[pfx("10.244.7.0/26")] != nil })
	time.Sleep(1500 * time.Millisecond) // the second check
	if n := out.received(gobgp.BGP_MSG_UPDATE) - before; n != 1 {
		t.Errorf("%d UPDATEs were sent for one block", n)
	}
}

func TestNextHopModes(t *testing.T) {
	for name, c := range map[string]struct {
		mode     bgp.NextHopMode
		from, to string
		want     string
	}{
		"eBGP auto is self": {bgp.NextHopAuto, "127.0.1.72", "127.0.1.73", "127.0.0.1"},
		"eBGP self":         {bgp.NextHopSelf, "127.0.1.74", "127.0.1.75", "127.0.0.1"},
		"eBGP keep":         {bgp.NextHopKeep, "127.0.1.76", "127.0.1.77", "10.0.0.70"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, in, out := exportLab(t, c.from, c.to, func(d *bgp.Desired) { d.Sessions[1].NextHop = c.mode })
			in.send(update("10.0.0.70", 0, 100, pfx("10.244.1.0/26")))
			for _, a := range out.awaitRoute(pfx("10.244.1.0/26")).PathAttributes {
				if nh, ok := a.(*gobgp.PathAttributeNextHop); ok && nh.Value != ip(c.want) {
					t.Errorf("next hop %s, want %s", nh.Value, c.want)
				}
			}
		})
	}
}

// TestNextHopSelfForReflectorClients: an iBGP peer gets learned routes only through a reflector, unchanged by default.
func TestNextHopSelfForReflectorClients(t *testing.T) {
	t.Parallel()
	s, d, in, _ := exportLab(t, "127.0.1.78", "127.0.1.79", func(d *bgp.Desired) {
		client := passive("127.0.1.80")
		client.ReflectorClient, client.ReflectorClusterID, client.NextHop = true, ip("10.99.0.1"), bgp.NextHopSelf
		d.Sessions = append(d.Sessions, client)
	})
	client := dialFake(t, "127.0.1.80", listenOf(d), fakeOptions{as: 64512, id: "10.99.5.3"})
	awaitSession(t, s, "127.0.1.80", "Established", established)
	in.send(update("10.0.0.70", 0, 100, pfx("10.244.1.0/26")))
	for _, a := range client.awaitRoute(pfx("10.244.1.0/26")).PathAttributes {
		if nh, ok := a.(*gobgp.PathAttributeNextHop); ok && nh.Value != ip("127.0.0.1") {
			t.Errorf("next hop %s, want this node", nh.Value)
		}
	}
}
