package bgp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// settle picks one wish for each address, since a speaker tells its neighbours apart by address alone.
//
// An explicit BGPPeer wins over the mesh, a global one over one for some nodes, then the lowest name. The direction in
// which the BGPPeer reads does not count, so that both ends pick the same one.
func settle(wishes []wish) (sessions []Session, conflicts []Conflict) {
	for i := range wishes {
		wishes[i].text = wishes[i].Address.String()
	}
	slices.SortFunc(wishes, func(a, b wish) int {
		return cmp.Or(
			cmp.Compare(familyOf(a.Address), familyOf(b.Address)),
			cmp.Compare(a.text, b.text),
			cmp.Compare(a.scope, b.scope), cmp.Compare(a.object, b.object), compareBool(a.reverse, b.reverse),
			cmp.Compare(a.PeerAS, b.PeerAS), cmp.Compare(a.Port, b.Port)) // two nodes with one address
	})
	for len(wishes) > 0 {
		n := 1
		for n < len(wishes) && wishes[n].Address == wishes[0].Address {
			n++
		}
		s, c := settleAddress(wishes[:n])
		sessions = append(sessions, s)
		if len(c.Dropped) > 0 {
			conflicts = append(conflicts, c)
		}
		wishes = wishes[n:]
	}
	return sessions, conflicts
}

func settleAddress(wishes []wish) (Session, Conflict) {
	kept := wishes[0]
	s := kept.Session
	s.From = []string{kept.object}
	c := Conflict{Address: s.Address, Kept: kept.object}
	var reasons []string
	for _, w := range wishes[1:] {
		if slices.Contains(s.From, w.object) || slices.Contains(c.Dropped, w.object) {
			continue
		}
		diff := differences(s, w.Session)
		if len(diff) == 0 {
			s.From = append(s.From, w.object)
			s.Via = cmp.Or(s.Via, w.Via)
			continue
		}
		c.Dropped = append(c.Dropped, w.object)
		reasons = append(reasons, fmt.Sprintf("%s wants %s, and %s", w.object, strings.Join(diff, ", "), precedence(kept, w)))
	}
	if len(reasons) > 0 {
		c.Reason = fmt.Sprintf("there can be one session with %s and %s decides what it is; %s", s.Address, c.Kept, strings.Join(reasons, "; "))
	}
	return s, c
}

// precedence says by which rule one wish goes before another.
func precedence(kept, dropped wish) string {
	switch {
	case dropped.scope == scopeMesh && kept.scope != scopeMesh:
		return "a BGPPeer goes before the node-to-node mesh"
	case kept.scope != dropped.scope:
		return "a BGPPeer for all nodes goes before one for some"
	}
	return "the lowest name goes first"
}

// differences says what another wish wants differently. Passwords are compared but not shown. A wish without gateway or
// limit has nothing against those of another.
func differences(have, want Session) []string {
	var diff []string
	add := func(differs bool, format string, args ...any) {
		if differs {
			diff = append(diff, fmt.Sprintf(format, args...))
		}
	}
	add(have.Port != want.Port, "port %d", want.Port)
	add(have.LocalAS != want.LocalAS, "local AS %d", want.LocalAS)
	add(have.PeerAS != want.PeerAS, "peer AS %d", want.PeerAS)
	add(have.Source != want.Source, "another source address")
	add(have.Via.IsValid() && want.Via.IsValid() && have.Via != want.Via, "to be reached by %s", want.Via)
	add(have.Passive != want.Passive, "passive %t", want.Passive)
	add(have.Password != want.Password || have.PasswordFrom != want.PasswordFrom, "another password")
	add(have.TTLSecurity != want.TTLSecurity, "TTL security %d", want.TTLSecurity)
	add(have.KeepaliveSeconds != want.KeepaliveSeconds, "keepalive time %ds", want.KeepaliveSeconds)
	add(have.RestartSeconds != want.RestartSeconds, "restart time %ds", want.RestartSeconds)
	add(have.AllowOwnAS != want.AllowOwnAS, "own AS allowed %d times", want.AllowOwnAS)
	add(have.BFD != want.BFD, "other BFD settings")
	add(have.NextHop != want.NextHop, "next hop mode %s", want.NextHop)
	add(!slices.Equal(have.Filters, want.Filters), "filters [%s]", strings.Join(want.Filters, " "))
	add(want.MaxPrefixes != 0 && have.MaxPrefixes != want.MaxPrefixes, "at most %d prefixes", want.MaxPrefixes)
	return diff
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
