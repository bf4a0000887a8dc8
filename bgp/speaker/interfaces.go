package speaker

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"go.uber.org/zap"
)

// hopInterfaces has the interface by which each next hop of received routes is reached, while a filter refers to it:
// GoBGP's policies know next hops, but no interfaces.
type hopInterfaces struct {
	lookup func(netip.Addr) string // nil: unknown

	mu     sync.Mutex
	hops   map[netip.Addr]string
	cancel context.CancelFunc // ends the watch; nil while no filter needs it
	kept   int                // number of hops after the last sweep
	sweep  *hopSweep          // the one that runs
}

// hopSweep looks for the next hops that routes have.
type hopSweep struct {
	used map[netip.Addr]bool // also those that came while it ran
}

// hopRefresh is how often interfaces are looked up again, because routes of the kernel change.
const hopRefresh = 5 * time.Second

// manyHops is the number of next hops from which on those are forgotten that no route has any more. A sweep reads all
// routes, so that the number must also have doubled since the last one.
const manyHops = 1000

// known returns the interfaces by next hop.
func (h *hopInterfaces) known() map[netip.Addr]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.hops)
}

// note takes in next hops and reports whether any of them is new.
func (h *hopInterfaces) note(hops []netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := false
	for _, hop := range hops {
		if h.sweep != nil {
			h.sweep.used[hop] = true
		}
		if _, known := h.hops[hop]; h.hops != nil && !known {
			h.hops[hop] = h.lookup(hop)
			changed = changed || h.hops[hop] != ""
		}
	}
	return changed
}

// refresh looks all next hops up again and reports whether any interface changed.
func (h *hopInterfaces) refresh() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := false
	for hop, before := range h.hops {
		h.hops[hop] = h.lookup(hop)
		changed = changed || h.hops[hop] != before
	}
	return changed
}

// stop forgets everything. The watch ends with it.
func (h *hopInterfaces) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cancel != nil {
		h.cancel()
	}
	h.hops, h.cancel, h.sweep, h.kept = nil, nil, nil, 0
}

// begin starts a sweep, nil if there is no need or one runs already.
func (h *hopInterfaces) begin() *hopSweep {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sweep != nil || len(h.hops) <= max(manyHops, 2*h.kept) {
		return nil
	}
	h.sweep = &hopSweep{used: map[netip.Addr]bool{}}
	return h.sweep
}

// use notes that a route has a next hop.
func (h *hopInterfaces) use(sweep *hopSweep, hop netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sweep.used[hop] = true
}

// end forgets the next hops that a complete sweep has not found.
func (h *hopInterfaces) end(sweep *hopSweep, complete bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sweep != sweep { // the watch has ended meanwhile
		return
	}
	if h.sweep = nil; !complete {
		return
	}
	left := map[netip.Addr]string{} // a new one: the memory of the old one would stay
	for hop, name := range h.hops {
		if sweep.used[hop] {
			left[hop] = name
		}
	}
	h.hops, h.kept = left, len(left)
}

// forgetHops forgets, without waiting, the next hops that no route of a peer has any more, accepted or not. The policy
// drops them when it changes the next time.
func (s *Speaker) forgetHops() {
	run := s.current()
	if run == nil {
		return
	}
	sweep := s.interfaces.begin()
	if sweep == nil {
		return
	}
	go func() {
		complete := true
		for peer := range s.taps.received() {
			err := run.receivedPaths(peer, nil, func(t *TablePath) { s.interfaces.use(sweep, t.NextHop) })
			complete = complete && (err == nil || s.taps.of(peer) == nil) // a session that is gone has none
		}
		s.interfaces.end(sweep, complete)
	}()
}

// watchHops follows the next hops of received routes while the policy refers to interfaces.
func (r *speakerRun) watchHops() error {
	h := &r.sp.interfaces
	if !r.policy.Watched || h.lookup == nil {
		h.stop()
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cancel != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(r.sp.ctx)
	h.cancel, h.hops = cancel, map[netip.Addr]string{}
	return r.srv.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPathUpdate: func(paths []*apiutil.Path, _ time.Time) {
			if ctx.Err() == nil && h.note(nextHops(paths)) {
				r.sp.reconsider()
			}
		}}, server.WatchUpdate(true, "", ""))
}

func nextHops(paths []*apiutil.Path) (hops []netip.Addr) {
	for _, p := range paths {
		for _, a := range p.Attrs {
			switch a := a.(type) {
			case *gobgp.PathAttributeNextHop:
				hops = append(hops, a.Value)
			case *gobgp.PathAttributeMpReachNLRI:
				hops = append(hops, a.Nexthop)
			}
		}
	}
	return hops
}

// refreshHops reads the kernel's routes every few seconds.
func (s *Speaker) refreshHops(now time.Time) {
	if now.Unix()%int64(hopRefresh/time.Second) != 0 {
		return
	}
	if s.interfaces.refresh() {
		s.reconsider()
	}
	s.forgetHops()
}

// reconsider makes the policy again after interfaces of next hops became known or changed.
func (s *Speaker) reconsider() {
	s.setMu.Lock()
	defer s.setMu.Unlock()
	r := s.run
	if r == nil || r.desired == nil || s.ctx.Err() != nil {
		return
	}
	again, err := r.setPolicy(s.ctx, *r.desired)
	if err == nil {
		err = r.decide(s.ctx, again)
	}
	if err != nil {
		s.log.Warn("bgp policy: interfaces of next hops changed", zap.Error(err))
	}
}

func (h *hopInterfaces) of(hop netip.Addr) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hops[hop]
}
