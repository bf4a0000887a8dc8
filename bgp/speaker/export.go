package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// Export to peers, first match wins:
//
//	own routes                        accept
//	inside NoExportPrefixes           reject
//	next hop self or keep             set, where the peer asks for it, and go on
//	external peer                     set MED to relayMED, and go on
//	inside ExportPrefixes             accept
//	anything else                     reject
//
// GoBGP has no policy per neighbour: the differences between peers are neighbour sets in one global policy. Sets are
// changed element by element, because replacing a set that a statement uses has no effect, and none is ever empty,
// because an empty neighbour set matches every neighbour and an empty prefix set has no family.
const (
	exportPolicy    = "manx-export"
	setExport4      = "manx-export-v4"
	setExport6      = "manx-export-v6"
	setNoExport4    = "manx-noexport-v4"
	setNoExport6    = "manx-noexport-v6"
	setNextHopSelf  = "manx-next-hop-self"
	setNextHopKeep  = "manx-next-hop-keep"
	setExternal     = "manx-external"
	nobodyNeighbour = "255.255.255.255/32"
)

// relayMED is the MULTI_EXIT_DISC of learned routes that are passed on to external peers (RFC 4271 section 5.1.4).
// All nodes of a mesh announce each other's blocks to their switch with the same AS path; without it the switch might
// send to one node what belongs to another, and, where that node reaches the other through the switch, for ever.
// Own routes carry none, which counts as 0, so the owner is preferred and the others remain as a way around.
const relayMED = 100

// Placeholders that no peer announces.
var (
	nothing4 = netip.MustParsePrefix("255.255.255.255/32")
	nothing6 = netip.MustParsePrefix("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")
)

// exportRules says what of the learned routes is passed on, as elements of the named sets.
type exportRules map[exportElement]bool

type exportElement struct {
	set    string
	prefix netip.Prefix // of routes, or of neighbours
}

func exportOf(d bgp.Desired) exportRules {
	rules := exportRules{}
	prefixes := func(list []netip.Prefix, set4, set6 string) {
		for _, p := range list {
			set := set6
			if p.Addr().Is4() {
				set = set4
			}
			rules[exportElement{set, p.Masked()}] = true
		}
	}
	prefixes(d.ExportPrefixes, setExport4, setExport6)
	prefixes(d.NoExportPrefixes, setNoExport4, setNoExport6)
	for _, s := range d.Sessions {
		a := s.Address.Unmap().WithZone("")
		host := netip.PrefixFrom(a, a.BitLen())
		switch {
		case s.NextHop == bgp.NextHopSelf:
			rules[exportElement{setNextHopSelf, host}] = true
		case s.NextHop == bgp.NextHopKeep:
			rules[exportElement{setNextHopKeep, host}] = true
		}
		if s.PeerAS != s.LocalAS {
			rules[exportElement{setExternal, host}] = true
		}
	}
	return rules
}

// isNeighbour tells whether the element is a neighbour; else it is a prefix of routes.
func (e exportElement) isNeighbour() bool {
	return e.set == setNextHopSelf || e.set == setNextHopKeep || e.set == setExternal
}

func (e exportElement) definedSet() *api.DefinedSet {
	if e.isNeighbour() {
		return &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: e.set, List: []string{e.prefix.String()}}
	}
	return &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: e.set, Prefixes: []*api.Prefix{{
		IpPrefix: e.prefix.String(), MaskLengthMin: uint32(e.prefix.Bits()), MaskLengthMax: uint32(e.prefix.Addr().BitLen()),
	}}}
}

// startExport defines the sets, empty but for placeholders, and the policy.
func (r *speakerRun) startExport(ctx context.Context) error {
	r.export = exportRules{}
	neighbour := netip.MustParsePrefix(nobodyNeighbour)
	for _, e := range []exportElement{{setExport4, nothing4}, {setExport6, nothing6}, {setNoExport4, nothing4}, {setNoExport6, nothing6},
		{setNextHopSelf, neighbour}, {setNextHopKeep, neighbour}, {setExternal, neighbour}} {
		if err := r.srv.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: e.definedSet()}); err != nil {
			return fmt.Errorf("bgp speaker: define set %s: %w", e.set, err)
		}
	}
	policy := &api.Policy{Name: exportPolicy, Statements: exportStatements()}
	if err := r.srv.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy}); err != nil {
		return fmt.Errorf("bgp speaker: define export policy: %w", err)
	}
	err := r.srv.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_EXPORT,
		Policies: []*api.Policy{{Name: exportPolicy}}, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
	}})
	if err != nil {
		return fmt.Errorf("bgp speaker: assign export policy: %w", err)
	}
	return nil
}

