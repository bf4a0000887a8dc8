package speaker

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A soft reset reads all routes of a peer while GoBGP stops. Operators need a few in a row; programs that repeat them
// would keep the node busy.
const (
	resetsAtOnce    = 20
	resetEvery      = 2 * time.Second
	peerResets      = 6
	peerResetEvery  = 10 * time.Second
	rememberedPeers = 1000
)

// ResetLimit bounds how often sessions are softly reset, each and all together. The zero value is ready; it is safe for
// concurrent use.
type ResetLimit struct {
	mu      sync.Mutex
	all     *rate.Limiter
	peers   map[netip.Addr]*rate.Limiter
	refused uint64
}

// Allow counts n soft resets of one peer (each direction is one); an invalid address stands for all peers. An error has
// the time to wait. Otherwise it returns how many resets were refused since the last accepted one.
func (l *ResetLimit) Allow(peer netip.Addr, n int, now time.Time) (refused uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = rate.NewLimiter(rate.Every(resetEvery), resetsAtOnce)
	}
	all := l.all.ReserveN(now, min(n, resetsAtOnce))
	wait := all.DelayFrom(now)
	of := fmt.Sprintf("all sessions together: %d in a row, then one in %s", resetsAtOnce, resetEvery)
	var one *rate.Reservation
	if peer.IsValid() {
		one = l.of(peer).ReserveN(now, min(n, peerResets))
		if d := one.DelayFrom(now); d > wait {
			wait, of = d, fmt.Sprintf("one session: %d in a row, then one in %s", peerResets, peerResetEvery)
		}
	}
	if wait > 0 {
		all.CancelAt(now)
		if one != nil {
			one.CancelAt(now)
		}
		l.refused++
		return 0, fmt.Errorf("%w of %s; try again in %s", ErrTooOften, of, wait.Truncate(time.Second)+time.Second)
	}
	refused, l.refused = l.refused, 0
	return refused, nil
}

func (l *ResetLimit) of(peer netip.Addr) *rate.Limiter {
	if l.peers == nil || len(l.peers) >= rememberedPeers {
		l.peers = map[netip.Addr]*rate.Limiter{}
	}
	if l.peers[peer] == nil {
		l.peers[peer] = rate.NewLimiter(rate.Every(peerResetEvery), peerResets)
	}
	return l.peers[peer]
}
