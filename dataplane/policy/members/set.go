package members

import (
	"github.com/manxnet/manx/dataplane/ruleset"
)

// Set keeps the contributions to one set of the kernel and tells which elements that must have. Not safe for concurrent use.
type Set struct {
	interval    bool
	counts      map[ruleset.Element]int32
	nets        tree // interval sets only
	add, remove func(ruleset.Element)
}

// New makes an empty set. An interval set takes networks, and its elements never overlap; elements of others are taken as
// they are. add and remove are told what the kernel's set must gain and lose, of one change first the losses.
func New(interval bool, add, remove func(ruleset.Element)) *Set {
	return &Set{interval: interval, counts: map[ruleset.Element]int32{}, add: add, remove: remove}
}

// Interval tells whether it is an interval set.
func (s *Set) Interval() bool { return s.interval }

// Len is the number of different contributions.
func (s *Set) Len() int { return len(s.counts) }

// Add enters a contribution; several of the same count.
func (s *Set) Add(e ruleset.Element) {
	s.counts[e]++
	if s.counts[e] > 1 {
		return
	}
	if !s.interval {
		s.add(e)
		return
	}
	covered, below := s.nets.insert(e.Prefix)
	if covered {
		return
	}
	for _, p := range below {
		s.remove(ruleset.Element{Prefix: p})
	}
	s.add(e)
}

// Remove withdraws one contribution.
func (s *Set) Remove(e ruleset.Element) {
	switch n := s.counts[e]; {
	case n == 0:
		return
	case n > 1:
		s.counts[e] = n - 1
		return
	}
	delete(s.counts, e)
	if !s.interval {
		s.remove(e)
		return
	}
	covered, below := s.nets.delete(e.Prefix)
	if covered {
		return
	}
	s.remove(e)
	for _, p := range below {
		s.add(ruleset.Element{Prefix: p})
	}
}
