package nftables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// readSets reads sets and maps with their elements. A set that Manx would never make has no type, so that it differs
// from every desired one; those that belong to another program's rule go with that rule.
func (t *tableReader) readSets(a *ruleset.Actual) error {
	counts := map[string]uint32{}
	err := t.dump(unix.NFT_MSG_GETSET, func() { clear(a.Sets); clear(a.Maps); clear(counts) }, ofTable,
		func(attrs []byte) {
			l := attrList(attrs)
			name, flags := text(l[unix.NFTA_SET_NAME]), l.number(unix.NFTA_SET_FLAGS)
			if text(l[unix.NFTA_SET_TABLE]) != TableName || flags&unix.NFT_SET_ANONYMOUS != 0 {
				return
			}
			counts[name] = l.number(setCount)
			if isVerdictMap(l) {
				a.Maps[name] = map[string]ruleset.Verdict{}
				return
			}
			s := setOf(l)
			s.Name = name
			a.Sets[name] = ruleset.ActualSet{Set: s}
		})
	if err != nil {
		return err
	}
	for name, s := range a.Sets {
		if s.Type == 0 {
			continue
		}
		s, err := t.readElements(s, int(counts[name]))
		if err != nil {
			return fmt.Errorf("elements of set %s: %w", name, err)
		}
		a.Sets[name] = s
	}
	for name, entries := range a.Maps {
		if err := t.readVerdicts(entries, name, int(counts[name])); err != nil {
			return fmt.Errorf("elements of map %s: %w", name, err)
		}
	}
	return nil
}

func isVerdictMap(l attributes) bool {
	return l.number(unix.NFTA_SET_FLAGS) == unix.NFT_SET_MAP &&
		l.number(unix.NFTA_SET_DATA_TYPE) == unix.NFT_DATA_VERDICT &&
		l.number(unix.NFTA_SET_KEY_TYPE) == nftables.TypeIFName.GetNFTMagic()
}

// setOf returns type and kind of a set; the type is 0 if Manx makes none like that.
func setOf(l attributes) ruleset.Set {
	flags := l.number(unix.NFTA_SET_FLAGS)
	for t := ruleset.Addresses4; t <= ruleset.Endpoints6; t++ {
		fields := keyFields(t)
		magic, size := keyType(fields)
		if l.number(unix.NFTA_SET_KEY_TYPE) != magic || l.number(unix.NFTA_SET_KEY_LEN) != size {
			continue
		}
		switch {
		case flags == 0 && t != ruleset.Ports, flags == setConcat && len(fields) > 1: // nft leaves it out
			return ruleset.Set{Type: t}
		case flags == unix.NFT_SET_INTERVAL && len(fields) == 1:
			return ruleset.Set{Type: t, Interval: true}
		}
	}
	return ruleset.Set{}
}

// kernelElement is one element; key has 16 bytes at most, or the address with protocol and port.
type kernelElement struct {
	key  [24]byte
	end  bool // the range that is open ends before it
	data []byte
}

func (t *tableReader) dumpElements(name string, begin func(), each func(kernelElement)) error {
	about := func(b *netlink.Builder) {
		b.AttrText(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
		b.AttrText(unix.NFTA_SET_ELEM_LIST_SET, name)
	}
	return t.dump(unix.NFT_MSG_GETSETELEM, begin, about, func(attrs []byte) {
		for kind, list := range netlink.Attrs(attrs) {
			if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, item := range netlink.Attrs(list) {
				each(parseElement(item))
			}
		}
	})
}

func parseElement(b []byte) (e kernelElement) {
	for kind, value := range netlink.Attrs(b) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			_, key, _, _ := netlink.NextAttr(value)
			copy(e.key[:], key)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.end = len(value) == 4 && binary.BigEndian.Uint32(value)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_DATA:
			e.data = value
		}
	}
	return e
}

func (t *tableReader) readElements(s ruleset.ActualSet, count int) (_ ruleset.ActualSet, err error) {
	if !interval(s.Set) {
		s.Elements, err = t.readPlain(s, count)
		return s, err
	}
	var all []kernelElement
	err = t.dumpElements(s.Name, func() { all = all[:0] }, func(e kernelElement) {
		e.data = nil
		all = append(all, e)
	})
	if err != nil {
		return s, err
	}
	var ok bool
	if s.Elements, ok = ranges(s.Type, all); !ok {
		s.Type, s.Elements = 0, nil // another program put in a value that is no prefix
	}
	return s, nil
}

// setCount is the attribute with the number of elements, since Linux 6.16.
const setCount = 20

// fewElements come in one part, which is complete.
const fewElements = 100

