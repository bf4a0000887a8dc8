package message

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// The codes of NOTIFICATIONs (RFC 4271 section 4.5, RFC 4486, RFC 9384, RFC 9687) that this package sends or reads.
const (
	CodeHeader, CodeOpen, codeUpdate, CodeHold, CodeFSM, CodeCease, CodeSendHold = 1, 2, 3, 4, 5, 6, 8

	SubMarker, SubLength, subType                              = 1, 2, 3
	SubVersion, SubPeerAS, SubIdentifier, SubParameter         = 1, 2, 3, 4
	SubHoldTime                                                = 6
	subAttributeList, subUnknown, subOptional, subNetworkField = 1, 2, 9, 10
	SubInOpenSent, SubInOpenConfirm, SubInEstablished          = 1, 2, 3
	SubPrefixes, SubShutdown, SubDeconfigured, SubReset        = 1, 2, 3, 4
	SubRejected, SubOtherChange, SubCollision                  = 5, 6, 7
	SubBFDDown                                                 = 10

	headerLength  = bgp.BGP_HEADER_LENGTH
	longestLength = bgp.BGP_MAX_MESSAGE_LENGTH // extended messages (RFC 8654) are not offered
)

// shortest has the least length of each type of message (RFC 4271 section 4, RFC 2918 section 3).
var shortest = map[byte]int{bgp.BGP_MSG_OPEN: 29, bgp.BGP_MSG_UPDATE: 23, bgp.BGP_MSG_NOTIFICATION: 21,
	bgp.BGP_MSG_KEEPALIVE: 19, bgp.BGP_MSG_ROUTE_REFRESH: 23}

// Notification is the content of a NOTIFICATION message (RFC 4271 section 4.5).
type Notification struct {
	Code, Sub uint8
	Data      []byte
}

// Cease is a NOTIFICATION of RFC 4486 or RFC 9384.
func Cease(sub uint8) *Notification { return &Notification{Code: CodeCease, Sub: sub} }

// Text is the shutdown communication of a Cease (RFC 9003), empty if there is none.
func (n Notification) Text() string {
	if n.Code != CodeCease || n.Sub != SubShutdown && n.Sub != SubReset || len(n.Data) == 0 {
		return ""
	}
	length := int(n.Data[0])
	if length > len(n.Data)-1 {
		return ""
	}
	return string(n.Data[1 : 1+length])
}

// HeaderError is a message header against RFC 4271 section 6.1, with the NOTIFICATION that answers it.
type HeaderError struct {
	Notification Notification
	Text         string
	// Unanswered: a NOTIFICATION that is malformed itself gets no answer (RFC 4271 section 6.4)
	Unanswered bool
}

func (e *HeaderError) Error() string { return e.Text }

// checkHeader returns the length of the message that begins with header.
func checkHeader(header []byte) (int, error) {
	for _, b := range header[:16] {
		if b != 0xff {
			return 0, &HeaderError{Notification{CodeHeader, SubMarker, nil}, "the message has no BGP marker", false}
		}
	}
	length, kind := int(binary.BigEndian.Uint16(header[16:])), header[18]
	least, known := shortest[kind]
	switch {
	case length < headerLength || length > longestLength:
		return 0, &HeaderError{Notification{CodeHeader, SubLength, header[16:18:18]},
			fmt.Sprintf("the message has length %d", length), kind == bgp.BGP_MSG_NOTIFICATION}
	case !known:
		return 0, &HeaderError{Notification{CodeHeader, subType, header[18:19:19]},
			fmt.Sprintf("the message has type %d", kind), false}
	case length < least || length > least && kind == bgp.BGP_MSG_KEEPALIVE:
		return 0, &HeaderError{Notification{CodeHeader, SubLength, header[16:18:18]},
			fmt.Sprintf("the %s has length %d", KindName(kind), length), kind == bgp.BGP_MSG_NOTIFICATION}
	}
	return length, nil
}

func KindName(kind byte) string {
	return map[byte]string{bgp.BGP_MSG_OPEN: "OPEN", bgp.BGP_MSG_UPDATE: "UPDATE",
		bgp.BGP_MSG_NOTIFICATION: "NOTIFICATION", bgp.BGP_MSG_KEEPALIVE: "KEEPALIVE",
		bgp.BGP_MSG_ROUTE_REFRESH: "ROUTE-REFRESH"}[kind]
}

// Framer cuts a stream into messages. Bytes of an unfinished message stay for the next call.
type Framer struct {
	From       io.Reader
	buf        []byte
	start, end int // of the bytes that were read and not returned
}

const (
	calmBuffer = 8 << 10 // holds the longest message
	busyBuffer = 64 << 10
)

// Next returns a message, which is valid until the following call. An error of the reader loses nothing.
func (f *Framer) Next() ([]byte, error) {
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

// Back returns the message that Next returned last to the stream.
func (f *Framer) Back(m []byte) { f.start -= len(m) }

func (f *Framer) fill() error {
	switch {
	case f.buf == nil:
		f.buf = make([]byte, calmBuffer)
	case f.start == f.end && len(f.buf) == busyBuffer && f.calm():
		f.buf, f.start, f.end = make([]byte, calmBuffer), 0, 0
	case len(f.buf)-f.end < longestLength:
		f.end = copy(f.buf, f.buf[f.start:f.end])
		f.start = 0
	}
	n, err := f.From.Read(f.buf[f.end:])
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
func (f *Framer) calm() bool { return f.end < calmBuffer }

// New builds one.
func New(kind byte, body ...byte) []byte {
	m := make([]byte, headerLength, headerLength+len(body))
	for i := range 16 {
		m[i] = 0xff
	}
	binary.BigEndian.PutUint16(m[16:], uint16(headerLength+len(body)))
	m[18] = kind
	return append(m, body...)
}

func Keepalive() []byte { return New(bgp.BGP_MSG_KEEPALIVE) }

func (n Notification) Message() []byte {
	return New(bgp.BGP_MSG_NOTIFICATION, append([]byte{n.Code, n.Sub}, n.Data...)...)
}

func ReadNotification(m []byte) *Notification {
	return &Notification{m[19], m[20], append([]byte(nil), m[21:]...)}
}

// EndOfRIB is the marker of a family (RFC 4724 section 2).
func EndOfRIB(v6 bool) []byte {
	if v6 {
		return New(bgp.BGP_MSG_UPDATE, 0, 0, 0, 6, 0x80, byte(bgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI), 3, 0, 2, 1)
	}
	return New(bgp.BGP_MSG_UPDATE, 0, 0, 0, 0)
}
