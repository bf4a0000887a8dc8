package speaker

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

// The settings of a BGPPeer, each on the wire with BIRD. The router ID is that of an IPv6-only node named kube-master.
func TestSessionSettingsWithBIRD(t *testing.T) {
	t.Parallel()
	n := newBirdNet(t, []string{"10.77.0.1/24", "10.77.0.11/24", "10.77.0.12/24", "10.77.0.13/24", "10.77.0.14/24",
		"10.77.0.15/24", "10.77.0.16/24", "fd77::1/64", "fd77::10/64"},
		[]string{"10.77.0.2/24", "10.77.0.3/24", "10.77.0.4/24", "10.77.0.5/24", "10.77.0.6/24", "10.77.0.7/24",
			"10.77.0.8/24", "fd77::2/64", "fd77::3/64"})
	session := func(name, local string, as int, neighbor string, ourAS int, hops, export string) string {
		family := "ipv4"
		if strings.Contains(local, ":") {
			family = "ipv6"
		}
		return "protocol bgp " + name + " from common { local " + local + " as " + fmt.Sprint(as) + "; neighbor " +
			neighbor + " as " + fmt.Sprint(ourAS) + "; " + hops +
			" " + family + " { import all; export " + export + "; add paths on; }; }\n"
	}
	// A connection whose packets are dropped cannot be closed in order: BIRD keeps it, and may refuse others, until the
	// hold time ends.
	n.start(strings.Replace(birdHead, "route 10.244.2.0/26 blackhole;",
		"route 10.244.2.0/26 blackhole; route 10.50.0.0/24 blackhole;", 1) +
		session("near", "10.77.0.2", 64512, "10.77.0.11", 64512, "direct; ttl security on;", "none") +
		session("distant", "10.77.0.3", 64512, "10.77.0.12", 64512, "multihop 20; hold time 9;", "none") +
		session("otheras", "10.77.0.4", 64600, "10.77.0.13", 65222, "multihop;",
			"filter { if net = 10.50.0.0/24 then { bgp_path.prepend(65222); accept; } reject; }") +
		session("anysrc", "10.77.0.5", 64600, "10.77.0.1", 64512, "multihop; router id 10.77.0.5;",
			"filter { if net = 10.244.2.0/26 then { bgp_next_hop = 10.77.0.99; accept; } reject; }") +
		session("hopauto", "10.77.0.6", 64512, "10.77.0.14", 64512, "multihop;", "none") +
		session("hopself", "10.77.0.7", 64512, "10.77.0.15", 64512, "multihop;", "none") +
		session("hopkeep", "10.77.0.8", 64700, "10.77.0.16", 64512, "multihop;", "none") +
		session("six", "fd77::2", 64512, "fd77::1", 64512, "multihop;", "none") +
		session("near6", "fd77::3", 64512, "fd77::10", 64512, "multihop 2; ttl security on;", "none"))

	d := birdDesired()
	d.Global.RouterID = ip("25.79.212.8")
	d.ExportPrefixes = append(d.ExportPrefixes, pfx("10.244.0.0/16"))
	peer := func(addr, source string, as uint32, change func(*bgp.Session)) {
		s := birdPeer(addr, source, as)
		if change != nil {
			change(&s)
		}
		d.Sessions = append(d.Sessions, s)
	}
	peer("10.77.0.2", "10.77.0.11", 64512, func(s *bgp.Session) { s.TTLSecurity = 1 })
	peer("10.77.0.3", "10.77.0.12", 64512, func(s *bgp.Session) { s.TTLSecurity = 2 })
	peer("10.77.0.4", "10.77.0.13", 64600, func(s *bgp.Session) { s.LocalAS, s.AllowOwnAS = 65222, 1 })
	peer("10.77.0.5", "10.77.0.1", 64600, func(s *bgp.Session) {
		s.Source, s.RestartSeconds = (bgp.Session{}).Source,
			45
	})
	peer("10.77.0.6", "10.77.0.14", 64512, nil)
	peer("10.77.0.7", "10.77.0.15", 64512, func(s *bgp.Session) { s.NextHop = bgp.NextHopSelf })
	peer("10.77.0.8", "10.77.0.16", 64700, func(s *bgp.Session) { s.NextHop = bgp.NextHopKeep })
	peer("fd77::2", "fd77::1", 64512, nil)
	peer("fd77::3", "fd77::10", 64512, func(s *bgp.Session) { s.TTLSecurity = 2 })
	c := startChild(t, n.manx)
	c.set(d)
	for _, s := range d.Sessions {
		if s.Address != ip("10.77.0.3") {
			c.await("session with "+s.Address.String(),
				func() bool { return c.sessions[s.Address].Phase == PhaseEstablished })
		}
	}

	n.await("show protocols all six", "Neighbor ID:      25.79.212.8")
	n.await("show protocols all anysrc", "Restart time: 45", "Source address:   10.77.0.5",
		"Neighbor address: 10.77.0.1")
	n.await("show protocols all hopauto", "Restart time: 120", "Hold timer:", "/240")
	n.await("show route all protocol otheras", "10.244.1.0/26", "BGP.as_path: 65222\n")
	n.await("show route all protocol near", "10.244.1.0/26")
	n.await("show route all protocol near6", "fd00:244:1::/122")
	c.await("the route with our AS in it", func() bool { return len(c.routes[pfx("10.50.0.0/24")].Paths) > 0 })

	// Routes of one external peer, as others get them. Its router ID differs, since no speaker gets its own routes
	// back.
	c.await("the route of the external peer", func() bool { return len(c.routes[pfx("10.244.2.0/26")].Paths) > 0 })
	n.await("show route all 10.244.2.0/26 protocol hopauto", "BGP.next_hop: 10.77.0.99", "BGP.as_path: 64600\n")
	n.await("show route all 10.244.2.0/26 protocol hopself", "BGP.next_hop: 10.77.0.15", "BGP.as_path: 64600\n")
	n.await("show route all 10.244.2.0/26 protocol hopkeep", "BGP.next_hop: 10.77.0.99", "BGP.as_path: 64512 64600\n")

	// Packets of a peer that is too far away, by their TTL, are dropped until the setting allows the distance.
	if st := c.session(ip("10.77.0.3")); st.Phase == PhaseEstablished {
		t.Error("the peer at the wrong distance is heard")
	}
	d.Sessions = slices.Clone(d.Sessions)
	d.Sessions[1].TTLSecurity = 240
	c.set(d)
	c.await("the session with the peer that may be far",
		func() bool { return c.sessions[ip("10.77.0.3")].Phase == PhaseEstablished })
}

