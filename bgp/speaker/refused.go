package speaker

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/fib"
	"github.com/manxnet/manx/bgp/gobgppolicy"
	"github.com/manxnet/manx/bgp/wire/message"
	"github.com/manxnet/manx/dataplane/locrib"
)

// routeKey identifies a route of a peer.
type routeKey struct {
	prefix netip.Prefix
	id     uint32 // RFC 7911
}

type refusedRoute struct {
	rule    *bgp.Refusal
	nextHop netip.Addr
}

// note records a route if it is refused.
func (x *received) note(r message.Route, nextHop netip.Addr, announced bool) {
	key := routeKey{r.Prefix, r.ID}
	if x.touched != nil {
		x.touched[key] = true
	}
	x.put(key, nextHop, announced)
}

func (x *received) put(key routeKey, nextHop netip.Addr, announced bool) {
	var rule *bgp.Refusal
	if announced {
		rule = x.rules.List.Find(key.prefix, x.outsider)
	}
	switch {
	case rule != nil && x.refused == nil:
		x.refused = map[routeKey]refusedRoute{key: {rule, nextHop}}
	case rule != nil:
		x.refused[key] = refusedRoute{rule, nextHop}
	case len(x.refused) > 0:
		delete(x.refused, key)
	}
}

// refusedRoutes lists the routes of all peers that refusals keep out, in no order.
func (s *Speaker) refusedRoutes() (list []fib.Rejection) {
	for peer, x := range s.taps.received() {
		x.mu.Lock()
		for key, r := range x.refused {
			list = append(list, fib.Rejection{Prefix: key.prefix, Path: locrib.Path{NextHop: r.nextHop, Peer: peer},
				Class: fib.RejectClass(r.rule.Class), Reason: r.rule.Reason})
		}
		x.mu.Unlock()
	}
	return list
}

// setRefusals passes the rules to the readers of received routes: to the sessions that are new or have changed, and to
// all if the rules have. The function that it returns checks, without waiting, the routes that came before; call it
// after the change of the policy, while GoBGP does not work on the same routes. Single prefixes that are refused no
// more count until then: the policy may refuse a route for one at the last moment.
func (s *Speaker) setRefusals(d bgp.Desired, changed []bgp.Session) (check func()) {
	if !d.Refusals.Equal(s.refusals) {
		changed = d.Sessions
	}
	wide, gone := widened(d.Refusals, s.refusals)
	s.refusals = slices.Clone(d.Refusals)
	var checks []func()
	refusals, final := gobgppolicy.RefusalsBySession(wide), gobgppolicy.RefusalsBySession(d.Refusals)
	for _, session := range changed {
		tap := s.taps.of(session.Address.Unmap())
		if tap == nil {
			continue
		}
		x := &tap.received
		whole, some := x.setRules(refusals(session), session.Outsider)
		if run := s.current(); run != nil && (whole || len(some) > 0) {
			checks = append(checks, func() { s.checkReceived(run, session.Address.Unmap(), x, some) })
		}
	}
	return func() {
		if len(gone) > 0 {
			for _, session := range changed {
				if tap := s.taps.of(session.Address.Unmap()); tap != nil {
					tap.received.forget(gone, final(session))
				}
			}
		}
		for _, l := range checks {
			go l()
		}
	}
}

// widened returns the rules with the single prefixes that their like refused before, and those.
func widened(list, before bgp.Refusals) (wide bgp.Refusals, gone []netip.Prefix) {
	wide = list
	for _, was := range before {
		i := slices.IndexFunc(wide, func(r bgp.Refusal) bool {
			return r.Class == was.Class && r.Match == was.Match && r.Outsiders == was.Outsiders
		})
		if i < 0 {
			continue
		}
		more := slices.DeleteFunc(slices.Clone(was.Also),
			func(p netip.Prefix) bool { return slices.Contains(wide[i].Also, p) })
		if len(more) > 0 {
			wide, gone = slices.Clone(wide), append(gone, more...)
			wide[i].Also = slices.SortedFunc(slices.Values(slices.Concat(wide[i].Also, more)), netip.Prefix.Compare)
		}
	}
	return wide, gone
}

// forget sets the rules, which lack some single prefixes, and evaluates them for the refused routes for those.
func (x *received) forget(gone []netip.Prefix, rules gobgppolicy.SessionRefusals) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rules = rules
	for key, r := range x.refused {
		if slices.Contains(gone, key.prefix) {
			x.put(key, r.nextHop, true)
		}
	}
}

// learned notes a route that GoBGP has in its table, if it is refused now.
func (x *received) learned(t *TablePath) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.put(routeKey{t.Prefix.Masked(), t.PathID}, t.NextHop, true)
}

// setRules returns whether all routes have to be looked at again, or else which prefixes.
func (x *received) setRules(rules gobgppolicy.SessionRefusals, outsider bool) (whole bool, some []netip.Prefix) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.rules
	x.rules, x.outsider = rules, outsider
	if before.Text != rules.Text {
		return x.up, nil
	}
	if !x.up {
		return false, nil
	}
	for i, r := range rules.List {
		some = append(some, difference(before.List[i].Except, r.Except)...)
	}
	return false, some
}

// difference lists the elements that are in one of two sorted lists only.
func difference(a, b []netip.Prefix) (list []netip.Prefix) {
	if slices.Equal(a, b) {
		return nil
	}
	in := make(map[netip.Prefix]int, len(a)+len(b))
	for _, p := range a {
		in[p]++
	}
	for _, p := range b {
		in[p]--
	}
	for p, n := range in {
		if n != 0 {
			list = append(list, p)
		}
	}
	return list
}

// checkReceived evaluates the rules for routes that came before them: some prefixes, or all.
func (s *Speaker) checkReceived(run *speakerRun, peer netip.Addr, x *received, some []netip.Prefix) {
	x.reading.Lock()
	defer x.reading.Unlock()
	x.mu.Lock()
	session := x.session
	x.touched = map[routeKey]bool{}
	if len(some) == 0 {
		x.refused = nil
	}
	x.mu.Unlock()
	var there []*TablePath
	// a session that is gone has none
	_ = run.receivedPaths(peer, some, func(t *TablePath) { there = append(there, t) })
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.session != session {
		return
	}
	for _, t := range there {
		if key := (routeKey{t.Prefix, t.PathID}); !x.touched[key] {
			x.put(key, t.NextHop, true)
		}
	}
	x.touched = nil
}

// refuses reports whether a route for exactly this prefix is refused.
func (x *received) refuses(p netip.Prefix) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key := range x.refused {
		if key.prefix == p {
			return true
		}
	}
	return false
}
