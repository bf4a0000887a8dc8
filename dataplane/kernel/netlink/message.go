package netlink

import (
	"encoding/binary"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

var native = binary.NativeEndian

const headerLen = unix.SizeofNlMsghdr

// Message is one netlink message as received. Data points into the receive buffer.
type Message struct {
	Kind  uint16
	Flags uint16
	Seq   uint32
	Data  []byte
}

// NextMessage cuts the first message off a receive buffer.
func NextMessage(b []byte) (m Message, rest []byte, ok bool) {
	if len(b) < headerLen {
		return Message{}, nil, false
	}
	n := int(native.Uint32(b))
	if n < headerLen || n > len(b) {
		return Message{}, nil, false
	}
	m = Message{Kind: native.Uint16(b[4:]), Flags: native.Uint16(b[6:]), Seq: native.Uint32(b[8:]),
		Data: b[headerLen:n]}
	return m, b[min(Align(n), len(b)):], true
}

// NextAttr cuts the first attribute off a list of attributes.
func NextAttr(b []byte) (kind uint16, value, rest []byte, ok bool) {
	if len(b) < unix.SizeofRtAttr {
		return 0, nil, nil, false
	}
	n := int(native.Uint16(b))
	if n < unix.SizeofRtAttr || n > len(b) {
		return 0, nil, nil, false
	}
	kind = native.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	return kind, b[unix.SizeofRtAttr:n], b[min(Align(n), len(b)):], true
}

// Align rounds up to where the next message or attribute begins.
func Align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// Err returns the error of an NLMSG_ERROR or NLMSG_DONE message, with the kernel's own words; nil for an
// acknowledgement.
func (m Message) Err() error {
	if len(m.Data) < 4 {
		return nil
	}
	code := int32(native.Uint32(m.Data))
	if code == 0 {
		return nil
	}
	errno := unix.Errno(-code)
	if m.Kind != unix.NLMSG_ERROR {
		return errno
	}
	if text := m.errorAttr(unix.NLMSGERR_ATTR_MSG); len(text) > 1 {
		return fmt.Errorf("%w (%s)", errno, text[:len(text)-1])
	}
	return errno
}

// BadAttribute returns the offset of the fault in the refused message, from the message's begin, 0 if the kernel
// reports none.
func (m Message) BadAttribute() int {
	if offset := m.errorAttr(unix.NLMSGERR_ATTR_OFFS); len(offset) == 4 {
		return int(native.Uint32(offset))
	}
	return 0
}

// errorAttr returns an attribute of an NLMSG_ERROR message, nil if there is none (NETLINK_EXT_ACK).
func (m Message) errorAttr(want uint16) []byte {
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 || len(m.Data) < 4+headerLen {
		return nil
	}
	skip := 4 + headerLen
	if m.Flags&unix.NLM_F_CAPPED == 0 { // the refused message is in there as a whole
		skip = 4 + Align(int(native.Uint32(m.Data[4:])))
	}
	for kind, value := range Attrs(m.Data[min(skip, len(m.Data)):]) {
		if kind == want {
			return value
		}
	}
	return nil
}

// Attrs visits the attributes of a list, by kind, up to the first one that is cut short.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for kind, value, rest, ok := NextAttr(b); ok && yield(kind, value); kind, value, rest, ok = NextAttr(rest) {
		}
	}
}
