package speaker

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgppolicy"
)

// EvaluatedPath is a path and its verdict on one session.
type EvaluatedPath struct {
	*TablePath             // as before the verdict
	Verdict    bgp.Verdict // accepted or not, by which rule, and the route as it is afterwards
}

// ReceivedFrom returns all paths that a peer has announced, also rejected ones, sorted by prefix. It reads all routes
// of the peer; the rules are evaluated as the sequence advances.
func (s *Speaker) ReceivedFrom(peer netip.Addr) (iter.Seq[EvaluatedPath], error) {
	run, rules, session, err := s.policyFor(peer)
	if err != nil {
		return nil, err
	}
	var list []*TablePath
	err = run.receivedPaths(session.Address, nil, func(t *TablePath) { list = append(list, t) })
	sortPaths(list)
	return func(yield func(EvaluatedPath) bool) {
		for _, t := range list {
			t.Peer = session.Address // which routes of a peer do not name
			c := run.candidate(rules.desired, t)
			if c.Source == bgp.SourceExternal {
				c.LocalPref = bgp.DefaultLocalPref // the one of another AS is dropped
			}
			if !yield(EvaluatedPath{t, importVerdict(rules.desired, session, t, c)}) {
				return
			}
		}
	}, err
}

// AdvertisedTo returns what a peer was sent of each prefix: the paths that it has from us, with the attributes with
// which they were sent, and the best path of each prefix that it was not sent, with the reason. Sorted by prefix. It
// reads all routes; the rules are evaluated as the sequence advances. Of a reflector's clients, which have very many,
// only the prefixes are recorded, by GoBGP.
func (s *Speaker) AdvertisedTo(peer netip.Addr) (iter.Seq[EvaluatedPath], error) {
	run, rules, session, err := s.policyFor(peer)
	if err != nil {
		return nil, err
	}
	sent, recorded, err := run.sentTo(session)
	if err != nil {
		return nil, err
	}
	all, err := s.Table(gobgppolicy.PlainAddr(session.Address).Is6())
	if err != nil {
		return nil, err
	}
	list := slices.CompactFunc(all, func(a, b *TablePath) bool { return a.Prefix == b.Prefix }) // the best of each
	gone := maps.Clone(sent)
	for _, t := range list {
		delete(gone, t.Prefix)
	}
	for _, paths := range gone {
		list = append(list, paths[0])
	}
	sortPaths(list)
	return func(yield func(EvaluatedPath) bool) {
		for _, t := range list {
			paths, v := sent[t.Prefix], bgp.Verdict{}
			if gone[t.Prefix] != nil {
				v.Accept, v.Rule = true, "was sent; the route is gone meanwhile, and its withdrawal is on its way"
			} else {
				v = run.sentVerdict(rules.desired, session, t, paths)
			}
			if !recorded || len(paths) == 0 {
				if !yield(EvaluatedPath{t, v}) {
					return
				}
				continue
			}
			for _, p := range paths {
				if !yield(EvaluatedPath{p, asSent(v, p)}) {
					return
				}
			}
		}
	}, nil
}

// sentVerdict is the verdict on the best path of a prefix, of which a peer was sent paths, or none. These get its
// source.
func (r *speakerRun) sentVerdict(d bgp.Desired, s bgp.Session, best *TablePath, sent []*TablePath) bgp.Verdict {
	v := exportVerdict(d, s, r.anyCandidate(d, best))
	switch {
	case v.Accept && len(sent) == 0:
		v.Accept, v.Rule = false, keptBack(s, best)
	case !v.Accept && len(sent) > 0:
		v.Accept, v.Rule = true, "is sent for now, until this takes effect: "+v.Rule
	}
	for _, p := range sent {
		p.Peer, p.Best = best.Peer, best.Best
	}
	return v
}

func (s *Speaker) policyFor(peer netip.Addr) (*speakerRun, *policyInForce, bgp.Session, error) {
	run := s.current()
	if run == nil || run.inForce.Load() == nil {
		return nil, nil, bgp.Session{}, errors.New("the BGP speaker is not running yet")
	}
	rules := run.inForce.Load()
	for _, session := range rules.desired.Sessions {
		if session.Address.Unmap() == peer.Unmap() {
			return run, rules, session, nil
		}
	}
	return nil, nil, bgp.Session{}, fmt.Errorf("there is no session with %s", peer)
}

// receivedPaths calls f with all paths that a peer has sent for some prefixes, or for all if some is empty.
func (r *speakerRun) receivedPaths(peer netip.Addr, some []netip.Prefix, f func(*TablePath)) error {
	return r.paths(api.TableType_TABLE_TYPE_ADJ_IN, peer, some, f)
}

