package members

import (
	"encoding/binary"
	"net/netip"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// Set keeps the contributions to one set of the kernel and tells which elements that must have. Not safe for concurrent use;
// the callbacks must not call it.
type Set struct {
	interval    bool
	add, remove func(ruleset.Element)
	// Other than interval sets: contributions of each element.
	small map[uint64]int32 // IPv4, with protocol and port
	large map[packed]int32
	// Interval sets: IPv4 and IPv6.
	nets [2]tree
}

// New makes an empty set. An interval set takes networks and gives away those that no larger one covers, so that its elements
// never overlap, and looks at nothing but Element.Prefix; elements of others are taken as they are. add and remove are told
// what the kernel's set must gain and lose, of one change first the losses.
func New(interval bool, add, remove func(ruleset.Element)) *Set {
	return &Set{interval: interval, add: add, remove: remove}
}

// Interval tells whether it is an interval set.
func (s *Set) Interval() bool { return s.interval }

// Len is the number of different contributions.
func (s *Set) Len() int { return len(s.small) + len(s.large) + s.nets[0].networks + s.nets[1].networks }

// Add enters a contribution; several of the same count.
func (s *Set) Add(e ruleset.Element) {
	if s.interval {
		s.addNetwork(e.Prefix)
		return
	}
	if k, ok := pack4(e); ok {
		if increase(&s.small, k) {
			s.add(e)
		}
	} else if increase(&s.large, pack(e)) {
		s.add(e)
	}
}

// Remove withdraws one contribution; nothing happens if there is none.
func (s *Set) Remove(e ruleset.Element) {
	if s.interval {
		s.removeNetwork(e.Prefix)
		return
	}
	if k, ok := pack4(e); ok {
		if decrease(s.small, k) {
			s.remove(e)
		}
	} else if decrease(s.large, pack(e)) {
		s.remove(e)
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
	s.nets[i].below(at, func(inside network) { s.remove(element(i, inside)) })
	s.add(element(i, n))
}

// removeNetwork uncovers what a network covered that was the last of its kind and visible.
func (s *Set) removeNetwork(p netip.Prefix) {
	i, n, ok := pick(p)
	if !ok {
		return
	}
	s.nets[i].delete(n, func() { s.remove(element(i, n)) }, func(inside network) { s.add(element(i, inside)) })
}

// pick finds the tree of a network and what it is called there. What is no network is left out.
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
	return 1, network{address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}, uint8(p.Bits())}.masked(), true
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

// packed is an Element without pointers, so that the garbage collector has nothing to look into.
type packed struct {
	address        [16]byte
	bits, protocol uint8 // bits: the length; 129 more for IPv4, 255 without an address
	low, high      uint16
}

func pack(e ruleset.Element) packed {
	k := packed{bits: 255, protocol: e.Protocol, low: e.Low, high: e.High}
	switch a := e.Prefix.Addr(); {
	case !e.Prefix.IsValid():
	case a.Is4():
		k.address, k.bits = a.As16(), uint8(129+e.Prefix.Bits())
	default:
		k.address, k.bits = a.As16(), uint8(e.Prefix.Bits())
	}
	return k
}

// pack4 puts an IPv4 element into 64 bits: address, length, protocol, port. It reports whether that was possible.
func pack4(e ruleset.Element) (uint64, bool) {
	if !e.Prefix.IsValid() || !e.Prefix.Addr().Is4() || e.High != 0 {
		return 0, false
	}
	a := e.Prefix.Addr().As4()
	return uint64(binary.BigEndian.Uint32(a[:]))<<32 | uint64(e.Prefix.Bits())<<24 | uint64(e.Protocol)<<16 | uint64(e.Low), true
}

// increase counts one more and reports whether it is the first.
func increase[K comparable](counts *map[K]int32, k K) bool {
	if *counts == nil {
		*counts = map[K]int32{}
	}
	(*counts)[k]++
	return (*counts)[k] == 1
}

// decrease counts one less and reports whether it was the last.
func decrease[K comparable](counts map[K]int32, k K) bool {
	n := counts[k]
	if n > 1 {
		counts[k] = n - 1
		return false
	}
	delete(counts, k)
	return n == 1
}
