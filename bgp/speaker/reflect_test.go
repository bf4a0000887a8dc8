package speaker

import (
	"net/netip"
	"strings"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

func reflected(cluster string, prefixes ...netip.Prefix) *gobgp.BGPMessage {
	m := update("10.0.0.70", 0, 100, prefixes...)
	u := m.Body.(*gobgp.BGPUpdate)
	list, err := gobgp.NewPathAttributeClusterList([]netip.Addr{ip("10.99.0.77"), ip(cluster)})
	if err != nil {
		panic(err)
	}
	u.PathAttributes = append(u.PathAttributes, list)
	return m
}

// RFC 4456 section 8: a route that a reflector has reflected is not used when it comes back from a client, such as a
// reflector of another cluster.
func TestReflectedRouteComesBack(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	client := passive("127.0.1.140")
	client.ReflectorClient, client.ReflectorClusterID = true, ip("10.99.0.1")
	d.Sessions = append(d.Sessions, client)
	mustSet(t, s, d)
	p := dialFake(t, "127.0.1.140", listenOf(d), fakeOptions{as: 64512, id: "10.99.5.1"})
	awaitSession(t, s, "127.0.1.140", "Established", established)
	p.send(reflected("10.99.0.1", pfx("10.244.1.0/26")))
	p.send(reflected("10.99.0.2", pfx("10.244.2.0/26")))
	table := routeTable{}
	awaitRoutes(t, s, table, "the route of another cluster",
		func() bool { return len(table[pfx("10.244.2.0/26")].Paths) == 1 })
	if len(table[pfx("10.244.1.0/26")].Paths) != 0 {
		t.Error("the route that has come back is used")
	}
	rejected := s.Rejected()
	if len(rejected) != 1 || rejected[0].Prefix != pfx("10.244.1.0/26") ||
		!strings.Contains(rejected[0].Reason, "CLUSTER_LIST names our own cluster 10.99.0.1") {
		t.Errorf("rejected: %+v", rejected)
	}

	d.Sessions[0].ReflectorClusterID = ip("10.99.0.2") // the session starts afresh
	mustSet(t, s, d)
	awaitRoutes(t, s, table, "the loss", func() bool { return len(table) == 0 })
}