// paths calls f with the paths that a peer has sent, or is sent.
func (r *speakerRun) paths(table api.TableType, peer netip.Addr, some []netip.Prefix, f func(*TablePath)) error {
	req := apiutil.ListPathRequest{TableType: table, Name: peer.Unmap().String(), Family: gobgp.RF_IPv4_UC}
	if gobgppolicy.PlainAddr(peer).Is6() {
		req.Family = gobgp.RF_IPv6_UC
	}
	for _, p := range some {
		req.Prefixes = append(req.Prefixes, &apiutil.LookupPrefix{Prefix: p.String(),
			LookupOption: apiutil.LOOKUP_EXACT})
	}
	err := r.listPath(req, func(_ gobgp.NLRI, paths []*apiutil.Path) {
		for _, p := range paths {
			if t := tablePath(p); t != nil {
				f(t)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("routes of peer %s: %w", peer, err)
	}
	return nil
}

// importVerdict is the decision of the policy about a path of a peer, with GoBGP's checks before the policy.
func importVerdict(d bgp.Desired, s bgp.Session, t *TablePath, c bgp.Candidate) bgp.Verdict {
	own := 0
	for _, as := range t.ASPath {
		if as == s.LocalAS {
			own++
		}
	}
	switch {
	case own > int(s.AllowOwnAS):
		return bgp.Verdict{Route: c, Rule: fmt.Sprintf("the AS path holds our own AS %d (RFC 4271 section 9.1.2)",
			s.LocalAS)}
	case t.OriginatorID == d.Global.RouterID && t.OriginatorID.IsValid():
		return bgp.Verdict{Route: c, Rule: "the route comes from this node: its ORIGINATOR_ID is ours (RFC " +
			"4456 section 8)"}
	}
	v := d.Import(s, c)
	if s.IsDrained() || s.PeerAS != s.LocalAS &&
		slices.Contains(c.Communities, gobgppolicy.GracefulShutdown) {
		v.Route.LocalPref = gobgppolicy.LowestLocalPref
	}
	return v
}

// exportVerdict is the decision of the policy about a route towards a peer.
func exportVerdict(d bgp.Desired, s bgp.Session, c bgp.Candidate) bgp.Verdict {
	v := d.Export(s, c)
	switch {
	case d.Drain == bgp.DrainWithdrawn:
		v.Accept, v.Rule = false, "the node is drained: it announces nothing"
	case d.Drain == bgp.DrainDraining, s.IsDrained():
		v.Route.LocalPref = gobgppolicy.LowestLocalPref
		if c.Source == bgp.SourceOwn && d.Drain == bgp.DrainDraining {
			v.Route.LocalPref = 0
		}
		if !slices.Contains(v.Route.Communities, gobgppolicy.GracefulShutdown) {
			v.Route.Communities = append(slices.Clone(v.Route.Communities), gobgppolicy.GracefulShutdown)
		}
	}
	return v
}

// anyCandidate converts a route of our table, ours or learned, for filters.
func (r *speakerRun) anyCandidate(d bgp.Desired, t *TablePath) bgp.Candidate {
	if t.Peer.IsValid() {
		return r.candidate(d, t)
	}
	for _, o := range d.Originated {
		if o.Prefix.Masked() == t.Prefix {
			return o.Candidate()
		}
	}
	return bgp.Candidate{Prefix: t.Prefix, Source: bgp.SourceOwn}
}

// forbidden reports whether its communities keep a learned route from a peer (RFC 1997).
func forbidden(s bgp.Session, communities []uint32) bool {
	return slices.Contains(communities, gobgppolicy.NoAdvertise) ||
		s.PeerAS != s.LocalAS && slices.Contains(communities, gobgppolicy.NoExport)
}

// keptBack returns why BGP does not send a route that every rule accepts.
func keptBack(s bgp.Session, t *TablePath) string {
	switch {
	case t.Peer.Unmap() == s.Address.Unmap():
		return "it was learned from this peer"
	case slices.Contains(t.ASPath, s.PeerAS):
		return fmt.Sprintf("its AS path holds the AS of the peer, %d", s.PeerAS)
	case forbidden(s, t.Communities):
		return "its communities forbid it (RFC 1997)"
	case s.PeerAS == s.LocalAS && !s.ReflectorClient:
		return "it was learned from an internal peer, and this node does not reflect to this one (RFC 4456)"
	}
	return "BGP keeps it back: the session is not up, or the route has come from this peer on another way"
}
