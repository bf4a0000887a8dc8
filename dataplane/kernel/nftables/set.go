package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// keyFields are the parts of a set's key: one, or those of a concatenation.
func keyFields(t ruleset.SetType) []nftables.SetDatatype {
	switch t {
	case ruleset.Addresses4:
		return []nftables.SetDatatype{nftables.TypeIPAddr}
	case ruleset.Addresses6:
		return []nftables.SetDatatype{nftables.TypeIP6Addr}
	case ruleset.Ports:
		return []nftables.SetDatatype{nftables.TypeInetService}
	case ruleset.Endpoints4:
		return []nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService}
	case ruleset.Endpoints6:
		return []nftables.SetDatatype{nftables.TypeIP6Addr, nftables.TypeInetProto, nftables.TypeInetService}
	}
	return nil
}

// keyType returns nft's number for the type of the key, and its length in bytes.
func keyType(fields []nftables.SetDatatype) (magic, size uint32) {
	if len(fields) == 1 {
		return fields[0].GetNFTMagic(), fields[0].Bytes
	}
	t := nftables.MustConcatSetType(fields...) // three
	return t.GetNFTMagic(), t.Bytes
}

// interval reports whether the kernel's set is one of ranges.
func interval(s ruleset.Set) bool { return s.Interval || s.Type == ruleset.Ports }

// nft's numbers of byte orders, which it needs to print elements.
const (
	orderHost = 1
	orderBig  = 2
)

const setConcat = nftables.NFT_SET_CONCAT

func (b *batch) changeSet(c ruleset.SetChange, emptied bool) error {
	switch {
	case c.Deleted && !c.Created:
		return nil
	case emptied:
		b.flushSet(c.Name)
	case c.Created:
		if err := b.addSet(c.Set); err != nil {
			return err
		}
	}
	if err := b.elements(unix.NFT_MSG_DELSETELEM, c.Set, c.Remove); err != nil {
		return err
	}
	return b.elements(unix.NFT_MSG_NEWSETELEM, c.Set, c.Add)
}

func (b *batch) addSet(s ruleset.Set) error {
	fields := keyFields(s.Type)
	if fields == nil || s.Interval && len(fields) > 1 {
		return fmt.Errorf("set %s: type %d does not exist, or not with intervals", s.Name, s.Type)
	}
	magic, size := keyType(fields)
	var flags uint32
	if interval(s) {
		flags |= unix.NFT_SET_INTERVAL
	}
	if len(fields) > 1 {
		flags |= setConcat
	}
	b.newSet("set", s.Name, flags, magic, size)
	if len(fields) > 1 {
		b.concatenation(fields)
	}
	b.Attr(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, orderBig))
	b.End()
	return nil
}

func (b *batch) addMap(m ruleset.Map) {
	b.newSet("map", m.Name, unix.NFT_SET_MAP, nftables.TypeIFName.GetNFTMagic(), nftables.TypeIFName.Bytes)
	b.AttrBig32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	b.Attr(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, orderHost))
	b.End()
}

func (b *batch) newSet(kind, name string, flags, magic, size uint32) {
	b.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, operation{verb: "add", kind: kind, name: name})
	b.AttrText(unix.NFTA_SET_TABLE, TableName)
	b.AttrText(unix.NFTA_SET_NAME, name)
	b.AttrBig32(unix.NFTA_SET_ID, uint32(len(b.ops))) // unique in the transaction
	b.AttrBig32(unix.NFTA_SET_FLAGS, flags)
	b.AttrBig32(unix.NFTA_SET_KEY_TYPE, magic)
	b.AttrBig32(unix.NFTA_SET_KEY_LEN, size)
}

// concatenation describes the fields, without which nft cannot print elements.
func (b *batch) concatenation(fields []nftables.SetDatatype) {
	desc := b.NestFlagged(unix.NFTA_SET_DESC)
	list := b.NestFlagged(nftables.NFTA_SET_DESC_CONCAT)
	for _, f := range fields {
		field := b.NestFlagged(unix.NFTA_LIST_ELEM)
		b.AttrBig32(unix.NFTA_SET_DESC_SIZE, f.Bytes)
		b.EndNest(field)
	}
	b.EndNest(list)
	b.EndNest(desc)
}

func (b *batch) deleteSet(kind, name string) {
	b.message(unix.NFT_MSG_DELSET, 0, operation{verb: "delete", kind: kind, name: name})
	b.AttrText(unix.NFTA_SET_TABLE, TableName)
	b.AttrText(unix.NFTA_SET_NAME, name)
	b.End()
}

