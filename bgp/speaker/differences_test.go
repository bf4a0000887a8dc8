package speaker

import (
	"slices"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgppolicy"
	"github.com/manxnet/manx/bgp/session"
)

// GoBGP checks for the AS of the peer before it sends a path; BIRD leaves that to the receiver.
func TestPathWithTheASOfThePeerIsNotSent(t *testing.T) {
	t.Parallel()
	_, _, in, out := exportLab(t, "127.0.1.150", "127.0.1.151", nil)
	in.send(update("10.0.0.70", 64600, 100, pfx("10.244.1.0/26"))) // the AS of the other peer
	in.send(update("10.0.0.70", 64601, 100, pfx("10.244.2.0/26")))
	out.awaitRoute(pfx("10.244.2.0/26"))
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.routes[pfx("10.244.1.0/26")] != nil {
		t.Error("the peer was sent a path that holds its AS")
	}
}

// GoBGP adds ORIGINATOR_ID and CLUSTER_LIST (RFC 4456 section 8) towards clients only.
func TestReflectedToANonClient(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	client := func(addr string) bgp.Session {
		c := passive(addr)
		c.ReflectorClient, c.ReflectorClusterID = true, ip("10.99.0.1")
		return c
	}
	d.Sessions = []bgp.Session{client("127.0.1.152"), client("127.0.1.153"), passive("127.0.1.154")}
	d.ExportPrefixes = append(d.ExportPrefixes, pfx("10.244.0.0/16"))
	mustSet(t, s, d)
	peers := map[string]*fakePeer{}
	for i, c := range d.Sessions {
		addr := c.Address.String()
		peers[addr] = dialFake(t, addr, listenOf(d), fakeOptions{as: 64512, id: "10.99.6." + string(rune('1'+i))})
		awaitSession(t, s, addr, "Established", established)
	}
	peers["127.0.1.152"].send(update("10.0.0.70", 0, 100, pfx("10.244.1.0/26")))
	for addr, want := range map[string]bool{"127.0.1.153": true, "127.0.1.154": false} {
		p := peers[addr]
		has := slices.ContainsFunc(p.awaitRoute(pfx("10.244.1.0/26")).PathAttributes,
			func(a gobgp.PathAttributeInterface) bool {
				return a.GetType() == gobgp.BGP_ATTR_TYPE_CLUSTER_LIST
			})
		if has != want {
			t.Errorf("%s: CLUSTER_LIST %t, want %t", addr, has, want)
		}
	}
}

// RFC 8326 section 4.2: a route that another AS is about to withdraw is the last choice.
func TestGracefulShutdownFromAnotherAS(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	outside := passive("127.0.1.155")
	outside.PeerAS = 64600
	d.Sessions = []bgp.Session{outside}
	mustSet(t, s, d)
	p := dialFake(t, "127.0.1.155", listenOf(d), fakeOptions{as: 64600, id: "10.99.6.9"})
	awaitSession(t, s, "127.0.1.155", "Established", established)
	m := update("10.0.0.70", 64600, 0, pfx("10.244.1.0/26"))
	u := m.Body.(*gobgp.BGPUpdate)
	u.PathAttributes = append(u.PathAttributes, gobgp.NewPathAttributeCommunities([]uint32{65535 << 16}))
	p.send(m)
	table := routeTable{}
	awaitRoutes(t, s, table, "the route", func() bool { return len(table) == 1 })
	if got := table[pfx("10.244.1.0/26")].Metric; got != bgp.MaxPriority-gobgppolicy.LowestLocalPref {
		t.Errorf("metric %d, want that of LOCAL_PREF %d", got, gobgppolicy.LowestLocalPref)
	}
}

// The capabilities in the OPEN, how many paths for a prefix are sent at most, and how soon this side connects again.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.156")}
	mustSet(t, s, d)
	p := dialFake(t, "127.0.1.156", listenOf(d), fakeOptions{as: 64512, id: "10.99.6.8"})
	var names []string
	for _, o := range p.open.OptParams {
		for _, c := range o.(*gobgp.OptionParameterCapability).Capability {
			names = append(names, session.CapabilityName(c.Code()))
		}
	}
	slices.Sort(names)
	const want = "4-octet AS,ADD-PATH,FQDN,graceful restart,multiprotocol,route refresh"
	if got := strings.Join(slices.Compact(names), ","); got != want {
		t.Errorf("have %s\nwant %s", got, want)
	}
	config := s.cfg.peerConfig(d.Sessions[0])
	if n := config.AfiSafis[0].AddPaths.Config.SendMax; n != 64 {
		t.Errorf("at most %d paths for a prefix are sent", n)
	}
	if s.cfg.ConnectRetry != 3*time.Second {
		t.Errorf("it connects again after %s", s.cfg.ConnectRetry)
	}
}