func exportStatements() []*api.Statement {
	inSet := func(set string) *api.Conditions {
		return &api.Conditions{PrefixSet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: set}}
	}
	to := func(set string) *api.Conditions {
		return &api.Conditions{NeighborSet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: set}}
	}
	accept := &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT}
	reject := &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT}
	return []*api.Statement{
		{Name: "manx-own", Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, Actions: accept},
		{Name: setNoExport4, Conditions: inSet(setNoExport4), Actions: reject},
		{Name: setNoExport6, Conditions: inSet(setNoExport6), Actions: reject},
		{Name: setNextHopSelf, Conditions: to(setNextHopSelf), Actions: &api.Actions{Nexthop: &api.NexthopAction{Self: true}}},
		{Name: setNextHopKeep, Conditions: to(setNextHopKeep), Actions: &api.Actions{Nexthop: &api.NexthopAction{Unchanged: true}}},
		{Name: setExternal, Conditions: to(setExternal), Actions: &api.Actions{Med: &api.MedAction{Type: api.MedAction_TYPE_REPLACE, Value: relayMED}}},
		{Name: setExport4, Conditions: inSet(setExport4), Actions: accept},
		{Name: setExport6, Conditions: inSet(setExport6), Actions: accept},
	}
}

// setExport makes the sets as wanted and, where that changes what peers should have, sends it at once: until then GoBGP
// would leave routes behind that the new policy does not let it withdraw.
func (r *speakerRun) setExport(ctx context.Context, want exportRules) error {
	var errs []error
	var changed []exportElement
	for e := range want {
		if r.export[e] {
			continue
		}
		if err := r.srv.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: e.definedSet()}); err != nil {
			errs = append(errs, fmt.Errorf("bgp export: add %s to %s: %w", e.prefix, e.set, err))
			continue
		}
		r.export[e], changed = true, append(changed, e)
	}
	for e := range r.export {
		if want[e] {
			continue
		}
		if err := r.srv.DeleteDefinedSet(ctx, &api.DeleteDefinedSetRequest{DefinedSet: e.definedSet()}); err != nil {
			errs = append(errs, fmt.Errorf("bgp export: remove %s from %s: %w", e.prefix, e.set, err))
			continue
		}
		delete(r.export, e)
		changed = append(changed, e)
	}
	if len(changed) > 0 {
		r.sp.log.Debug("bgp export rules changed", zap.Int("elements", len(r.export)))
		errs = append(errs, r.resend(ctx, changed))
	}
	return errors.Join(errs...)
}

// resend sends routes again to those peers for which changed elements make a difference. A prefix makes one only if a
// learned route lies inside it, which for the node's own new blocks is next to never so.
func (r *speakerRun) resend(ctx context.Context, changed []exportElement) error {
	var prefixes []netip.Prefix
	var errs []error
	for _, e := range changed {
		if !e.isNeighbour() {
			prefixes = append(prefixes, e.prefix)
		} else if _, up := r.sessions[e.prefix.Addr()]; up {
			errs = append(errs, r.softOut(ctx, e.prefix.Addr().String()))
		}
	}
	if len(prefixes) == 0 {
		return errors.Join(errs...)
	}
	if r.sp.fib.learnedInside(prefixes) {
		return errors.Join(append(errs, r.softOut(ctx, "all"))...)
	}
	// A route may be on its way into our table that GoBGP has decided about before the change.
	time.AfterFunc(time.Second, func() {
		r.sp.setMu.Lock()
		defer r.sp.setMu.Unlock()
		if r.sp.current() != r || !r.sp.fib.learnedInside(prefixes) {
			return
		}
		if err := r.softOut(context.Background(), "all"); err != nil {
			r.sp.log.Warn("bgp export", zap.Error(err))
		}
	})
	return errors.Join(errs...)
}

func (r *speakerRun) softOut(ctx context.Context, peer string) error {
	if len(r.sessions) == 0 {
		return nil
	}
	err := r.srv.ResetPeer(ctx, &api.ResetPeerRequest{Address: peer, Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT})
	if err != nil {
		return fmt.Errorf("bgp export: send changes to %s: %w", peer, err)
	}
	return nil
}
