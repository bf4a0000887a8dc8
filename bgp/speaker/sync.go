package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/manxnet/manx/bgp"
)

// restartSync determines when, after a start, the learned routes are complete (RFC 4724 section 4.1): every session of
// the start has either sent its End-of-RIB or had its time to.
type restartSync struct {
	cfg  Config
	done func(reason string)
	over func() // called when this node may send its End-of-RIB, also more than once

	mu       sync.Mutex
	started  time.Time
	finished bool
	waiting  map[netip.Addr]time.Time // zero: not up yet; otherwise since when it is up
	exempt   map[netip.Addr]bool      // no End-of-RIB of ours waits for them (RFC 4724 section 4.1)
}

func newRestartSync(cfg Config, done func(string), over func()) *restartSync {
	return &restartSync{cfg: cfg, done: done, over: over}
}

// deferring reports whether this node has to wait with its End-of-RIB: for that of a peer which announces graceful
// restart and has not restarted itself.
func (r *restartSync) deferring(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.defers(now)
}

// defers is deferring for callers that have locked r.
func (r *restartSync) defers(now time.Time) bool {
	if r.finished {
		return false
	}
	for addr, up := range r.waiting {
		if !r.exempt[addr] && r.left(up, now) > 0 {
			return true
		}
	}
	return r.started.IsZero()
}

// Synced reports whether routes that are not in Take's results may be removed from the kernel, and if not, the
// condition waited for. It becomes true once after every start, and Changed fires then.
func (s *Speaker) Synced() (bool, string) { return s.sync.state(time.Now()) }

// Ready reports whether this node does its part in BGP, and if not, the condition waited for. It fails while no
// connections can be accepted. It waits for peers that are up as in Synced. It waits for peers that are down only as
// long as a healthy peer takes to connect: they are no fault of this node.
func (s *Speaker) Ready() (bool, string) {
	if why := s.status.CannotRun(); why != "" {
		return false, why
	}
	if run := s.current(); run != nil {
		if why := run.gate.NotAccepting(); why != "" {
			return false, why
		}
	}
	return s.sync.ready(time.Now())
}

// readyWait is how long after a start a session may take to come up before readiness goes on without it.
const readyWait = 15 * time.Second

func (r *restartSync) ready(now time.Time) (bool, string) {
	synced, reason := r.state(now)
	if synced {
		return true, ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started.IsZero() || now.Sub(r.started) < readyWait {
		return false, reason
	}
	for _, up := range r.waiting {
		inTime := !up.IsZero() && up.Sub(r.started) < readyWait // a later one must not make a ready node unready
		if inTime && r.left(up, now) > 0 {
			return false, reason
		}
	}
	return true, "routes of before the restart are kept: " + reason
}

func (r *restartSync) begin(sessions []bgp.Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started, r.finished = time.Now(), false
	r.waiting = make(map[netip.Addr]time.Time, len(sessions))
	r.exempt = map[netip.Addr]bool{}
	for _, s := range sessions {
		r.waiting[s.Address.Unmap()] = time.Time{}
	}
}

// since returns how long ago the speaker started.
func (r *restartSync) since(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Sub(r.started)
}

// established records that a peer is up. exempt: no End-of-RIB of ours waits for it.
func (r *restartSync) established(addr netip.Addr, exempt bool, now time.Time) {
	r.mu.Lock()
	if _, ok := r.waiting[addr]; ok {
		r.waiting[addr], r.exempt[addr] = now, exempt
	}
	may := !r.defers(now)
	r.mu.Unlock()
	if may {
		r.over()
	}
}

func (r *restartSync) lost(addr netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.waiting[addr]; ok {
		r.waiting[addr], r.exempt[addr] = time.Time{}, false
	}
}

// forget stops waiting for a peer: it has sent its End-of-RIB, or is not wanted any more.
func (r *restartSync) forget(addr netip.Addr) {
	r.mu.Lock()
	delete(r.waiting, addr)
	r.mu.Unlock()
	r.tick(time.Now())
}

// tick finishes the wait when there is nothing more to wait for.
func (r *restartSync) tick(now time.Time) {
	r.mu.Lock()
	if r.finished || r.started.IsZero() {
		r.mu.Unlock()
		return
	}
	var late []string
	for addr, up := range r.waiting {
		if r.left(up, now) > 0 {
			may := !r.defers(now)
			r.mu.Unlock()
			if may {
				r.over()
			}
			return
		}
		late = append(late, addr.String())
	}
	r.finished = true
	r.mu.Unlock()
	reason := "every peer has sent its routes"
	if len(late) > 0 {
		slices.Sort(late)
		reason = "time is up; no End-of-RIB came from " + shortList(late)
	}
	r.done(reason)
	r.over()
}

// left is how long a peer is still waited for. A peer that comes and goes does not prolong that without end.
func (r *restartSync) left(up, now time.Time) time.Duration {
	window := r.cfg.RestartWindow - now.Sub(r.started)
	if up.IsZero() {
		return window
	}
	return min(r.cfg.RestartDeferral-now.Sub(up), window+r.cfg.RestartDeferral)
}

func (r *restartSync) state(now time.Time) (bool, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.started.IsZero():
		return false, "the BGP speaker is not running yet"
	case r.finished:
		return true, ""
	}
	var down, up []string
	most := time.Duration(0)
	for addr, since := range r.waiting {
		most = max(most, r.left(since, now))
		if since.IsZero() {
			down = append(down, addr.String())
		} else {
			up = append(up, addr.String())
		}
	}
	slices.Sort(down)
	slices.Sort(up)
	var parts []string
	if len(down) > 0 {
		parts = append(parts, "the session with "+shortList(down))
	}
	if len(up) > 0 {
		parts = append(parts, "the End-of-RIB of "+shortList(up))
	}
	if len(parts) == 0 {
		return false, "every peer has sent its routes: the restart is about to end"
	}
	return false, fmt.Sprintf("waiting after the restart for %s, at most %d s more", strings.Join(parts, " and "),
		int(most.Seconds()+0.999))
}

// shortList joins names and counts those that do not fit.
func shortList(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), len(names)-most)
}
