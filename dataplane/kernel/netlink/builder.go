package netlink

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Builder appends netlink messages to Buf.
type Builder struct {
	Buf   []byte
	start int // of the open message
}

// Begin begins a message, with NLM_F_REQUEST beside the flags.
func (b *Builder) Begin(kind uint16, flags int, seq uint32) {
	b.start = len(b.Buf)
	b.Buf = native.AppendUint32(b.Buf, 0)
	b.Buf = native.AppendUint16(b.Buf, kind)
	b.Buf = native.AppendUint16(b.Buf, uint16(flags)|unix.NLM_F_REQUEST)
	b.Buf = native.AppendUint32(b.Buf, seq)
	b.Buf = native.AppendUint32(b.Buf, 0)
}

// End ends the message.
func (b *Builder) End() { native.PutUint32(b.Buf[b.start:], uint32(len(b.Buf)-b.start)) }

// Attr appends an attribute.
func (b *Builder) Attr(kind uint16, value []byte) {
	b.Buf = native.AppendUint16(b.Buf, uint16(unix.SizeofRtAttr+len(value)))
	b.Buf = native.AppendUint16(b.Buf, kind)
	b.Buf = append(b.Buf, value...)
	for len(b.Buf)%unix.NLMSG_ALIGNTO != 0 {
		b.Buf = append(b.Buf, 0)
	}
}

// Attr32 appends a number in the host's byte order, as rtnetlink has them.
func (b *Builder) Attr32(kind uint16, v uint32) {
	b.Buf = native.AppendUint16(b.Buf, unix.SizeofRtAttr+4)
	b.Buf = native.AppendUint16(b.Buf, kind)
	b.Buf = native.AppendUint32(b.Buf, v)
}

// AttrBig32 appends a number in network byte order, as netfilter has them.
func (b *Builder) AttrBig32(kind uint16, v uint32) {
	b.Attr(kind, binary.BigEndian.AppendUint32(make([]byte, 0, 4), v))
}

// AttrText appends a text with a final zero.
func (b *Builder) AttrText(kind uint16, s string) { b.Attr(kind, append([]byte(s), 0)) }

// AttrAddr appends an address.
func (b *Builder) AttrAddr(kind uint16, a netip.Addr) {
	if a.Is4() {
		v := a.As4()
		b.Attr(kind, v[:])
		return
	}
	v := a.As16()
	b.Attr(kind, v[:])
}

// Nest begins an attribute that holds others; the result goes to EndNest.
func (b *Builder) Nest(kind uint16) int {
	at := len(b.Buf)
	b.Buf = native.AppendUint16(b.Buf, 0)
	b.Buf = native.AppendUint16(b.Buf, kind)
	return at
}

// NestFlagged is Nest with NLA_F_NESTED, which netfilter requires.
func (b *Builder) NestFlagged(kind uint16) int { return b.Nest(kind | unix.NLA_F_NESTED) }

// EndNest ends the attribute that Nest began.
func (b *Builder) EndNest(at int) { native.PutUint16(b.Buf[at:], uint16(len(b.Buf)-at)) }