func (b *batch) flushSet(name string) {
	b.message(unix.NFT_MSG_DELSETELEM, 0, operation{verb: "flush", kind: "set", name: name})
	b.AttrText(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	b.AttrText(unix.NFTA_SET_ELEM_LIST_SET, name)
	b.End()
}

func (b *batch) elements(kind uint16, s ruleset.Set, elements []ruleset.Element) error {
	list := elementList{b: b, kind: kind, of: "set", name: s.Name}
	for _, e := range elements {
		if err := b.element(&list, s, e); err != nil {
			return fmt.Errorf("set %s: element %s: %w", s.Name, elementText(e), err)
		}
	}
	list.close()
	return nil
}

func (b *batch) element(list *elementList, s ruleset.Set, e ruleset.Element) error {
	if err := checkElement(s, e); err != nil {
		return err
	}
	list.room()
	if !interval(s) {
		list.next()
		b.elementKey(plainKey(s.Type, e))
		list.done()
		return nil
	}
	first, after := intervalKeys(s.Type, e)
	list.next()
	b.elementKey(first)
	list.done()
	if after != nil {
		list.next()
		b.AttrBig32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		b.elementKey(after)
		list.done()
	}
	return nil
}

func checkElement(s ruleset.Set, e ruleset.Element) error {
	switch {
	case s.Type == ruleset.Ports:
		if e.High != 0 && e.High < e.Low {
			return fmt.Errorf("the last port comes before the first")
		}
		return nil
	case !e.Prefix.IsValid() || e.Prefix.Addr().Is4() != (s.Type == ruleset.Addresses4 || s.Type == ruleset.Endpoints4):
		return fmt.Errorf("it is not of the set's family")
	case !s.Interval && !e.Prefix.IsSingleIP():
		return fmt.Errorf("only sets with intervals have networks")
	}
	return nil
}

func elementText(e ruleset.Element) string {
	if !e.Prefix.IsValid() {
		return fmt.Sprintf("%d-%d", e.Low, max(e.Low, e.High))
	}
	if e.Protocol == 0 && e.Low == 0 {
		return e.Prefix.String()
	}
	return fmt.Sprintf("%s protocol %d port %d", e.Prefix.Addr(), e.Protocol, e.Low)
}

// plainKey is the key of a single element; the parts of a concatenation are padded to 4 bytes each.
func plainKey(t ruleset.SetType, e ruleset.Element) []byte {
	key := e.Prefix.Addr().AsSlice()
	if t == ruleset.Endpoints4 || t == ruleset.Endpoints6 {
		key = append(key, e.Protocol, 0, 0, 0)
		key = binary.BigEndian.AppendUint16(key, e.Low)
		key = append(key, 0, 0)
	}
	return key
}

// intervalKeys returns the first key of a range and the one after its last, nil if there is none.
func intervalKeys(t ruleset.SetType, e ruleset.Element) (first, after []byte) {
	if t == ruleset.Ports {
		if last := max(e.Low, e.High); last < 0xffff {
			after = bigEndian(last + 1)
		}
		return bigEndian(e.Low), after
	}
	if next := lastAddr(e.Prefix).Next(); next.IsValid() {
		after = next.AsSlice()
	}
	return e.Prefix.Masked().Addr().AsSlice(), after
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (b *batch) elementKey(key []byte) {
	at := b.NestFlagged(unix.NFTA_SET_ELEM_KEY)
	b.Attr(unix.NFTA_DATA_VALUE, key)
	b.EndNest(at)
}

// elementBytes bounds the list of elements of one message: the length of an attribute has 16 bits.
const elementBytes = 60_000

// elementList spreads elements over as many messages as they need.
type elementList struct {
	b        *batch
	kind     uint16
	of, name string
	list     int // where the list of the open message begins, 0 for none
	item     int
}

// room begins another message if there is no room for more in the open one; both ends of a range go into one message.
func (l *elementList) room() {
	b := l.b
	if l.list != 0 && len(b.Buf)-l.list > elementBytes {
		l.close()
	}
	if l.list == 0 {
		verb := "add elements to"
		if l.kind == unix.NFT_MSG_DELSETELEM {
			verb = "remove elements from"
		}
		b.message(l.kind, unix.NLM_F_CREATE, operation{verb: verb, kind: l.of, name: l.name})
		b.AttrText(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
		b.AttrText(unix.NFTA_SET_ELEM_LIST_SET, l.name)
		l.list = b.NestFlagged(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
}

func (l *elementList) next() { l.item = l.b.NestFlagged(unix.NFTA_LIST_ELEM) }

func (l *elementList) done() { l.b.EndNest(l.item) }

func (l *elementList) close() {
	if l.list != 0 {
		l.b.EndNest(l.list)
		l.b.End()
		l.list = 0
	}
}
