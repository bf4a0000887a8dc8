package forget

import (
	"net/netip"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// A turn takes ten seconds, and the queue rests nine times as long after it, but for urgent addresses once: also if
// they come during the turn.
func TestUrgentAddressesShortenTheRest(t *testing.T) {
	const turn, rest, urgent = 10 * time.Second, 9, 1
	a := netip.MustParseAddr
	for name, c := range map[string]struct {
		during, after func(*Queue)
		waits         int // turns
	}{
		"none is urgent":  {func(q *Queue) { q.Add(a("10.0.0.2")) }, func(*Queue) {}, rest},
		"after the turn":  {func(*Queue) {}, func(q *Queue) { q.AddUrgent(urgent, a("10.0.0.2")) }, urgent},
		"during the turn": {func(q *Queue) { q.AddUrgent(urgent, a("10.0.0.2")) }, func(*Queue) {}, urgent},
		"hurried during the turn": {func(q *Queue) {
			q.Add(a("10.0.0.2"))
			q.Hurry(urgent, []netip.Addr{a("10.0.0.2")})
		}, func(*Queue) {}, urgent},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1e9, 0)
			loop := reconcile.NewLoop()
			var work func()
			loop.Background = func(f func()) { work = f }
			q := &Queue{Connections: kerneltest.New(), Loop: loop, Now: func() time.Time { return now }, Rest: rest}
			q.Add(a("10.0.0.1"))
			q.Flush()
			if work == nil {
				t.Fatal("the first turn does not begin")
			}
			c.during(q)
			now = now.Add(turn)
			q.end(q.turn, turn, nil)
			c.after(q)
			ended := now
			for work = nil; work == nil; q.Flush() {
				if now = now.Add(time.Second); now.Sub(ended) > 20*turn {
					t.Fatal("the second turn does not begin")
				}
			}
			if got, want := now.Sub(ended), time.Duration(c.waits)*turn; got != want {
				t.Errorf("the second turn begins after %s, want %s", got, want)
			}
		})
	}
}
