package gobgpinside

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/eapache/channels"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// playedPath is a path as GoBGP has them, with a number that tells it from others.
type playedPath struct {
	prefix netip.Prefix // invalid: an End-of-RIB
	id, n  int
}

func (p *playedPath) IsEOR() bool             { return !p.prefix.IsValid() }
func (p *playedPath) GetFamily() gobgp.Family { return gobgp.RF_IPv4_UC }
func (p *playedPath) GetNlri() gobgp.NLRI     { n, _ := gobgp.NewIPAddrPrefix(p.prefix); return n }
func (p *playedPath) GetLocalKey() [2]any     { return [2]any{p.prefix, p.id} }

type playedMessage struct{ Paths []*playedPath }

// playedSession has both ends of an outbox.
type playedSession struct {
	t             *testing.T
	outbox        *Outbox
	table, sender *channels.InfiniteChannel
	n             int
}

func playSession(t *testing.T, paths bool) *playedSession {
	field := channels.NewInfiniteChannel()
	s := &playedSession{t: t, outbox: newOutbox(&field), sender: field}
	s.outbox.Begin(paths)
	s.table = field
	return s
}

// put has the table send a message, and returns the numbers of its paths.
func (s *playedSession) put(paths ...playedPath) (numbers []int) {
	var m playedMessage
	for _, p := range paths {
		s.n++
		p.n = s.n
		m.Paths, numbers = append(m.Paths, &p, nil), append(numbers, p.n)
	}
	s.table.In() <- &m
	return numbers
}

// take checks which paths the sender gets next.
func (s *playedSession) take(want ...[]int) {
	s.t.Helper()
	select {
	case m := <-s.sender.Out():
		var got []int
		for _, p := range m.(*playedMessage).Paths {
			if p != nil {
				got = append(got, p.n)
			}
		}
		slices.Sort(got)
		if all := slices.Concat(want...); !slices.Equal(got, all) {
			s.t.Errorf("the sender gets %v, want %v", got, all)
		}
	case <-time.After(10 * time.Second):
		s.t.Fatal("the sender gets nothing")
	}
}

// waits checks that so many messages are in the sender's queue, and stay so.
func (s *playedSession) waits(n int) {
	s.t.Helper()
	time.Sleep(10 * mergeInterval) // it must stay so
	if got := s.sender.Len(); got != n {
		s.t.Errorf("%d messages wait for the sender, want %d", got, n)
	}
}

// TestOutbox: GoBGP's sender has never two messages to merge, and gets the last change of each route.
func TestOutbox(t *testing.T) {
	t.Parallel()
	a := playedPath{prefix: netip.MustParsePrefix("10.0.0.0/24")}
	b, end := playedPath{prefix: netip.MustParsePrefix("10.0.1.0/24")}, playedPath{}
	a2 := a
	a2.id = 2
	t.Run("one batch at a time", func(t *testing.T) {
		t.Parallel()
		s := playSession(t, false)
		s.take(s.put(a, end))
		s.put(a, b)
		last := [][]int{s.put(b), s.put(a2), s.put(end)}
		s.waits(0)
		if s.outbox.Waiting() == 0 {
			t.Error("nothing waits")
		}
		s.outbox.Writes()
		s.waits(1)
		more := s.put(a)
		s.outbox.Writes() // the batch before has several UPDATEs
		s.waits(1)
		s.take(last...)
		s.waits(0)
		s.outbox.Writes()
		s.take(more)
		s.outbox.Writes()
		if s.outbox.Waiting() > 0 {
			t.Error("something waits")
		}
	})
	t.Run("a batch without an UPDATE", func(t *testing.T) {
		t.Parallel()
		s := playSession(t, false)
		s.take(s.put(a))
		s.take(s.put(b))
	})
	t.Run("the next session", func(t *testing.T) {
		t.Parallel()
		s := playSession(t, false)
		s.put(a)
		s.waits(1)
		s.put(b)
		s.sender.In() <- "the end" // GoBGP's own mark
		s.outbox.Begin(false)
		if s.waits(0); s.outbox.Waiting() > 0 {
			t.Error("something waits")
		}
		s.take(s.put(a))
	})
	t.Run("paths", func(t *testing.T) {
		t.Parallel()
		s := playSession(t, true)
		s.take(s.put(a))
		s.put(a)
		last := [][]int{s.put(a2), s.put(a)}
		s.outbox.Writes()
		s.take(last...)
	})
	t.Run("a message of another kind", func(t *testing.T) {
		t.Parallel()
		s := playSession(t, false)
		s.table.In() <- "another"
		if m := <-s.sender.Out(); m != "another" {
			t.Errorf("the sender gets %v", m)
		}
	})
	t.Run("the end of the FSM", func(t *testing.T) {
		t.Parallel()
		s := playSession(t, false)
		s.put(a)
		s.put(b)
		s.table.Close()
		for range s.sender.Out() { // until it is closed
		}
		s.outbox.Begin(false)
		s.outbox.Writes()
		if s.outbox.Waiting() > 0 {
			t.Error("something waits")
		}
	})
}

func TestDrain(t *testing.T) {
	queue := channels.NewInfiniteChannel()
	for round := range 100 {
		for i := range 100 {
			queue.In() <- i
		}
		if drain(queue); queue.Len() != 0 {
			t.Fatalf("round %d: %d messages remain", round, queue.Len())
		}
	}
	queue.In() <- 1
	queue.Close()
	drain(queue)
	if _, open := <-queue.Out(); open {
		t.Error("a message of a closed queue remains")
	}
	drain(queue)
}
