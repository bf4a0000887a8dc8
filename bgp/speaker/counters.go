package speaker

import (
	"context"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

const (
	countersAge  = 5 * time.Second        // of counters that are shown
	countersWait = 250 * time.Millisecond // for fresh ones, before old ones are shown
	// prefixes to look at, some 50 ms, to count what is advertised without having been asked
	advertisedMost = 20_000
	// GoBGP, which stops while it counts, works this many times as long in between
	countersCost = 50
)

// budget bounds how much of GoBGP's time goes into counting, however often somebody asks. It is guarded by
// statusTable.mu.
type budget struct {
	running chan struct{} // closed when the count that is under way is done
	next    time.Time     // not before
}

// spend runs count in the background unless it runs already or has run less than age ago, and waits for it a little.
func (t *statusTable) spend(b *budget, age time.Duration, count func()) {
	t.mu.Lock()
	done := b.running
	if done == nil {
		if time.Now().Before(b.next) {
			t.mu.Unlock()
			return
		}
		done = make(chan struct{})
		b.running = done
		go func() {
			start := time.Now()
			count()
			t.mu.Lock()
			b.next, b.running = time.Now().Add(max(age, countersCost*time.Since(start))), nil
			t.mu.Unlock()
			close(done)
		}()
	}
	t.mu.Unlock()
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
	s.status.spend(&s.status.reads, countersAge, func() {
		s.readCounters("", false)
		up := s.status.upOutsideMesh()
		if len(up)*s.fib.Size() > advertisedMost {
			return
		}
		for _, addr := range up {
			s.readCounters(addr.String(), true)
		}
	})
}

func (t *statusTable) upOutsideMesh() (list []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for addr, e := range t.entries {
		if e.session.Type != bgp.SessionMesh && e.state == gobgp.BGP_FSM_ESTABLISHED {
			list = append(list, addr)
		}
	}
	return list
}

// countPeer reads the counters of one session.
func (s *Speaker) countPeer(addr netip.Addr) {
	s.status.mu.Lock()
	e := s.status.entries[addr]
	s.status.mu.Unlock()
	if e == nil {
		return
	}
	s.status.spend(&e.counted, 0, func() { s.readCounters(addr.String(), true) })
}

// readCounters asks GoBGP for the counters of one peer, or of all.
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
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	now := time.Now()
	for a, p := range read {
		if e := s.status.entries[a]; e != nil {
			e.count(p, now, advertised)
		}
	}
}

func (e *sessionEntry) count(p *api.Peer, now time.Time, advertised bool) {
	c := Counters{At: now, Advertised: e.counters.Advertised, AdvertisedAt: e.counters.AdvertisedAt}
	for _, f := range p.GetAfiSafis() {
		c.Received += f.GetState().GetReceived()
		c.Accepted += f.GetState().GetAccepted()
		if advertised {
			c.Advertised, c.AdvertisedAt = f.GetState().GetAdvertised(), now
		}
	}
	in, out := p.GetState().GetMessages().GetReceived(), p.GetState().GetMessages().GetSent()
	c.MessagesIn, c.MessagesOut, c.UpdatesIn, c.UpdatesOut = in.GetTotal(), out.GetTotal(), in.GetUpdate(),
		out.GetUpdate()
	e.counters = c
	e.tap.received.seen(int(c.Received))
	if t := p.GetTimers().GetState(); e.state == gobgp.BGP_FSM_ESTABLISHED && t != nil {
		e.hold = time.Duration(t.GetNegotiatedHoldTime()) * time.Second
		e.keepalive = time.Duration(t.GetKeepaliveInterval()) * time.Second
		if a, err := netip.ParseAddr(p.GetTransport().GetLocalAddress()); err == nil && !a.IsUnspecified() {
			e.local = a.Unmap()
		}
	}
}

// learnTimers reads what was negotiated, once after a session has come up: the events do not tell.
func (s *Speaker) learnTimers(addr netip.Addr) {
	s.readCounters(addr.String(), false)
	s.status.change(addr, func(*sessionEntry, time.Time) {})
}
