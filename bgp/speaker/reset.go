package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// ResetKind says how much of a session is reset.
type ResetKind int

const (
	ResetSoftIn  ResetKind = iota // look at received routes again
	ResetSoftOut                  // send all routes again, and withdraw those that may not be sent any more
	ResetHard                     // end the session with Cease 4 (RFC 4486); the peer drops our routes until it is up again
)

var (
	// ErrNotEstablished is why a session cannot be reset.
	ErrNotEstablished = errors.New("not established; there is nothing to reset")
	// ErrTooSoon is why a session is not reset again yet.
	ErrTooSoon = errors.New("reset a moment ago")
)

// ResetSession resets a session on behalf of somebody. One that is not established is refused (ErrNotEstablished). So is a
// second soft reset in the same direction that comes too soon (ErrTooSoon; the message has the time to wait), because each looks
// at every route, while GoBGP does nothing else; and a second hard one of the same session, which would hit the next session.
func (s *Speaker) ResetSession(ctx context.Context, addr netip.Addr, kind ResetKind) error {
	addr = addr.Unmap()
	up := s.status.establishedSince(addr)
	if up.IsZero() {
		return fmt.Errorf("bgp session with %s is %w", addr, ErrNotEstablished)
	}
	if kind == ResetHard {
		if !s.resets.beginHard(addr, up, time.Now()) {
			return fmt.Errorf("bgp session with %s is being reset already: %w", addr, ErrTooSoon)
		}
		return s.reset(ctx, addr, kind)
	}
	done, wait := s.resets.begin(softReset{addr, kind}, time.Now())
	if wait > 0 {
		way := map[ResetKind]string{ResetSoftIn: "in", ResetSoftOut: "out"}[kind]
		return fmt.Errorf("bgp session with %s was softly %w (%s): again in %s", addr, ErrTooSoon, way, wait.Round(100*time.Millisecond))
	}
	defer func() { done(time.Now()) }()
	return s.reset(ctx, addr, kind)
}

// reset resets a session that is established, however often; the address is a plain one.
func (s *Speaker) reset(ctx context.Context, addr netip.Addr, kind ResetKind) error {
	run := s.current()
	if run == nil || !s.status.isEstablished(addr) {
		return fmt.Errorf("bgp session with %s is %w", addr, ErrNotEstablished)
	}
	req := &api.ResetPeerRequest{Address: addr.String(), Soft: kind != ResetHard}
	switch kind {
	case ResetSoftIn:
		req.Direction = api.ResetPeerRequest_DIRECTION_IN
	case ResetSoftOut:
		req.Direction = api.ResetPeerRequest_DIRECTION_OUT
	}
	return run.srv.ResetPeer(ctx, req)
}

const (
	softResetPause = 5 * time.Second // between two soft resets of a session in one direction, at least
	softResetCost  = 20              // and this many times as long as the last one took
)

// resets bounds how often sessions are reset. The zero value is ready.
type resets struct {
	mu    sync.Mutex
	after map[softReset]time.Time // when each is allowed again
	hard  map[netip.Addr]hardReset
}

// hardReset is the last one of a peer.
type hardReset struct {
	at time.Time
	up time.Time // since when the session that it ends was established
}

// hardResetWait is how long a session may take to end after a hard reset; then the reset has got lost.
const hardResetWait = 10 * time.Second

// beginHard tells whether a session, established since up, may be reset hard: GoBGP tells of its end a little later, and keeps
// what it cannot send any more for the next session.
func (r *resets) beginHard(peer netip.Addr, up, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, last := range r.hard {
		if now.Sub(last.at) >= hardResetWait {
			delete(r.hard, other)
		}
	}
	if last, ok := r.hard[peer]; ok && last.up.Equal(up) {
		return false
	}
	if r.hard == nil {
		r.hard = map[netip.Addr]hardReset{}
	}
	r.hard[peer] = hardReset{now, up}
	return true
}

type softReset struct {
	peer netip.Addr
	kind ResetKind
}

// begin returns how long to wait, or a function to call when the reset is done.
func (r *resets) begin(x softReset, now time.Time) (done func(time.Time), wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, at := range r.after {
		if !now.Before(at) {
			delete(r.after, other)
		}
	}
	if at, ok := r.after[x]; ok {
		return nil, at.Sub(now)
	}
	if r.after == nil {
		r.after = map[softReset]time.Time{}
	}
	r.after[x] = now.Add(softResetPause)
	return func(end time.Time) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.after[x] = end.Add(max(softResetPause, softResetCost*end.Sub(now)))
	}, 0
}

func (t *statusTable) isEstablished(addr netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	return e != nil && e.state == gobgp.BGP_FSM_ESTABLISHED
}

// establishedSince returns when a session came up, a zero time if it is not established.
func (t *statusTable) establishedSince(addr netip.Addr) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil && e.state == gobgp.BGP_FSM_ESTABLISHED {
		return e.upAt
	}
	return time.Time{}
}
