package speaker

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
)

// leftovers are routes that internal peers may still have from this reflector although they should not.
//
// Fault: the best path of a route is that of a reflector client, and then one of an internal peer that is no client.
// GoBGP passes the new one on to clients alone (RFC 4456 section 6), and does not withdraw the old one from the other
// internal peers, not even when all paths are gone: a dead route is used. Shown by TestRouteOfAClientGoes. Can go when
// GoBGP's filterpath withdraws it.
//
// The gate has a record of the routes of these peers. A route in it is withdrawn if the table has no path for it now
// that may be passed on, and the peer got it before that was looked up, with nothing waiting for the peer. Sessions
// with ADD-PATH are left out: GoBGP withdraws each path there by itself.
type leftovers struct {
	mu      sync.Mutex
	pending map[leftover]bool
}

type leftover struct {
	peer   netip.Addr
	prefix netip.Prefix
}

// leftoverDelay bounds how often routes that change all the time are looked up.
const leftoverDelay = 300 * time.Millisecond

// leaves notes best paths that internal peers are not sent, and that may have replaced some that they were sent.
func (r *speakerRun) leaves(paths []*apiutil.Path) {
	rules := r.inForce.Load()
	if rules == nil || !rules.reflects {
		return
	}
	for _, p := range paths {
		nlri, ok := p.Nlri.(*gobgp.IPAddrPrefix)
		if !ok || !rules.internal[p.PeerAddress.Unmap()] {
			continue
		}
		for peer := range rules.internal {
			if peer.Is4() == nlri.Prefix.Addr().Is4() {
				r.lookLater(leftover{peer, nlri.Prefix.Masked()})
			}
		}
	}
}

func (r *speakerRun) lookLater(l leftover) {
	if !r.gate.HasSent(l.peer, l.prefix) && !r.waitsFor(l.peer) {
		return
	}
	r.leftovers.mu.Lock()
	defer r.leftovers.mu.Unlock()
	if r.leftovers.pending == nil {
		r.leftovers.pending = map[leftover]bool{}
		time.AfterFunc(leftoverDelay, r.withdrawLeftovers)
	}
	r.leftovers.pending[l] = true
}

// waitsFor reports whether GoBGP has messages for a peer that it has not written.
func (r *speakerRun) waitsFor(peer netip.Addr) bool {
	tap := r.sp.taps.of(peer)
	return tap != nil && waiting(tap.outgoing.Load())
}

func (r *speakerRun) withdrawLeftovers() {
	r.leftovers.mu.Lock()
	pending := r.leftovers.pending
	r.leftovers.pending = nil
	r.leftovers.mu.Unlock()
	rules := r.inForce.Load()
	if rules == nil || r.sp.current() != r {
		return
	}
	for l := range pending {
		r.withdrawLeftover(l, rules)
	}
}

func (r *speakerRun) withdrawLeftover(l leftover, rules *policyInForce) {
	before := time.Now()
	if r.waitsFor(l.peer) {
		r.lookLater(l)
		return
	}
	best, err := r.bestOf(l.prefix)
	switch {
	case err != nil, best != nil && !(rules.internal[l.peer] && rules.internal[best.PeerAddress.Unmap()]):
	case r.gate.Withdraw(l.peer, l.prefix, before):
		r.sp.log.Debug("bgp: a route is withdrawn that the peer should not have", zap.Stringer("peer", l.peer),
			zap.Stringer("prefix", l.prefix))
	default:
		r.lookLater(l)
	}
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
		}
	})
	return best, err
}