func (t *tableReader) readPlain(s ruleset.ActualSet, count int) (list []ruleset.Element, err error) {
	err = t.dumpWhole(s.Name, count, func() { list = list[:0] }, func(e kernelElement) {
		list = append(list, plainElement(s.Type, e.key[:]))
	}, func() int {
		if len(list) >= fewElements {
			slices.SortFunc(list, ruleset.CompareElements)
			list = slices.Compact(list)
		}
		return len(list)
	})
	return list, err
}

// dumpWhole reads a hash table; size returns how many different elements have come. While the kernel enlarges one,
// which it does in the background after a commit, it leaves some elements out of a long answer and repeats others,
// silently. So the answer must have as many as the set's count, or as the answer before.
func (t *tableReader) dumpWhole(name string, count int, begin func(), each func(kernelElement), size func() int) error {
	before := -1
	for range readAttempts {
		if err := t.dumpElements(name, begin, each); err != nil {
			return err
		}
		n := size()
		if n == count || n == before || n < fewElements && count == 0 {
			return nil
		}
		before = n
	}
	return fmt.Errorf("the kernel reports another number of them each time: %w", unix.EAGAIN)
}

func plainElement(t ruleset.SetType, key []byte) ruleset.Element {
	size := addressSize(t)
	addr, _ := netip.AddrFromSlice(key[:size])
	e := ruleset.Element{Prefix: netip.PrefixFrom(addr, size*8)}
	if t == ruleset.Endpoints4 || t == ruleset.Endpoints6 {
		e.Protocol, e.Low = key[size], binary.BigEndian.Uint16(key[size+4:])
	}
	return e
}

func addressSize(t ruleset.SetType) int {
	if t == ruleset.Addresses6 || t == ruleset.Endpoints6 {
		return 16
	}
	return 4
}

// ranges puts the ends of ranges together; one without an end goes to the last key. It fails on a range of addresses
// that is no prefix.
func ranges(t ruleset.SetType, all []kernelElement) ([]ruleset.Element, bool) {
	slices.SortFunc(all, func(a, b kernelElement) int {
		if c := bytes.Compare(a.key[:], b.key[:]); c != 0 || a.end == b.end {
			return c
		}
		if a.end { // of the range before the one that begins here
			return -1
		}
		return 1
	})
	var list []ruleset.Element
	for i, e := range all {
		if e.end {
			continue // a range that begins there has no end
		}
		var after []byte
		if i+1 < len(all) {
			after = all[i+1].key[:]
		}
		element, ok := rangeElement(t, e.key[:], after)
		if !ok {
			return nil, false
		}
		list = append(list, element)
	}
	return list, true
}

// rangeElement is the range from first to the one before after, nil for the last.
func rangeElement(t ruleset.SetType, first, after []byte) (ruleset.Element, bool) {
	if t == ruleset.Ports {
		e := ruleset.Element{Low: binary.BigEndian.Uint16(first), High: 0xffff}
		if after != nil {
			e.High = binary.BigEndian.Uint16(after) - 1
		}
		return e, true
	}
	size := addressSize(t)
	from, _ := netip.AddrFromSlice(first[:size])
	for bits := range size*8 + 1 { // the shortest prefix that begins there and ends where the range does
		p := netip.PrefixFrom(from, bits)
		if p.Masked() != p {
			continue
		}
		next := lastAddr(p).Next()
		if after == nil && !next.IsValid() || after != nil && next.IsValid() &&
			bytes.Equal(next.AsSlice(), after[:size]) {
			return ruleset.Element{Prefix: p}, true
		}
	}
	return ruleset.Element{}, false
}

func (t *tableReader) readVerdicts(entries map[string]ruleset.Verdict, name string, count int) error {
	return t.dumpWhole(name, count, func() { clear(entries) }, func(e kernelElement) {
		entries[text(e.key[:unix.IFNAMSIZ])] = verdictOf(e.data)
	}, func() int { return len(entries) })
}

// verdictOf decodes the verdict of an entry. One that Manx never writes becomes a value that differs from all of those.
func verdictOf(data []byte) ruleset.Verdict {
	_, verdict, _, _ := netlink.NextAttr(data)
	l := attrList(verdict)
	v := ruleset.Verdict{Chain: text(l[unix.NFTA_VERDICT_CHAIN])}
	switch int32(l.number(unix.NFTA_VERDICT_CODE)) {
	case unix.NFT_GOTO:
		v.Action = ruleset.Goto
	case unix.NFT_JUMP:
		v.Action = ruleset.Jump
	case unix.NFT_RETURN:
		v.Action = ruleset.Return
	case netfilterAccept:
		v.Action = ruleset.Accept
	default:
		v.Action = ruleset.Drop
	}
	return v
}
