package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
)

// leftovers are routes of reflector clients that internal peers may still have from this node although they should not.
//
// Fault: the best path of a route is that of a reflector client, and then one of an internal peer that is no client.
// GoBGP passes the new one on to clients alone (RFC 4456 section 6), and does not withdraw the old one from the other
// internal peers, not even when all paths are gone: a dead route is used. Shown by TestRouteOfAClientGoes. Can go when
// GoBGP's filterpath withdraws it.
//
// The gate has a record of the routes that peers have. A route in it is withdrawn if the table has no path for it now
// that may be passed on, and the peer got it before that was looked up. A peer is looked at when all that was for it is
// written. Sessions with ADD-PATH do not have the fault.
type leftovers struct {
	mu        sync.Mutex
	scheduled bool
	changed   map[netip.Prefix]bool                // to look up for all internal peers that are no clients
	late      map[netip.Addr]map[netip.Prefix]bool // to look up again for peers to which something was under way
}

// leftoverDelay bounds how often routes that change all the time are looked up.
const leftoverDelay = 300 * time.Millisecond

// leaves notes the prefixes of best paths that have changed so that a peer may be left with a route.
func (r *speakerRun) leaves(paths []*apiutil.Path) {
	rules := r.inForce.Load()
	if rules == nil {
		return
	}
	for _, p := range paths {
		nlri, ok := p.Nlri.(*gobgp.IPAddrPrefix)
		if ok && rules.reflects && (p.Withdrawal || rules.internal[p.PeerAddress.Unmap()]) {
			r.lookLater(nlri.Prefix.Masked())
		}
	}
}

func (r *speakerRun) lookLater(prefix netip.Prefix) {
	l := &r.leftovers
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = map[netip.Prefix]bool{}
	}
	l.changed[prefix] = true
	r.scheduleLook()
}

// scheduleLook is called with the leftovers locked.
func (r *speakerRun) scheduleLook() {
	if !r.leftovers.scheduled {
		r.leftovers.scheduled = true
		time.AfterFunc(leftoverDelay, r.withdrawLeftovers)
	}
}

func (r *speakerRun) withdrawLeftovers() {
	l := &r.leftovers
	l.mu.Lock()
	changed, late := l.changed, l.late
	l.scheduled, l.changed, l.late = false, nil, nil
	l.mu.Unlock()
	rules := r.inForce.Load()
	if rules == nil || r.sp.current() != r {
		return
	}
	again := map[netip.Addr]map[netip.Prefix]bool{}
	for _, s := range rules.desired.Sessions {
		peer := s.Address.Unmap()
		prefixes := changed
		if more := late[peer]; more != nil {
			maps.Copy(more, changed)
			prefixes = more
		}
		if left := r.withdrawFrom(peer, prefixes, rules); len(left) > 0 {
			again[peer] = left
		}
	}
	if len(again) > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.late = again
		r.scheduleLook()
	}
}

// withdrawFrom withdraws those of some prefixes that a peer has from this node and should not have. It returns the
// prefixes that have to be looked up again, because something was under way to the peer.
func (r *speakerRun) withdrawFrom(peer netip.Addr, prefixes map[netip.Prefix]bool,
	rules *policyInForce) (again map[netip.Prefix]bool) {
	if len(prefixes) == 0 {
		return nil
	}
	before := time.Now()
	if r.gate.Busy(peer) {
		return maps.Clone(prefixes)
	}
	again = map[netip.Prefix]bool{}
	for _, prefix := range r.gate.Sent(peer, prefixes) {
		best, err := r.bestOf(prefix)
		switch {
		case err != nil, best != nil && !(rules.reflects && rules.internal[peer] && rules.internal[best.PeerAddress]):
		case r.gate.Withdraw(peer, prefix, before):
			r.sp.log.Debug("bgp: a route is withdrawn that the peer should not have", zap.Stringer("peer", peer),
				zap.Stringer("prefix", prefix))
		default:
			again[prefix] = true
		}
	}
	return again
}

// bestOf returns the best path of a prefix, nil if there is none.
func (r *speakerRun) bestOf(prefix netip.Prefix) (best *apiutil.Path, err error) {
	family := gobgp.RF_IPv4_UC
	if prefix.Addr().Is6() {
		family = gobgp.RF_IPv6_UC
	}
	err = r.listPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family,
		Prefixes: []*apiutil.LookupPrefix{{Prefix: prefix.String()}}}, func(_ gobgp.NLRI, paths []*apiutil.Path) {
		if i := slices.IndexFunc(paths, func(p *apiutil.Path) bool { return p.Best }); i >= 0 {
			best = paths[i]
			best.PeerAddress = best.PeerAddress.Unmap()
		}
	})
	return best, err
}
