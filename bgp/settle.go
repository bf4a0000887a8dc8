package bgp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// settle picks one request for each address, because a speaker distinguishes its neighbours by address alone.
//
// The strongest group wins; within it, the lowest name. A request about this node therefore wins over the reverse of a
// request about the peer, and the two ends may be configured differently.
func settle(all []request) (sessions []Session, conflicts []Conflict) {
	requests := make([]*request, len(all)) // which are large
	for i := range all {
		all[i].text = all[i].Address.String()
		requests[i] = &all[i]
	}
	sessions = slices.Grow(sessions, len(all))
	slices.SortFunc(requests, func(a, b *request) int {
		if a.Address != b.Address {
			return cmp.Or(cmp.Compare(familyOf(a.Address), familyOf(b.Address)), cmp.Compare(a.text, b.text))
		}
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.object, b.object),
			cmp.Compare(a.PeerAS, b.PeerAS), cmp.Compare(a.Port, b.Port)) // two nodes with one address
	})
	for len(requests) > 0 {
		n := 1
		for n < len(requests) && requests[n].Address == requests[0].Address {
			n++
		}
		sessions = append(sessions, requests[0].Session)
		last := &sessions[len(sessions)-1]
		last.From = only(requests[0].object, sessions)
		if c := settleAddress(requests[:n], last); len(c.Dropped) > 0 {
			conflicts = append(conflicts, c)
		}
		requests = requests[n:]
	}
	return sessions, conflicts
}

// only returns a list of one name: that of the session before the last, if it is the same.
func only(object string, sessions []Session) []string {
	if n := len(sessions); n > 1 && len(sessions[n-2].From) == 1 && sessions[n-2].From[0] == object {
		return sessions[n-2].From
	}
	return []string{object}
}

// settleAddress adds to the session of the first of the requests for an address the others that are content with it.
// It returns the conflict with the rest; nothing is dropped if there is none.
func settleAddress(requests []*request, s *Session) Conflict {
	kept := requests[0]
	c := Conflict{Address: s.Address, Kept: kept.object}
	var reasons []string
	for _, w := range requests[1:] {
		if slices.Contains(s.From, w.object) || slices.Contains(c.Dropped, w.object) {
			continue
		}
		diff := differences(s, &w.Session, givesWay(kept, w))
		if len(diff) == 0 {
			s.From = append(s.From, w.object)
			s.Via = cmp.Or(s.Via, w.Via)
			continue
		}
		c.Dropped = append(c.Dropped, w.object)
		reasons = append(reasons, fmt.Sprintf("%s wants %s, and %s", w.object, strings.Join(diff, ", "),
			precedence(kept, w)))
	}
	if len(reasons) > 0 {
		c.Reason = fmt.Sprintf("there can be one session with %s and %s decides what it is; %s", s.Address, c.Kept,
			strings.Join(reasons, "; "))
	}
	return c
}

// givesWay reports whether a request is the reverse of a BGPPeer and this node has settings of its own for the peer:
// then it is content with a session that can come up.
func givesWay(kept, w *request) bool { return w.group == groupReverse && kept.group < groupReverse }

// precedence names the rule by which one request goes before another.
func precedence(kept, dropped *request) string {
	switch {
	case kept.group == dropped.group:
		return "the lowest name goes first"
	case dropped.group == groupMesh:
		return "a BGPPeer goes before the node-to-node mesh"
	case dropped.group == groupReverse:
		return "a BGPPeer that applies to this node goes before the reverse of one that applies to the peer"
	}
	return "a BGPPeer for all nodes goes before one for some"
}

// differences lists the settings in which two requests differ; with compatible set, only those that both ends must
// share for a session to come up. Passwords are compared but not shown. A request without gateway or limit accepts
// those of another.
func differences(have, want *Session, compatible bool) []string {
	var diff []string
	both := func(differs bool, format string, args ...any) {
		if differs {
			diff = append(diff, fmt.Sprintf(format, args...))
		}
	}
	own := func(differs bool, format string, args ...any) { both(differs && !compatible, format, args...) }
	own(have.Port != want.Port, "port %d", want.Port)
	both(have.LocalAS != want.LocalAS, "local AS %d", want.LocalAS)
	both(have.PeerAS != want.PeerAS, "peer AS %d", want.PeerAS)
	own(have.Source != want.Source, "another source address")
	own(have.Via.IsValid() && want.Via.IsValid() && have.Via != want.Via, "to be reached by %s", want.Via)
	own(have.Passive != want.Passive, "passive %t", want.Passive)
	both(have.Password != want.Password || have.PasswordFrom != want.PasswordFrom, "another password")
	both(have.TTLSecurity != want.TTLSecurity, "TTL security %d", want.TTLSecurity)
	own(have.KeepaliveSeconds != want.KeepaliveSeconds, "keepalive time %ds", want.KeepaliveSeconds)
	own(have.RestartSeconds != want.RestartSeconds, "restart time %ds", want.RestartSeconds)
	own(have.AllowOwnAS != want.AllowOwnAS, "own AS allowed %d times", want.AllowOwnAS)
	sameBFD := have.BFD == want.BFD || compatible && have.BFD.Enabled == want.BFD.Enabled &&
		have.BFD.Multihop == want.BFD.Multihop
	both(!sameBFD, "other BFD settings")
	own(have.NextHop != want.NextHop, "next hop mode %s", want.NextHop)
	own(!slices.Equal(have.Filters, want.Filters), "filters [%s]", strings.Join(want.Filters, " "))
	own(want.MaxPrefixes != 0 && have.MaxPrefixes != want.MaxPrefixes, "at most %d prefixes", want.MaxPrefixes)
	return diff
}
