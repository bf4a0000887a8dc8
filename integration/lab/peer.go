package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// Peer is a scripted BGP speaker: it sends prepared bytes and records the times of received UPDATEs.
type Peer struct {
	conn net.Conn
	// Updates delivers the received UPDATEs. It is closed when the session ends.
	Updates chan Update
}

// Update is the body of a received UPDATE, and the time of its arrival.
type Update struct {
	At   time.Time
	Body []byte
}

const (
	msgOpen = iota + 1
	msgUpdate
	msgNotification
	msgKeepalive
)

func message(kind byte, body []byte) []byte {
	m := make([]byte, 19, 19+len(body))
	for i := range 16 {
		m[i] = 0xff
	}
	m = append(m, body...)
	binary.BigEndian.PutUint16(m[16:], uint16(len(m)))
	m[18] = kind
	return m
}

// open is an OPEN for IPv4 unicast with a 4-byte AS number and a hold time of 240 s.
func open(as uint32, id netip.Addr) []byte {
	capabilities := []byte{1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(capabilities[8:], as)
	body := []byte{4, 0, 0, 0, 240}
	binary.BigEndian.PutUint16(body[1:], uint16(as))
	body = append(body, id.AsSlice()...)
	body = append(body, byte(len(capabilities)+2), 2, byte(len(capabilities)))
	return message(msgOpen, append(body, capabilities...))
}

// Announce is one UPDATE with these prefixes, from AS as, by next hop nh.
func Announce(as uint32, nh netip.Addr, prefixes []netip.Prefix) []byte {
	attrs := []byte{0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0, 0, 0x40, 3, 4}
	binary.BigEndian.PutUint32(attrs[9:], as)
	return announce(append(attrs, nh.AsSlice()...), prefixes)
}

// AnnounceInternal is one UPDATE with these prefixes of the own AS, with the LOCAL_PREF that Calico nodes send.
func AnnounceInternal(nh netip.Addr, prefixes []netip.Prefix) []byte {
	attrs := append([]byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 4}, nh.AsSlice()...)
	return announce(append(attrs, 0x40, 5, 4, 0x7f, 0xff, 0xfb, 0xff), prefixes)
}

func announce(attrs []byte, prefixes []netip.Prefix) []byte {
	body := []byte{0, 0, 0, byte(len(attrs))}
	body = append(body, attrs...)
	for _, p := range prefixes {
		body = append(body, byte(p.Bits()))
		body = append(body, p.Addr().AsSlice()[:(p.Bits()+7)/8]...)
	}
	return message(msgUpdate, body)
}

// EndOfRIB is the message that all routes have been sent (RFC 4724 section 2, for IPv4).
func EndOfRIB() []byte { return message(msgUpdate, []byte{0, 0, 0, 0}) }

// ConnectPeer opens a session to a speaker (ADDRESS:PORT) from a namespace. It tries again until the other side accepts
// it.
func ConnectPeer(ns, to string, as uint32, id netip.Addr) (*Peer, error) {
	return peerDialer{as: as, id: id, pause: 200 * time.Millisecond}.connect(ns, to)
}

// ConnectPeerFrom does the same from an address of the namespace, which is the router ID too, with this pause between
// attempts.
func ConnectPeerFrom(ns string, from netip.Addr, to string, as uint32, pause time.Duration) (*Peer, error) {
	return peerDialer{from: &net.TCPAddr{IP: from.AsSlice()}, as: as, id: from, pause: pause}.connect(ns, to)
}

// peerDialer makes sessions as a speaker with this AS and router ID, with a pause between attempts.
type peerDialer struct {
	from  net.Addr // nil for any
	as    uint32
	id    netip.Addr
	pause time.Duration
}

func (d peerDialer) connect(ns, to string) (*Peer, error) {
	var lastErr error
	dialer := net.Dialer{Timeout: time.Second, LocalAddr: d.from}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(d.pause) {
		var conn net.Conn
		if err := namespace.Inside(ns, func() { conn, lastErr = dialer.Dial("tcp", to) }); err != nil {
			return nil, err
		}
		if lastErr != nil {
			continue
		}
		p := &Peer{conn: conn, Updates: make(chan Update, 1<<16)}
		if lastErr = p.handshake(d.as, d.id); lastErr == nil {
			go p.read()
			return p, nil
		}
		conn.Close()
	}
	return nil, fmt.Errorf("no session to %s: %w", to, lastErr)
}

func (p *Peer) handshake(as uint32, id netip.Addr) error {
	_ = p.conn.SetDeadline(time.Now().Add(10 * time.Second))
	defer func() { _ = p.conn.SetDeadline(time.Time{}) }()
	if _, err := p.conn.Write(open(as, id)); err != nil {
		return err
	}
	for seen := 0; seen < 2; seen++ {
		kind, body, err := p.receive()
		if err != nil {
			return err
		}
		if kind == msgNotification {
			return fmt.Errorf("NOTIFICATION %v", body)
		}
		if kind == msgOpen {
			if _, err := p.conn.Write(message(msgKeepalive, nil)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Peer) receive() (kind byte, body []byte, err error) {
	head := make([]byte, 19)
	if _, err := io.ReadFull(p.conn, head); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint16(head[16:])) - 19
	if n < 0 {
		return 0, nil, errors.New("short message")
	}
	body = make([]byte, n)
	_, err = io.ReadFull(p.conn, body)
	return head[18], body, err
}

// read records UPDATEs until the session ends, and answers each KEEPALIVE with a KEEPALIVE.
func (p *Peer) read() {
	defer close(p.Updates)
	for {
		kind, body, err := p.receive()
		if err != nil {
			return
		}
		switch kind {
		case msgUpdate:
			p.Updates <- Update{time.Now(), body}
		case msgKeepalive:
			_, _ = p.conn.Write(message(msgKeepalive, nil))
		}
	}
}

// Send writes messages unchanged.
func (p *Peer) Send(messages []byte) error {
	_, err := p.conn.Write(messages)
	return err
}

// Close ends the connection without a NOTIFICATION.
func (p *Peer) Close() { p.conn.Close() }

// Prefixes are n different /24, starting at 20.0.0.0.
func Prefixes(n int) []netip.Prefix {
	list := make([]netip.Prefix, n)
	for i := range list {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 20<<24+uint32(i)<<8)
		list[i] = netip.PrefixFrom(netip.AddrFrom4(a), 24)
	}
	return list
}
