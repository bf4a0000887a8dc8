package ruleset

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// elements is the content of a set. There may be very many, so they are kept packed and without pointers: an IPv4
// element costs a third of an Element, and the garbage collector does not scan them.
type elements interface {
	normal(Element) (e Element, fits bool) // without irrelevant fields, so that equal members are equal elements
	add(Element) bool                      // whether it is new
	remove(Element) bool                   // whether it was there
	has(Element) bool                      // the very element
	len() int
	all(yield func(Element) bool)
}

func newElements(s Set) elements {
	switch s.Type {
	case Ports:
		return &portRanges{}
	case Addresses4, Endpoints4:
		return newPacked(s, 4, pack4, unpack4)
	default:
		return newPacked(s, 16, pack6, unpack6)
	}
}

// packed is a set of addresses or endpoints. Elements of the other family cannot be in it and are left out.
type packed[K comparable] struct {
	keys map[K]struct{}
	// lengths counts the elements by prefix length if there may be networks. As elements do not overlap, asking for
	// each length that occurs finds the one that an address is in.
	lengths   []int32
	endpoints bool
	size      int // of an address, in bytes
	pack      func(Element) K
	unpack    func(K) Element
}

func newPacked[K comparable](s Set, size int, pack func(Element) K, unpack func(K) Element) *packed[K] {
	p := &packed[K]{keys: map[K]struct{}{}, endpoints: s.Type == Endpoints4 || s.Type == Endpoints6, size: size,
		pack: pack, unpack: unpack}
	if s.Interval {
		p.lengths = make([]int32, size*8+1)
	}
	return p
}

func (p *packed[K]) normal(e Element) (Element, bool) {
	e.High = 0
	if !p.endpoints {
		e.Protocol, e.Low = 0, 0
	}
	e.Prefix = e.Prefix.Masked()
	return e, e.Prefix.IsValid() && e.Prefix.Addr().BitLen() == p.size*8
}

func (p *packed[K]) add(e Element) bool {
	e, ok := p.normal(e)
	if !ok {
		return false
	}
	before := len(p.keys)
	p.keys[p.pack(e)] = struct{}{}
	if len(p.keys) == before {
		return false
	}
	p.count(e, 1)
	return true
}

func (p *packed[K]) remove(e Element) bool {
	e, ok := p.normal(e)
	before := len(p.keys)
	if ok {
		delete(p.keys, p.pack(e))
	}
	if len(p.keys) == before {
		return false
	}
	p.count(e, -1)
	return true
}

func (p *packed[K]) count(e Element, n int32) {
	if p.lengths != nil {
		p.lengths[e.Prefix.Bits()] += n
	}
}

func (p *packed[K]) has(e Element) bool {
	e, ok := p.normal(e)
	return ok && p.holds(e)
}

func (p *packed[K]) holds(e Element) bool {
	_, ok := p.keys[p.pack(e)]
	return ok
}

// covers reports whether an address is in the set, as an element or in a network.
func (p *packed[K]) covers(a netip.Addr) bool {
	if a.BitLen() != p.size*8 {
		return false
	}
	if p.lengths == nil {
		return p.holds(Element{Prefix: netip.PrefixFrom(a, a.BitLen())})
	}
	for bits, n := range p.lengths {
		if n > 0 && p.holds(Element{Prefix: netip.PrefixFrom(a, bits).Masked()}) {
			return true
		}
	}
	return false
}

func (p *packed[K]) len() int { return len(p.keys) }

func (p *packed[K]) all(yield func(Element) bool) {
	for k := range p.keys {
		if !yield(p.unpack(k)) {
			return
		}
	}
}

// pack4 has the address in bits 63-32, then prefix length, protocol and port.
func pack4(e Element) uint64 {
	a := e.Prefix.Addr().As4()
	return uint64(binary.BigEndian.Uint32(a[:]))<<32 | uint64(e.Prefix.Bits())<<24 | uint64(e.Protocol)<<16 | uint64(
		e.Low)
}

func unpack4(k uint64) Element {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(k>>32))
	return Element{Prefix: netip.PrefixFrom(netip.AddrFrom4(a), int(uint8(k>>24))), Protocol: uint8(k >> 16),
		Low: uint16(k)}
}

type key6 struct {
	address        [16]byte
	bits, protocol uint8
	port           uint16
}

func pack6(e Element) key6 {
	return key6{address: e.Prefix.Addr().As16(), bits: uint8(e.Prefix.Bits()), protocol: e.Protocol, port: e.Low}
}

func unpack6(k key6) Element {
	return Element{Prefix: netip.PrefixFrom(netip.AddrFrom16(k.address), int(k.bits)), Protocol: k.protocol,
		Low: k.port}
}

// portRanges is a set of ports: first<<16|last in order. There are few of them.
type portRanges struct{ list []uint32 }

func (p *portRanges) normal(e Element) (Element, bool) {
	return Element{Low: e.Low, High: max(e.Low, e.High)}, true
}

func packPorts(e Element) uint32 { return uint32(e.Low)<<16 | uint32(max(e.Low, e.High)) }

func (p *portRanges) add(e Element) bool {
	i, found := slices.BinarySearch(p.list, packPorts(e))
	if !found {
		p.list = slices.Insert(p.list, i, packPorts(e))
	}
	return !found
}

func (p *portRanges) remove(e Element) bool {
	i, found := slices.BinarySearch(p.list, packPorts(e))
	if found {
		p.list = slices.Delete(p.list, i, i+1)
	}
	return found
}

func (p *portRanges) has(e Element) bool {
	_, found := slices.BinarySearch(p.list, packPorts(e))
	return found
}

// covers reports whether a port is in one of the ranges: in the last one that begins at it or before.
func (p *portRanges) covers(port uint16) bool {
	i, _ := slices.BinarySearch(p.list, uint32(port)<<16|0xffff)
	if i < len(p.list) && p.list[i]>>16 == uint32(port) {
		return true
	}
	return i > 0 && uint16(p.list[i-1]) >= port
}

func (p *portRanges) len() int { return len(p.list) }

func (p *portRanges) all(yield func(Element) bool) {
	for _, k := range p.list {
		if !yield(Element{Low: uint16(k >> 16), High: uint16(k)}) {
			return
		}
	}
}
