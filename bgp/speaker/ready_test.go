package speaker

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

func TestReadyDoesNotWaitForPeersThatAreDown(t *testing.T) {
	dead, live := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	r := newRestartSync(Config{}.withDefaults(), func(string) {}, func() {})
	if ok, _ := r.ready(time.Now()); ok {
		t.Error("ready before the start")
	}
	r.begin([]bgp.Session{{Address: dead}, {Address: live}})
	start := r.started
	check := func(after time.Duration, ready, synced bool) {
		t.Helper()
		gotReady, reason := r.ready(start.Add(after))
		gotSynced, _ := r.state(start.Add(after))
		if gotReady != ready || gotSynced != synced {
			t.Errorf("%s after the start: ready %v (%s), synced %v; want %v, %v", after, gotReady, reason, gotSynced,
				ready, synced)
		}
	}
	check(time.Second, false, false)
	r.established(live, false, start.Add(readyWait-time.Second))
	check(readyWait, false, false) // the live peer still sends its routes
	r.forget(live)                 // it has sent them
	check(readyWait-time.Second, false, false)
	check(readyWait, true, false)
	if _, reason := r.ready(start.Add(readyWait)); !strings.Contains(reason, dead.String()) {
		t.Errorf("the peer that is waited for is not named: %q", reason)
	}
	// It still sends its routes, but this node was ready before it came.
	r.established(dead, false, start.Add(20*time.Second))
	check(21*time.Second, true, false)
	r.lost(dead)
	r.tick(start.Add(121 * time.Second))
	check(121*time.Second, true, true)
}
