package speaker

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

const (
	countersAge  = 5 * time.Second        // of counters that are shown
	countersWait = 250 * time.Millisecond // for fresh ones, before old ones are shown
	// prefixes to read, some 50 ms, to count advertised prefixes unrequested
	advertisedMost = 20_000
	// GoBGP, which stops while it counts, works this many times as long in between
	countersCost = 50
)

// budget bounds how much of GoBGP's time goes into counting, however often a caller requests it.
type budget struct {
	mu      sync.Mutex
	running chan struct{} // closed when the count that is under way is done
	next    time.Time     // not before
}

// spend runs count in the background unless it runs already or has run less than age ago, and waits for it a little.
func (b *budget) spend(age time.Duration, count func()) {
	b.mu.Lock()
	done := b.running
	if done == nil {
		if time.Now().Before(b.next) {
			b.mu.Unlock()
			return
		}
		done = make(chan struct{})
		b.running = done
		go func() {
			start := time.Now()
			count()
			b.mu.Lock()
			b.next, b.running = time.Now().Add(max(age, countersCost*time.Since(start))), nil
			b.mu.Unlock()
			close(done)
		}()
	}
	b.mu.Unlock()
	wait, cancel := context.WithTimeout(context.Background(), countersWait)
	defer cancel()
	select {
	case <-done:
	case <-wait.Done():
	}
}

// refreshCounters reads the counters of all sessions, and the advertised prefixes of those outside the mesh if that is
// cheap.
func (s *Speaker) refreshCounters() {
	s.reads.spend(countersAge, func() {
		s.readCounters("", false)
		up := s.status.OutsideMesh()
		if len(up)*s.fib.Size() > advertisedMost {
			return
		}
		for _, addr := range up {
			s.readCounters(addr.String(), true)
		}
	})
}

// countPeer reads the counters of one session.
func (s *Speaker) countPeer(addr netip.Addr) {
	if tap := s.taps.of(addr); tap != nil {
		tap.counted.spend(0, func() { s.readCounters(addr.String(), true) })
	}
}

// readCounters queries GoBGP for the counters of one peer, or of all.
func (s *Speaker) readCounters(addr string, advertised bool) {
	run := s.current()
	if run == nil {
		return
	}
	read := map[netip.Addr]*api.Peer{}
	err := run.srv.ListPeer(s.ctx, &api.ListPeerRequest{Address: addr, EnableAdvertised: advertised},
		func(p *api.Peer) {
			if a, err := netip.ParseAddr(p.GetConf().GetNeighborAddress()); err == nil {
				read[a.Unmap()] = p
			}
		})
	if err != nil {
		return // the server is being replaced
	}
	now := time.Now()
	for a, p := range read {
		s.status.Count(a, p, now, advertised)
	}
}
