package speaker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

// TestSoftResetsAreRateLimited: each session has its own limit, and the speaker's own resets have none.
func TestSoftResetsAreRateLimited(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.30"), passive("127.0.1.31")}
	mustSet(t, s, d)
	ctx := context.Background()
	if err := s.ResetSession(ctx, ip("127.0.1.30"), ResetSoftIn); !errors.Is(err, ErrNotEstablished) {
		t.Fatalf("soft reset of a session that is down: %v", err)
	}
	var peers []*fakePeer
	for _, a := range []string{"127.0.1.30", "127.0.1.31"} {
		peers = append(peers, dialFake(t, a, listenOf(d), fakeOptions{as: 64512, id: "10.99.1." + a[len(a)-2:]}))
		awaitSession(t, s, a, "Established", established)
	}
	for _, a := range []string{"127.0.1.30", "127.0.1.31"} {
		allowed := 0
		for i := range 100 {
			err := s.ResetSession(ctx, ip(a), []ResetKind{ResetSoftIn, ResetSoftOut}[i%2])
			if err == nil {
				allowed++
			} else if !errors.Is(err, ErrTooOften) {
				t.Fatal(err)
			}
		}
		if allowed < peerResets || allowed > 50 { // more than the burst if 100 calls are slow
			t.Errorf("%d of 100 soft resets of %s were allowed", allowed, a)
		}
	}
	if err := s.reset(ctx, ip("127.0.1.30"), ResetSoftIn); err != nil {
		t.Errorf("the speaker's own soft reset: %v", err)
	}
	for i, p := range peers {
		if p.isClosed() {
			t.Errorf("a soft reset ended session %d", i)
		}
	}
}

// TestClearSession: the counters of the status start again, the counters of metrics go on.
func TestClearSession(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.32")}
	mustSet(t, s, d)
	o := fakeOptions{as: 64512, id: "10.99.1.32"}
	p := dialFake(t, "127.0.1.32", listenOf(d), o)
	awaitSession(t, s, "127.0.1.32", "Established", established)
	p.conn.Close()
	awaitSession(t, s, "127.0.1.32", "lost", func(st SessionStatus) bool { return st.Flaps == 1 })
	p = dialFake(t, "127.0.1.32", listenOf(d), o)
	p.send(update("10.0.0.2", 0, 100, pfx("10.244.1.0/26")))
	updates := func(n uint64) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if st, _ := s.Session(ip("127.0.1.32")); established(st) && st.Counters.UpdatesIn == n {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%d UPDATEs, want %d; %+v", st.Counters.UpdatesIn, n, st)
			}
		}
	}
	updates(1)
	before, ok := s.ClearSession(ip("127.0.1.32"))
	if !ok || before.Flaps != 1 || before.LastError == "" {
		t.Fatalf("before: %v, %+v", ok, before)
	}
	st, _ := s.Session(ip("127.0.1.32"))
	if st.Flaps != 0 || st.LastError != "" || !st.LastErrorAt.IsZero() || st.Counters.UpdatesIn != 0 ||
		st.Counters.Received != 1 || !established(st) {
		t.Errorf("after: %+v", st)
	}
	if total := s.Totals()[d.Sessions[0].Type].Flaps; total != 1 {
		t.Errorf("total flaps %d, want 1 as before", total)
	}
	p.send(update("10.0.0.2", 0, 100, pfx("10.244.2.0/26")))
	updates(1)
	p.conn.Close()
	awaitSession(t, s, "127.0.1.32", "a flap, with its reason",
		func(st SessionStatus) bool { return st.Flaps == 1 && st.LastError != "" })
	if _, ok := s.ClearSession(ip("127.0.1.99")); ok {
		t.Error("a session that is not there was cleared")
	}
}

// TestSecondHardResetDoesNotHitTheNextSession: GoBGP keeps a NOTIFICATION that it cannot send any more for the next
// session.
func TestSecondHardResetDoesNotHitTheNextSession(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.33")}
	mustSet(t, s, d)
	o := fakeOptions{as: 64512, id: "10.99.1.33"}
	p := dialFake(t, "127.0.1.33", listenOf(d), o)
	awaitSession(t, s, "127.0.1.33", "Established", established)
	refused := 0
	for i := range 5 {
		err := s.ResetSession(context.Background(), ip("127.0.1.33"), ResetHard)
		if errors.Is(err, ErrResetting) || errors.Is(err, ErrNotEstablished) {
			refused++
		} else if err != nil || i > 0 {
			t.Fatalf("hard reset %d: %v", i+1, err)
		}
	}
	if refused != 4 {
		t.Errorf("%d of 5 hard resets at once were refused, want 4", refused)
	}
	p.awaitClosed()
	p = dialFake(t, "127.0.1.33", listenOf(d), o)
	awaitSession(t, s, "127.0.1.33", "Established again", established)
	p.send(update("10.0.0.2", 0, 100, pfx("10.244.1.0/26")))
	table := routeTable{}
	awaitRoutes(t, s, table, "a route of the next session", func() bool { return len(table) == 1 })
	if st, _ := s.Session(ip("127.0.1.33")); st.Flaps != 1 || p.isClosed() {
		t.Errorf("the next session was ended as well: %+v", st)
	}
	if err := s.ResetSession(context.Background(), ip("127.0.1.33"), ResetHard); err != nil {
		t.Errorf("a hard reset of the next session: %v", err)
	}
}
