package session

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// SetSessions returns exactly the difference between any two lists, at any position and in any order.
func TestSetSessionsReturnsTheDifference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	table := NewTable(Config{Logger: zap.NewNop()})
	var list []bgp.Session
	for step := range 3000 {
		before := byAddress(list)
		list = edited(rnd, list)
		changed, gone := table.SetSessions(list)
		var wantChanged, wantGone []netip.Addr
		for _, s := range list {
			if old, ok := before[s.Address]; !ok || !old.Equal(s) {
				wantChanged = append(wantChanged, s.Address)
			}
			delete(before, s.Address)
		}
		wantGone = slices.SortedFunc(maps.Keys(before), netip.Addr.Compare)
		var got []netip.Addr
		for _, s := range changed {
			got = append(got, s.Address)
		}
		if !slices.Equal(got, wantChanged) || !slices.Equal(gone, wantGone) {
			t.Fatalf("step %d: changed %v, gone %v; want %v, %v", step, got, gone, wantChanged, wantGone)
		}
		held := map[netip.Addr]bgp.Session{}
		for _, st := range table.List() {
			held[st.Session.Address] = table.entries[st.Session.Address].session
		}
		if !maps.EqualFunc(held, byAddress(list), bgp.Session.Equal) {
			t.Fatalf("step %d: the table holds %v, want %v", step, held, list)
		}
	}
}

// A list that its owner changes in place is compared with its content at the last call.
func TestSetSessionsKeepsNoList(t *testing.T) {
	table := NewTable(Config{Logger: zap.NewNop()})
	list := []bgp.Session{{Address: ip("10.0.0.1")}, {Address: ip("10.0.0.2")}}
	table.SetSessions(list)
	list[1].Port = 1179
	if changed, gone := table.SetSessions(list); len(changed) != 1 || changed[0].Port != 1179 || len(gone) != 0 {
		t.Errorf("changed %+v, gone %v", changed, gone)
	}
}

// edited returns a list with up to three changes: added, removed, changed or moved sessions.
func edited(rnd *rand.Rand, list []bgp.Session) []bgp.Session {
	list = slices.Clone(list)
	for range rnd.IntN(4) {
		at := rnd.IntN(len(list) + 1)
		s := bgp.Session{Address: ip(fmt.Sprintf("10.0.0.%d", 1+rnd.IntN(12))), LocalAS: 1 + uint32(rnd.IntN(2)),
			Filters: [][]string{nil, {"a"}, {"a", "b"}}[rnd.IntN(3)]}
		i := slices.IndexFunc(list, func(o bgp.Session) bool { return o.Address == s.Address })
		switch n := rnd.IntN(10); {
		case i < 0:
			list = slices.Insert(list, at, s)
		case n < 4:
			list = slices.Delete(list, i, i+1)
		case n < 7:
			list[i] = s
		default:
			rnd.Shuffle(len(list), func(a, b int) { list[a], list[b] = list[b], list[a] })
		}
	}
	return list
}

func byAddress(list []bgp.Session) map[netip.Addr]bgp.Session {
	m := map[netip.Addr]bgp.Session{}
	for _, s := range list {
		m[s.Address] = s
	}
	return m
}
