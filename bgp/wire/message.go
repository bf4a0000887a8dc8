package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// The codes of NOTIFICATIONs (RFC 4271 section 4.5, RFC 4486, RFC 9384, RFC 9687) that this package sends or reads.
const (
	headerCode, openCode, updateCode, holdCode, fsmCode, ceaseCode, sendHoldCode = 1, 2, 3, 4, 5, 6, 8

	subMarker, subLength, subType                              = 1, 2, 3
	subVersion, subPeerAS, subIdentifier, subParameter         = 1, 2, 3, 4
	subHoldTime                                                = 6
	subAttributeList, subUnknown, subOptional, subNetworkField = 1, 2, 9, 10
	subInOpenSent, subInOpenConfirm, subInEstablished          = 1, 2, 3
	subPrefixes, subShutdown, subDeconfigured, subReset        = 1, 2, 3, 4
	subRejected, subOtherChange, subCollision, subNoSpace      = 5, 6, 7, 8

	headerLength  = bgp.BGP_HEADER_LENGTH
	longestLength = bgp.BGP_MAX_MESSAGE_LENGTH // extended messages (RFC 8654) are not offered
)

// shortest has the least length of each type of message (RFC 4271 section 4, RFC 2918 section 3).
var shortest = map[byte]int{bgp.BGP_MSG_OPEN: 29, bgp.BGP_MSG_UPDATE: 23, bgp.BGP_MSG_NOTIFICATION: 21,
	bgp.BGP_MSG_KEEPALIVE: 19, bgp.BGP_MSG_ROUTE_REFRESH: 23}

// headerError is a message header against RFC 4271 section 6.1, with the NOTIFICATION that answers it.
type headerError struct {
	notification Notification
	text         string
	// unanswered: a NOTIFICATION that is malformed itself gets no answer (RFC 4271 section 6.4)
	unanswered bool
}

func (e *headerError) Error() string { return e.text }

// checkHeader returns the length of the message that begins with header.
func checkHeader(header []byte) (int, error) {
	for _, b := range header[:16] {
		if b != 0xff {
			return 0, &headerError{Notification{headerCode, subMarker, nil}, "the message has no BGP marker", false}
		}
	}
	length, kind := int(binary.BigEndian.Uint16(header[16:])), header[18]
	least, known := shortest[kind]
	switch {
	case length < headerLength || length > longestLength:
		return 0, &headerError{Notification{headerCode, subLength, header[16:18:18]},
			fmt.Sprintf("the message has length %d", length), kind == bgp.BGP_MSG_NOTIFICATION}
	case !known:
		return 0, &headerError{Notification{headerCode, subType, header[18:19:19]},
			fmt.Sprintf("the message has type %d", kind), false}
	case length < least || length > least && kind == bgp.BGP_MSG_KEEPALIVE:
		return 0, &headerError{Notification{headerCode, subLength, header[16:18:18]},
			fmt.Sprintf("the %s has length %d", kindName(kind), length), kind == bgp.BGP_MSG_NOTIFICATION}
	}
	return length, nil
}

func kindName(kind byte) string {
	return map[byte]string{bgp.BGP_MSG_OPEN: "OPEN", bgp.BGP_MSG_UPDATE: "UPDATE",
		bgp.BGP_MSG_NOTIFICATION: "NOTIFICATION", bgp.BGP_MSG_KEEPALIVE: "KEEPALIVE",
		bgp.BGP_MSG_ROUTE_REFRESH: "ROUTE-REFRESH"}[kind]
}

// framer cuts a stream into messages. Bytes of an unfinished message stay for the next call.
type framer struct {
	from       io.Reader
	buf        []byte
	start, end int // of the bytes that were read and not returned
}

const (
	calmBuffer = 8 << 10 // holds the longest message
	busyBuffer = 64 << 10
)

// next returns a message, which is valid until the following call. An error of the reader loses nothing.
func (f *framer) next() ([]byte, error) {
	for {
		have := f.buf[f.start:f.end]
		if len(have) >= headerLength {
			length, err := checkHeader(have[:headerLength])
			if err != nil {
				return nil, err
			}
			if len(have) >= length {
				f.start += length
				return have[:length:length], nil
			}
		}
		if err := f.fill(); err != nil {
			return nil, err
		}
	}
}

// back returns the message that next returned last to the stream.
func (f *framer) back(m []byte) { f.start -= len(m) }

func (f *framer) fill() error {
	switch {
	case f.buf == nil:
		f.buf = make([]byte, calmBuffer)
	case f.start == f.end && len(f.buf) == busyBuffer && f.calm():
		f.buf, f.start, f.end = make([]byte, calmBuffer), 0, 0
	case len(f.buf)-f.end < longestLength:
		f.end = copy(f.buf, f.buf[f.start:f.end])
		f.start = 0
	}
	n, err := f.from.Read(f.buf[f.end:])
	full := f.end+n == len(f.buf)
	f.end += n
	if full && len(f.buf) < busyBuffer {
		bigger := make([]byte, busyBuffer)
		f.end = copy(bigger, f.buf[f.start:f.end])
		f.buf, f.start = bigger, 0
	}
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// calm reports whether the big buffer has nothing to hold any more: all that came was taken.
func (f *framer) calm() bool { return f.end < calmBuffer }

// message builds one.
func message(kind byte, body ...byte) []byte {
	m := make([]byte, headerLength, headerLength+len(body))
	for i := range 16 {
		m[i] = 0xff
	}
	binary.BigEndian.PutUint16(m[16:], uint16(headerLength+len(body)))
	m[18] = kind
	return append(m, body...)
}

func keepalive() []byte { return message(bgp.BGP_MSG_KEEPALIVE) }

func (n Notification) message() []byte {
	return message(bgp.BGP_MSG_NOTIFICATION, append([]byte{n.Code, n.Sub}, n.Data...)...)
}

func readNotification(m []byte) *Notification {
	return &Notification{m[19], m[20], append([]byte(nil), m[21:]...)}
}

// endOfRIB is the marker of a family (RFC 4724 section 2).
func endOfRIB(v6 bool) []byte {
	if v6 {
		return message(bgp.BGP_MSG_UPDATE, 0, 0, 0, 6, 0x80, byte(bgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI), 3, 0, 2, 1)
	}
	return message(bgp.BGP_MSG_UPDATE, 0, 0, 0, 0)
}

func familyOf(a netip.Addr) bgp.Family {
	if a.Unmap().Is4() {
		return bgp.RF_IPv4_UC
	}
	return bgp.RF_IPv6_UC
}
