package speaker

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

// The next hops that no route has any more are forgotten, those of rejected routes are not.
func TestNextHopsAreForgotten(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{InterfaceOf: func(hop netip.Addr) string {
		if hop == ip("10.0.0.66") {
			return "eth9"
		}
		return ""
	}})
	d.Sessions = []bgp.Session{passive("127.0.7.11")}
	d.Sessions[0].Filters = []string{"f"}
	d.Filters = []bgp.Filter{{Name: "f", ImportV4: []bgp.Rule{{Name: "f", Interface: "eth9"}}}}
	mustSet(t, s, d)
	p := dialFake(t, "127.0.7.11", listenOf(d), fakeOptions{as: 64512, id: "10.99.7.11"})
	awaitSession(t, s, "127.0.7.11", "Established", established)
	rejected, moving := pfx("10.244.1.0/26"), pfx("10.244.2.0/26")
	p.send(update("10.0.0.66", 0, 100, rejected))
	last := ""
	for i := range manyHops + 10 {
		last = fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)
		p.send(update(last, 0, 100, moving))
	}
	table := routeTable{}
	awaitRoutes(t, s, table, "the last next hop", func() bool {
		r, ok := table[moving]
		_, stays := table[rejected]
		return ok && !stays && len(r.Paths) == 1 && r.Paths[0].NextHop == ip(last)
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		known := s.interfaces.known()
		if _, ok := known[ip(last)]; ok && len(known) == 2 && known[ip("10.0.0.66")] == "eth9" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d next hops are known", len(known))
		}
	}
	p.send(update("10.0.0.66", 0, 100, moving)) // now it is rejected as well
	awaitRoutes(t, s, table, "no route", func() bool { return len(table) == 0 })
}
