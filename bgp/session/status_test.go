package session

import (
	"net/netip"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// TestTotalsNeverDecrease: Prometheus would count a decrease as a restart.
func TestTotalsNeverDecrease(t *testing.T) {
	table := NewTable(Config{Logger: zap.NewNop()})
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	table.SetSessions([]bgp.Session{{Address: a, Type: bgp.SessionMesh}, {Address: b, Type: bgp.SessionMesh}})
	table.entries[a].flaps, table.entries[a].restarts, table.entries[b].flaps = 3, 1, 2
	want := Totals{Flaps: 5, Restarts: 1}
	if got := table.Totals()[bgp.SessionMesh]; got != want {
		t.Errorf("totals %v, want %v", got, want)
	}
	table.SetSessions([]bgp.Session{{Address: b, Type: bgp.SessionMesh}})
	if got := table.Totals()[bgp.SessionMesh]; got != want {
		t.Errorf("totals without a session that is gone: %v, want %v", got, want)
	}
}
