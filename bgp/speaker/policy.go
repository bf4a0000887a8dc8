package speaker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgppolicy"
)

// startPolicy assigns the two policies. Until the first setPolicy nothing is exported.
func (r *speakerRun) startPolicy(ctx context.Context) error {
	for _, p := range []struct {
		name      string
		direction api.PolicyDirection
		otherwise api.RouteAction
	}{
		{gobgppolicy.ExportPolicy, api.PolicyDirection_POLICY_DIRECTION_EXPORT,
			api.RouteAction_ROUTE_ACTION_REJECT},
		{gobgppolicy.ImportPolicy, api.PolicyDirection_POLICY_DIRECTION_IMPORT,
			api.RouteAction_ROUTE_ACTION_ACCEPT},
	} {
		if err := r.srv.AddPolicy(ctx, &api.AddPolicyRequest{Policy: &api.Policy{Name: p.name}}); err != nil {
			return fmt.Errorf("bgp speaker: define policy %s: %w", p.name, err)
		}
		err := r.srv.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Name: "global", Direction: p.direction, Policies: []*api.Policy{{Name: p.name}}, DefaultAction: p.otherwise,
		}})
		if err != nil {
			return fmt.Errorf("bgp speaker: assign policy %s: %w", p.name, err)
		}
	}
	return nil
}

// setPolicy makes GoBGP decide about routes as d requires. It returns the routes to decide again.
func (r *speakerRun) setPolicy(ctx context.Context, d bgp.Desired) (again, error) {
	p := gobgppolicy.Translate(d, r.sp.interfaces.known())
	if bytes.Equal(p.Encoded, r.policy.Encoded) { // there may be other sessions, although the same rules
		r.policy = p
		r.inForce.Store(inForceOf(d, p))
		return again{}, nil
	}
	if err := r.srv.SetPolicies(ctx, p.Request); err != nil {
		return again{}, fmt.Errorf("bgp policy: %w", err)
	}
	old := r.policy
	r.policy = p
	r.inForce.Store(inForceOf(d, p))
	r.sp.log.Debug("bgp policy changed", zap.Int("export", len(p.Request.Policies[0].Statements)),
		zap.Int("import", len(p.Request.Policies[1].Statements)))
	return r.compare(old, p), nil
}

// again selects the routes to decide again after a change of the policy.
type again struct {
	in, out []netip.Addr   // all routes from, or to, these peers
	ranges  []netip.Prefix // learned routes inside these, to all peers
	all     bool           // to all peers
}

func (r *speakerRun) compare(old, new gobgppolicy.Policy) again {
	a := again{all: old.Drain != new.Drain}
	before, after := old.Peers(), new.Peers()
	for addr := range r.sessions {
		was, is := before[gobgppolicy.PlainAddr(addr)], after[gobgppolicy.PlainAddr(addr)]
		if was.In != is.In {
			a.in = append(a.in, addr)
		}
		if was.Out != is.Out || r.ownChanged(was.Own, is.Own) {
			a.out = append(a.out, addr)
		}
	}
	for _, addr := range slices.Concat(r.exceptedPeers(old, new), r.claimants(old, new)) {
		if !slices.Contains(a.in, addr) {
			a.in = append(a.in, addr)
		}
	}
	a.ranges = gobgppolicy.Unequal(old.Ranges, new.Ranges)
	return a
}

// ownChanged reports whether one of our announced routes is decided differently now.
func (r *speakerRun) ownChanged(was, is map[netip.Prefix]string) bool {
	for p := range r.origins {
		before, known := was[p]
		if now, still := is[p]; known && still && before != now {
			return true
		}
	}
	return false
}

// decide makes GoBGP decide again. It must follow a change of the policy at once: until then GoBGP would leave routes
// behind at peers, because it takes routes that the new policy rejects for never sent.
func (r *speakerRun) decide(ctx context.Context, a again) error {
	var errs []error
	for _, addr := range a.in {
		errs = append(errs, r.softIn(ctx, addr.String()))
	}
	switch {
	case a.all || len(a.ranges) > 0 && r.sp.fib.LearnedInside(a.ranges):
		errs = append(errs, r.softOut(ctx, "all"))
	default:
		for _, addr := range a.out {
			errs = append(errs, r.softOut(ctx, addr.String()))
		}
		if len(a.ranges) > 0 {
			r.reevaluate(a.ranges)
		}
	}
	return errors.Join(errs...)
}

// reevaluate handles routes that were on their way into our table when the policy changed, so that GoBGP decided about
// them under the old policy.
func (r *speakerRun) reevaluate(ranges []netip.Prefix) {
	time.AfterFunc(time.Second, func() {
		r.sp.setMu.Lock()
		defer r.sp.setMu.Unlock()
		if r.sp.current() != r || !r.sp.fib.LearnedInside(ranges) {
			return
		}
		if err := r.softOut(context.Background(), "all"); err != nil {
			r.sp.log.Warn("bgp export", zap.Error(err))
		}
	})
}

func (r *speakerRun) softOut(ctx context.Context, peer string) error {
	return r.soft(ctx, peer, api.ResetPeerRequest_DIRECTION_OUT)
}

func (r *speakerRun) softIn(ctx context.Context, peer string) error {
	return r.soft(ctx, peer, api.ResetPeerRequest_DIRECTION_IN)
}

func (r *speakerRun) soft(ctx context.Context, peer string, direction api.ResetPeerRequest_Direction) error {
	if len(r.sessions) == 0 {
		return nil
	}
	if err := r.srv.ResetPeer(ctx, &api.ResetPeerRequest{Address: peer, Soft: true, Direction: direction}); err != nil {
		return fmt.Errorf("bgp policy: decide again about routes of %s: %w", peer, err)
	}
	return nil
}

// exceptedPeers lists the outsiders that may have announced one of the prefixes about which exceptions have changed.
func (r *speakerRun) exceptedPeers(old, new gobgppolicy.Policy) (list []netip.Addr) {
	changed := difference(old.Excepted, new.Excepted)
	if len(changed) == 0 {
		return nil
	}
	all := r.sp.taps.received()
	for addr, s := range r.sessions {
		if x := all[addr.Unmap()]; s.Outsider && x != nil &&
			slices.ContainsFunc(changed, func(p netip.Prefix) bool { return x.refuses(p) || r.sp.fib.Knows(p) }) {
			list = append(list, addr)
		}
	}
	return list
}

// claimants lists the peers that have announced one of the single prefixes about which refusals have changed, and notes
// the routes that are refused now. To ask for the routes of each peer would be dear: GoBGP makes a whole table for each
// answer.
func (r *speakerRun) claimants(old, new gobgppolicy.Policy) (list []netip.Addr) {
	changed := difference(old.Single, new.Single)
	if len(changed) == 0 {
		return nil
	}
	all := r.sp.taps.received()
	claimed := map[netip.Addr]bool{}
	if err := r.learnedPaths(changed, func(p *apiutil.Path) {
		peer := p.PeerAddress.Unmap()
		claimed[peer] = true
		if t := tablePath(p); t != nil && all[peer] != nil {
			all[peer].learned(t)
		}
	}); err != nil {
		r.sp.log.Warn("bgp policy: look for routes that are refused now", zap.Error(err))
	}
	for addr := range r.sessions {
		x := all[addr.Unmap()]
		if claimed[addr.Unmap()] || x != nil && slices.ContainsFunc(changed, x.refuses) {
			list = append(list, addr)
		}
	}
	return list
}
