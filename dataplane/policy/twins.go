package policy

import (
	"hash/maphash"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// twinSize is the size from which a set of a namespace's policy is in the table only once for all selectors that have
// the same members. Smaller sets are cheap, and many of them differ as soon as one pod comes.
const twinSize = 64

// hash is the part of a contribution in memberSet.sum. Its seed is secret, so nobody can choose members whose sums are
// the same.
func (c *Calculator) hash(e ruleset.Element) uint64 { return maphash.Comparable(c.seed, e) }

// inTable is the set in the table that has the members of this one.
func (s *memberSet) inTable() *memberSet {
	if s.leader != nil {
		return s.leader
	}
	return s
}

func (s *memberSet) size() int { return s.half[0].size + s.half[1].size }

// list makes a set known to others with the same members.
func (c *Calculator) list(s *memberSet) {
	if s.key.kind == bySelector && s.size() >= c.twinSize && c.twins[s.sum] == nil {
		s.listed = s.sum
		c.twins[s.sum] = s
	}
}

func (c *Calculator) unlist(s *memberSet) {
	if c.twins[s.listed] == s {
		delete(c.twins, s.listed)
	}
}

// follow lets a set that is not in the table be represented by one with the same members, if there is one.
func (c *Calculator) follow(s *memberSet) bool {
	l := c.twins[s.sum]
	if l == nil || l == s || s.key.kind != bySelector || s.size() < c.twinSize || l.size() != s.size() {
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
func (c *Calculator) settleTwins() {
	var moved []*memberSet
	for s := range c.dirty.sets {
		if c.twins[s.listed] == s && s.listed != s.sum {
			c.unlist(s)
			moved = append(moved, s)
		}
	}
	for _, s := range moved {
		c.list(s)
	}
	for s := range c.dirty.sets {
		if l := s.leader; l != nil && l.sum != s.sum {
			c.separate(s)
		}
		for f := range s.followers {
			if f.sum != s.sum {
				c.separate(f)
			}
		}
	}
}

// separate finds another set with the same members for one that follows, or puts it in the table. When the work for
// this step is used up, policies of namespaces lose the set instead, and wait.
func (c *Calculator) separate(s *memberSet) {
	l := s.leader
	s.leader = nil
	delete(l.followers, s)
	if len(l.users)+len(l.followers) == 0 {
		c.dirty.released[l.key] = true
	}
	c.rehome(s)
	switch {
	case c.follow(s):
	case c.allowance <= 0 && s.onlyTenants():
		for u := range s.users {
			c.release(s.key, u)
		}
		c.dropSet(s)
	default:
		c.allowance -= unitsOfSet + unitsOfElement*s.size()
		s.settleKind()
		c.list(s)
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
