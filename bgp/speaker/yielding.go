package speaker

import (
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
)

// An origin that yields is announced only while no peer announces its prefix. As the last choice of our own table it
// never hides a route of a peer. That alone would do but for sessions with ADD-PATH, which carry every path of a
// prefix.

// comesBehind reports whether an origin that yields must not be announced now: a peer has a route for its prefix, or,
// after a start, may still send one.
func (r *speakerRun) comesBehind(prefix netip.Prefix) bool {
	return r.sp.fib.Knows(prefix) || r.sp.sync.comesFirst(time.Now())
}

// comesFirst reports whether the routes of peers may still be on their way after a start. An End-of-RIB that waits for
// one peer alone leaves RestartDeferral after its session came up: a route that is announced later would be removed and
// added again.
func (r *restartSync) comesFirst(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.defers(now) && now.Sub(r.started) < r.cfg.RestartDeferral
}

// mayReplace reports whether a peer may have another route for a prefix from us.
func (r *speakerRun) mayReplace(prefix netip.Prefix) bool {
	rules := r.inForce.Load()
	return r.sp.fib.Knows(prefix) || rules != nil && rules.yielding[prefix]
}

// yieldTo withdraws and announces origins that yield, after a change of best paths.
func (r *speakerRun) yieldTo(paths []*apiutil.Path) {
	rules := r.inForce.Load()
	if rules == nil || len(rules.yielding) == 0 {
		return
	}
	for _, p := range paths {
		nlri, ok := p.Nlri.(*gobgp.IPAddrPrefix)
		if ok && p.PeerAddress.IsValid() && rules.yielding[nlri.Prefix.Masked()] {
			if !r.settling.Swap(true) {
				go r.settleYielding() // a change of GoBGP from its callback could wait for itself
			}
			return
		}
	}
}

// settleYielding announces and withdraws origins that yield as their prefixes are known to BGP now.
func (r *speakerRun) settleYielding() {
	r.sp.setMu.Lock()
	defer r.sp.setMu.Unlock()
	r.settling.Store(false)
	if r.sp.current() != r || r.desired == nil || r.sp.ctx.Err() != nil {
		return
	}
	if err := r.setOrigins(r.desired.Originated, r.desired.Drain); err != nil {
		r.sp.log.Warn("bgp: routes of the kernel are not announced as they should be, trying again", zap.Error(err))
		r.sp.again()
	}
}
