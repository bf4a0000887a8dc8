package policy

import (
	"hash/maphash"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// twinSize is the size from which a set of a namespace's policy is in the table only once for all selectors that have
// the same members. Smaller sets are cheap, and many of them differ as soon as one pod comes.
const twinSize = 64

// twins are the large sets in the table, by the sum of their contributions.
type twins struct {
	of    map[uint64]*memberSet
	least int // size of a set
	seed  maphash.Seed
}

// hash is the part of a contribution in memberSet.sum. Its seed is secret, so nobody can choose members whose sums are
// the same.
func (t *twins) hash(e ruleset.Element) uint64 { return maphash.Comparable(t.seed, e) }

// inTable is the set in the table that has the members of this one.
func (s *memberSet) inTable() *memberSet {
	if s.leader != nil {
		return s.leader
	}
	return s
}

func (s *memberSet) size() int { return s.half[0].size + s.half[1].size }

// list makes a set known to others with the same members.
func (t *twins) list(s *memberSet) {
	if s.key.kind == bySelector && s.size() >= t.least && t.of[s.sum] == nil {
		s.listed = s.sum
		t.of[s.sum] = s
	}
}

func (t *twins) unlist(s *memberSet) {
	if t.of[s.listed] == s {
		delete(t.of, s.listed)
	}
}

// follow lets a set that is not in the table be represented by one with the same members, if there is one.
func (t *twins) follow(s *memberSet) bool {
	l := t.of[s.sum]
	if l == nil || l == s || s.key.kind != bySelector || s.size() < t.least || l.size() != s.size() {
		return false
	}
	if l.followers == nil {
		l.followers = map[*memberSet]bool{}
	}
	l.followers[s] = true
	s.leader = l
	return true
}

// settleTwins separates the sets whose members are no longer the same.
func (m *memberSets) settleTwins() {
	var moved []*memberSet
	for s := range m.dirty {
		if m.twins.of[s.listed] == s && s.listed != s.sum {
			m.twins.unlist(s)
			moved = append(moved, s)
		}
	}
	for _, s := range moved {
		m.twins.list(s)
	}
	for s := range m.dirty {
		if l := s.leader; l != nil && l.sum != s.sum {
			m.separate(s)
		}
		for f := range s.followers {
			if f.sum != s.sum {
				m.separate(f)
			}
		}
	}
}

// separate finds another set with the same members for one that follows, or puts it in the table. When the work for
// this step is used up, policies of namespaces lose the set instead, and wait.
func (m *memberSets) separate(s *memberSet) {
	l := s.leader
	s.leader = nil
	delete(l.followers, s)
	if len(l.users)+len(l.followers) == 0 {
		m.released.add(l.key)
	}
	m.rehome(s)
	switch {
	case m.twins.follow(s):
	case m.allowance <= 0 && s.onlyTenants():
		for u := range s.users {
			m.release(s.key, u)
		}
		m.dropSet(s)
	default:
		m.allowance -= unitsOfSet + unitsOfElement*s.size()
		s.settleKind()
		m.twins.list(s)
	}
}

func (s *memberSet) onlyTenants() bool {
	for u := range s.users {
		if u.cost == nil {
			return false
		}
	}
	return true
}
