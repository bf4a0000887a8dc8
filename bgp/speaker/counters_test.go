package speaker

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

// TestCountingIsBounded: however many ask, GoBGP counts once at a time, and rests long in between.
func TestCountingIsBounded(t *testing.T) {
	table := newStatusTable(Config{}.withDefaults())
	var b budget
	var counts atomic.Int32
	release, entered := make(chan struct{}), make(chan struct{}, 9)
	count := func() { counts.Add(1); entered <- struct{}{}; <-release }
	done := make(chan struct{})
	for range 8 {
		go func() { table.spend(&b, time.Hour, count); done <- struct{}{} }()
	}
	<-entered
	for range 8 { // nobody waits for a count that takes long
		<-done
	}
	close(release)
	table.spend(&b, time.Hour, count) // the end of the first one
	table.spend(&b, time.Hour, count)
	if n := counts.Load(); n != 1 {
		t.Errorf("counted %d times, want once in an hour", n)
	}
}

// TestTotalsNeverDecrease: Prometheus would take a decrease for a restart.
func TestTotalsNeverDecrease(t *testing.T) {
	table := newStatusTable(Config{}.withDefaults())
	s := &Speaker{status: table}
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	table.setSessions([]bgp.Session{{Address: a, Type: bgp.SessionMesh}, {Address: b, Type: bgp.SessionMesh}})
	table.entries[a].flaps, table.entries[a].restarts, table.entries[b].flaps = 3, 1, 2
	want := Totals{Flaps: 5, Restarts: 1}
	if got := s.Totals()[bgp.SessionMesh]; got != want {
		t.Errorf("totals %v, want %v", got, want)
	}
	table.setSessions([]bgp.Session{{Address: b, Type: bgp.SessionMesh}})
	if got := s.Totals()[bgp.SessionMesh]; got != want {
		t.Errorf("totals without a session that is gone: %v, want %v", got, want)
	}
}
