package speaker

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/manxnet/manx/bgp"
)

// The interface of a router goes down: its session ends only if a session with another router is up through another
// interface. That of a workload does not count.
func TestUplinkDown(t *testing.T) {
	t.Parallel()
	router, workload, second := uniqueLoopback(t), uniqueLoopback(t), uniqueLoopback(t)
	uplinks := map[netip.Addr]string{ip(router): "eth1", ip(workload): "cali1", ip(second): "eth0"}
	s, d := testSpeaker(t, Config{Uplink: func(a netip.Addr) string { return uplinks[a] }})
	add := func(address string) {
		sess := passive(address)
		sess.PeerAS, sess.Type, sess.Outsider = uint32(65001+len(d.Sessions)), bgp.SessionGlobal, true
		if address == workload {
			sess.Workload = "cali1"
		}
		d.Sessions = append(d.Sessions, sess)
		mustSet(t, s, d)
		dialFake(t, address, listenOf(d), fakeOptions{as: sess.PeerAS, id: fmt.Sprintf("10.99.5.%d", len(d.Sessions))})
		awaitSession(t, s, address, "Established", established)
	}
	flaps := func(address string) uint64 {
		st, _ := s.status.Get(ip(address))
		return uint64(st.Flaps)
	}
	add(router)
	add(workload)
	s.UplinkDown("eth1", "has lost its carrier")
	if !s.status.IsEstablished(ip(router)) {
		t.Error("the session with the only router ended")
	}
	add(second)
	s.UplinkDown("eth1", "has lost its carrier")
	st := awaitSession(t, s, router, "the end", func(st SessionStatus) bool { return st.Flaps > 0 })
	if want := "interface eth1: the path to " + router + " is broken: it has lost its carrier"; st.LastError != want {
		t.Errorf("reason %q, want %q", st.LastError, want)
	}
	if flaps(workload)+flaps(second) > 0 {
		t.Error("another session ended")
	}
}