// bindMode NodeIP: nothing listens on other addresses.
func TestListensOnNodeAddressesOnly(t *testing.T) {
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.60")}
	mustSet(t, s, d)
	at := listenOf(d)
	for _, a := range d.Global.ListenAddresses {
		if a.IsUnspecified() {
			t.Fatalf("listens on %s", a)
		}
	}
	conn := dialFrom(t, "127.0.1.60", at)
	_ = conn.Close()
	other := "127.0.9.9" + at[strings.LastIndexByte(at, ':'):]
	if conn, err := net.Dial("tcp", other); err == nil {
		_ = conn.Close()
		t.Errorf("a socket listens on %s", other)
	}
}

// keepaliveTime: only the keepalive timer follows it, the hold time stays.
func TestKeepaliveTime(t *testing.T) {
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.61")}
	d.Sessions[0].KeepaliveSeconds = 1
	mustSet(t, s, d)
	p := dialFake(t, "127.0.1.61", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.61", hold: 240})
	awaitSession(t, s, "127.0.1.61", "Established", established)
	p.await("keepalives, which come each 80 s without the setting",
		func() bool { return p.count(gobgp.BGP_MSG_KEEPALIVE) >= 4 })
	if p.open.HoldTime != 240 {
		t.Errorf("hold time %d, want 240", p.open.HoldTime)
	}
}
