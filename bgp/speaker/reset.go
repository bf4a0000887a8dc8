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
	// ErrResetting is why a session is not reset hard a second time.
	ErrResetting = errors.New("being reset already")
	// ErrTooOften is why a session is not softly reset again yet.
	ErrTooOften = errors.New("softly reset too often")
)

// ResetSession resets a session on behalf of somebody. It fails if the session is not established (ErrNotEstablished), after too
// many soft resets in one direction (ErrTooOften; the message has the time to wait), because each looks at every route while
// GoBGP does nothing else, and after a hard one (ErrResetting), because another one would hit the next session.
func (s *Speaker) ResetSession(ctx context.Context, addr netip.Addr, kind ResetKind) error {
	addr = addr.Unmap()
	up := s.status.establishedSince(addr)
	if up.IsZero() {
		return fmt.Errorf("bgp session with %s is %w", addr, ErrNotEstablished)
	}
	if kind == ResetHard {
		if !s.resets.beginHard(addr, up, time.Now()) {
			return fmt.Errorf("bgp session with %s is %w", addr, ErrResetting)
		}
		return s.reset(ctx, addr, kind)
	}
	done, wait := s.resets.begin(softReset{addr, kind}, time.Now())
	if wait > 0 {
		way := map[ResetKind]string{ResetSoftIn: "in", ResetSoftOut: "out"}[kind]
		return fmt.Errorf("bgp session with %s was %w (%s): again in %s", addr, ErrTooOften, way, wait.Round(100*time.Millisecond))
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
	softResetBurst = 4               // soft resets of a session in one direction may come in a row,
	softResetPause = 5 * time.Second // and then one in this time
	softResetCost  = 20              // or in this many times as long as one takes
)

// resets bounds how often sessions are reset. The zero value is ready.
type resets struct {
	mu   sync.Mutex
	soft map[softReset]time.Time // until when those that were allowed are accounted for
	hard map[netip.Addr]hardReset
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
	for other, until := range r.soft {
		if !now.Before(until) {
			delete(r.soft, other)
		}
	}
	until, ok := r.soft[x]
	if !ok {
		until = now
	}
	if wait := until.Sub(now) - (softResetBurst-1)*softResetPause; wait > 0 {
		return nil, wait
	}
	if r.soft == nil {
		r.soft = map[softReset]time.Time{}
	}
	r.soft[x] = until.Add(softResetPause)
	return func(end time.Time) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if more := softResetCost*end.Sub(now) - softResetPause; more > 0 {
			r.soft[x] = r.soft[x].Add(more)
		}
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
