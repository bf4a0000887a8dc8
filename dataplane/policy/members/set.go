package members

import (
	"encoding/binary"
	"net/netip"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// Elements are the desired elements of a set of the kernel.
type Elements interface {
	Add(ruleset.Element)
	Remove(ruleset.Element)
	Has(ruleset.Element) bool // added and not removed
}

// Set keeps the contributions to one set of the kernel and computes its elements. Not safe for concurrent use.
type Set struct {
	interval bool
	elements Elements
	// Other than interval sets: contributions beyond the first, of the few elements that have any. Elements records the
	// first one.
	more map[ruleset.Element]int32
	// Interval sets: IPv4 and IPv6.
	nets [2]tree
}

// New makes a set without contributions; elements must be empty and have no other writer. An interval set takes
// networks and outputs those that no larger one covers, so that its elements never overlap, and reads only
// Element.Prefix; elements of others are taken as they are. Within one change, losses come first.
func New(interval bool, elements Elements) *Set { return &Set{interval: interval, elements: elements} }

// Interval reports whether it is an interval set.
func (s *Set) Interval() bool { return s.interval }

// Add enters a contribution; several of the same count.
func (s *Set) Add(e ruleset.Element) {
	if s.interval {
		s.addNetwork(e.Prefix)
		return
	}
	if !s.elements.Has(e) {
		s.elements.Add(e)
		return
	}
	if s.more == nil {
		s.more = map[ruleset.Element]int32{}
	}
	s.more[e]++
}

// Remove withdraws one contribution; nothing happens if there is none.
func (s *Set) Remove(e ruleset.Element) {
	if s.interval {
		s.removeNetwork(e.Prefix)
		return
	}
	switch n := s.more[e]; {
	case n > 1:
		s.more[e] = n - 1
	case n == 1:
		if delete(s.more, e); len(s.more) == 0 {
			s.more = nil
		}
	case s.elements.Has(e):
		s.elements.Remove(e)
	}
}

// addNetwork makes way for a network that nothing covers and that is new.
func (s *Set) addNetwork(p netip.Prefix) {
	i, n, ok := pick(p)
	if !ok {
		return
	}
	at, visible := s.nets[i].insert(n)
	if !visible {
		return
	}
	s.nets[i].below(at, func(inside network) { s.elements.Remove(element(i, inside)) })
	s.elements.Add(element(i, n))
}

// removeNetwork uncovers the networks below a visible network, the last of its kind.
func (s *Set) removeNetwork(p netip.Prefix) {
	i, n, ok := pick(p)
	if !ok {
		return
	}
	s.nets[i].delete(n, func() { s.elements.Remove(element(i, n)) },
		func(inside network) { s.elements.Add(element(i, inside)) })
}

// pick returns the tree of a network and its form there. Invalid networks are left out.
func pick(p netip.Prefix) (family int, n network, ok bool) {
	a := p.Addr()
	if !p.IsValid() {
		return 0, network{}, false
	}
	if a.Is4() {
		b := a.As4()
		return 0, network{address{uint64(binary.BigEndian.Uint32(b[:])) << 32, 0}, uint8(p.Bits())}.masked(), true
	}
	b := a.As16()
	return 1, network{address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])},
		uint8(p.Bits())}.masked(), true
}

func element(family int, n network) ruleset.Element {
	if family == 0 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(n.hi>>32))
		return ruleset.Element{Prefix: netip.PrefixFrom(netip.AddrFrom4(b), int(n.length))}
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return ruleset.Element{Prefix: netip.PrefixFrom(netip.AddrFrom16(b), int(n.length))}
}
