package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

// ResetKind is the extent of a reset.
type ResetKind int

const (
	ResetSoftIn  ResetKind = iota // evaluate received routes again
	ResetSoftOut                  // send all routes again, and withdraw those that may not be sent any more
	// end the session with Cease 4 (RFC 4486); the peer drops our routes until it is up again
	ResetHard
)

var (
	// ErrNotEstablished: a session that is not established cannot be reset.
	ErrNotEstablished = errors.New("not established; there is nothing to reset")
	// ErrResetting: a session is not reset hard a second time before the first reset has ended.
	ErrResetting = errors.New("being reset already")
	// ErrTooOften: a session is not softly reset again before its limit permits.
	ErrTooOften = errors.New("too many soft resets")
)

// ResetSession resets a session on request. It fails if the session is not established (ErrNotEstablished), after too
// many soft resets (ErrTooOften; the message has the time to wait), and after a hard one (ErrResetting), because
// another one would hit the next session.
func (s *Speaker) ResetSession(ctx context.Context, addr netip.Addr, kind ResetKind) error {
	addr = addr.Unmap()
	up := s.status.EstablishedSince(addr)
	if up.IsZero() {
		return fmt.Errorf("bgp session with %s is %w", addr, ErrNotEstablished)
	}
	if kind == ResetHard {
		if !s.resets.beginHard(addr, up, time.Now()) {
			return fmt.Errorf("bgp session with %s is %w", addr, ErrResetting)
		}
		return s.reset(ctx, addr, kind)
	}
	if _, err := s.Resets.Allow(addr, 1, time.Now()); err != nil {
		return fmt.Errorf("bgp session with %s: %w", addr, err)
	}
	return s.reset(ctx, addr, kind)
}

// ResetAllowed softly resets a session for a caller that Resets has let in.
func (s *Speaker) ResetAllowed(ctx context.Context, addr netip.Addr, kind ResetKind) error {
	return s.reset(ctx, addr.Unmap(), kind)
}

// reset resets a session that is established, however often; the address is a plain one.
func (s *Speaker) reset(ctx context.Context, addr netip.Addr, kind ResetKind) error {
	run := s.current()
	if run == nil || !s.status.IsEstablished(addr) {
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

// resets remembers the hard resets that have not ended their sessions yet. The zero value is ready.
type resets struct {
	mu   sync.Mutex
	hard map[netip.Addr]hardReset
}

// hardReset is the last one of a peer.
type hardReset struct {
	at time.Time
	up time.Time // since when the session that it ends was established
}

// hardResetWait is how long a session may take to end after a hard reset; then the reset has got lost.
const hardResetWait = 10 * time.Second

// beginHard reports whether a session, established since up, may be reset hard: GoBGP reports its end a little later,
// and keeps unsent messages for the next session.
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
