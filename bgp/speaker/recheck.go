package speaker

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgppolicy"
)

// rechecks are peers that may hold a route which their export filters reject since the route changed.
//
// Fault: when a route that GoBGP has sent is replaced by one that the export policy rejects, the withdrawal is lost on
// a session with ADD-PATH, and on any session if the policy refers to the next hop, because GoBGP evaluates it for the
// old route with the next hop of the new one. Shown by TestPolicyDoesWhatTheRulesSay (interfaces) and
// TestFiltersWithBIRD (ADD-PATH). Can go when GoBGP withdraws the routes that it remembers to have sent.
type rechecks struct {
	mu      sync.Mutex
	pending map[netip.Addr]bool
}

// recheckDelay bounds how often all routes are sent again because of routes that change all the time.
const recheckDelay = 300 * time.Millisecond

// recheck checks best routes that have changed; replaced reports whether there was a route for the prefix before.
func (r *speakerRun) recheck(paths []*apiutil.Path, replaced func(netip.Prefix) bool) {
	rules := r.inForce.Load()
	if rules == nil {
		return
	}
	for _, p := range paths {
		nlri, ok := p.Nlri.(*gobgp.IPAddrPrefix)
		if !ok || p.Withdrawal || !p.PeerAddress.IsValid() || !rules.attributes && !hasWellKnown(p) ||
			!replaced(nlri.Prefix.Masked()) {
			continue
		}
		t := tablePath(p)
		for _, g := range rules.groups {
			if g.IPv6 == t.Prefix.Addr().Is6() && (forbidden(g.Session, t.Communities) ||
				dependOnAttributes(g.Rules(true)) &&
					!rules.desired.Export(g.Session, r.candidate(rules.desired, t)).Accept) {
				r.recheckLater(g.Peers)
			}
		}
	}
}

func hasWellKnown(p *apiutil.Path) bool {
	for _, a := range p.Attrs {
		if c, ok := a.(*gobgp.PathAttributeCommunities); ok {
			return slices.Contains(c.Value, gobgppolicy.NoExport) || slices.Contains(c.Value, gobgppolicy.NoAdvertise)
		}
	}
	return false
}

func (r *speakerRun) recheckLater(peers []netip.Addr) {
	r.rechecks.mu.Lock()
	defer r.rechecks.mu.Unlock()
	if r.rechecks.pending == nil {
		r.rechecks.pending = map[netip.Addr]bool{}
		time.AfterFunc(recheckDelay, r.recheckNow)
	}
	for _, a := range peers {
		r.rechecks.pending[a] = true
	}
}

func (r *speakerRun) recheckNow() {
	r.rechecks.mu.Lock()
	peers := r.rechecks.pending
	r.rechecks.pending = nil
	r.rechecks.mu.Unlock()
	r.sp.setMu.Lock() // the sessions are looked at
	defer r.sp.setMu.Unlock()
	for a := range peers {
		if r.sp.current() != r || !r.sp.status.IsEstablished(a) {
			continue
		}
		if err := r.softOut(r.sp.ctx, a.String()); err != nil {
			r.sp.log.Debug("bgp export: changed routes are not looked at again", zap.Stringer("peer", a),
				zap.Error(err))
		}
	}
}

// policyInForce has the inputs for evaluating the rules of the current policy.
type policyInForce struct {
	desired    bgp.Desired
	groups     []*gobgppolicy.Group
	attributes bool                // a rule refers to an attribute of a learned route that may change
	reflects   bool                // there are reflector clients
	internal   map[netip.Addr]bool // the internal peers that are no clients
	yielding   map[netip.Prefix]bool
}

func inForceOf(d bgp.Desired, p gobgppolicy.Policy) *policyInForce {
	j := &policyInForce{desired: d, groups: p.Groups, internal: map[netip.Addr]bool{},
		yielding: map[netip.Prefix]bool{}}
	for _, o := range d.Originated {
		if o.Yields && !o.Withheld {
			j.yielding[o.Prefix.Masked()] = true
		}
	}
	for _, s := range d.Sessions {
		switch {
		case s.PeerAS != s.LocalAS:
		case s.ReflectorClient:
			j.reflects = true
		default:
			j.internal[s.Address.Unmap()] = true
		}
	}
	for _, g := range p.Groups {
		j.attributes = j.attributes || dependOnAttributes(g.Rules(true))
	}
	return j
}

// candidate converts a route of our table for filters.
func (r *speakerRun) candidate(d bgp.Desired, t *TablePath) bgp.Candidate {
	c := bgp.Candidate{Prefix: t.Prefix, Source: bgp.SourceInternal, Communities: t.Communities,
		LargeCommunities: t.LargeCommunities,
		ASPath:           t.ASPath, LocalPref: bgp.DefaultLocalPref, Interface: r.sp.interfaces.of(t.NextHop)}
	if t.LocalPref != nil {
		c.LocalPref = *t.LocalPref
	}
	for _, s := range d.Sessions {
		if s.Address.Unmap() == t.Peer.Unmap() && s.PeerAS != s.LocalAS {
			c.Source = bgp.SourceExternal
		}
	}
	return c
}

// dependOnAttributes reports whether a rule's result for a prefix depends on the route.
func dependOnAttributes(rules []bgp.Rule) bool {
	for _, r := range rules {
		if r.Community != nil || r.Large != nil || len(r.ASPathPrefix) > 0 || r.Priority != 0 || r.Interface != "" {
			return true
		}
	}
	return false
}
