package speaker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire/message"
)

// rawPeer is a peer that sends bytes. It reports errors to its caller, so that many can run at once.
type rawPeer struct {
	session  bgp.Session
	options  fakeOptions
	speaker  string           // its address and port
	listener *net.TCPListener // nil: the peer dials
	conn     net.Conn         // nil: there is none
	messages chan byte        // their kinds
}

// listen has the speaker dial the peer.
func (p *rawPeer) listen(t *testing.T, port uint16) {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.session.Address, port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p.session.Passive, p.session.Port, p.listener = false, port, l
}

// refresh requests all routes of the speaker: the response shows that the session works.
func (p *rawPeer) refresh() []byte {
	if p.session.Address.Is6() {
		return message.New(5, 0, 2, 0, 1)
	}
	return message.New(5, 0, 1, 0, 1)
}

const (
	patience = 60 * time.Second       // for an expected message
	short    = 300 * time.Millisecond // for an answer, before the rest of a message is filled up
)

// connect establishes a session as soon as the speaker accepts it (it may idle 5 s after a session is lost), and waits
// for a route of the speaker.
func (p *rawPeer) connect() error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = p.join(); err != nil {
			continue
		}
		put(p.conn, p.options.open(), gobgp.NewBGPKeepAliveMessage())
		if kind := p.await(kindUpdate, 20*time.Second); kind == kindUpdate {
			return nil
		}
		p.disconnect()
		err = errors.New("no routes came")
	}
	return fmt.Errorf("cannot come back: %w", err)
}

// The kinds of messages (RFC 4271 section 4.1), and two values for no message.
const (
	kindOpen         byte = gobgp.BGP_MSG_OPEN
	kindUpdate       byte = gobgp.BGP_MSG_UPDATE
	kindNotification byte = gobgp.BGP_MSG_NOTIFICATION
	kindClosed       byte = 0
	kindNothing      byte = 255
)

// join makes a connection and waits for the OPEN of the speaker.
func (p *rawPeer) join() error {
	dial := p.dial
	if p.listener != nil {
		dial = p.accept
	}
	conn, err := dial()
	if err != nil {
		return err
	}
	p.conn, p.messages = conn, make(chan byte, 1024)
	go readKinds(conn, p.messages)
	if kind := p.await(kindOpen, 5*time.Second); kind != kindOpen {
		p.disconnect()
		return errors.New("the speaker sent no OPEN")
	}
	return nil
}

// joined is join as soon as the speaker takes the connection.
func (p *rawPeer) joined() error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = p.join(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("cannot come back: %w", err)
}

func (p *rawPeer) dial() (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: p.session.Address.AsSlice()}, Timeout: 3 * time.Second}
	return d.Dial("tcp", p.speaker)
}

// accept takes the newest connection of the speaker, which has given up those that had to wait.
func (p *rawPeer) accept() (net.Conn, error) {
	p.listener.SetDeadline(time.Now().Add(5 * time.Second))
	conn, err := p.listener.Accept()
	for err == nil {
		p.listener.SetDeadline(time.Now().Add(time.Millisecond))
		newer, none := p.listener.Accept()
		if none != nil {
			break
		}
		conn.Close()
		conn = newer
	}
	return conn, err
}

// readKinds returns the kind of each message until the connection ends. UPDATEs that announce nothing are left out.
func readKinds(c net.Conn, kinds chan<- byte) {
	defer close(kinds)
	for {
		m, err := readRaw(c)
		if err != nil {
			return
		}
		if kind := m[18]; kind != kindUpdate || announces(m[19:]) {
			kinds <- kind
		}
	}
}

// readRaw reads one message.
func readRaw(c io.Reader) ([]byte, error) {
	h := make([]byte, gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(c, h); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(h[16:18])) - len(h)
	if n < 0 {
		return nil, fmt.Errorf("header %x", h)
	}
	body := make([]byte, n)
	_, err := io.ReadFull(c, body)
	return append(h, body...), err
}

// announces reports whether the body of an UPDATE has routes that are not withdrawn.
func announces(b []byte) bool {
	const extendedLength = 0x10
	if len(b) < 4 {
		return false
	}
	start := 4 + int(binary.BigEndian.Uint16(b))
	if start > len(b) {
		return false
	}
	end := start + int(binary.BigEndian.Uint16(b[start-2:]))
	if end < len(b) {
		return true
	}
	for a := b[start:]; len(a) > 3; {
		head, n := 3, int(a[2])
		if a[0]&extendedLength != 0 {
			head, n = 4, int(binary.BigEndian.Uint16(a[2:]))
		}
		if a[1] == byte(gobgp.BGP_ATTR_TYPE_MP_REACH_NLRI) {
			return true
		}
		a = a[min(head+n, len(a)):]
	}
	return false
}

// await waits for a kind of message, a NOTIFICATION or the end of the connection.
func (p *rawPeer) await(wanted byte, timeout time.Duration) byte {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case kind, ok := <-p.messages:
			if !ok {
				return kindClosed
			}
			if kind == wanted || kind == kindNotification {
				return kind
			}
		case <-timer.C:
			return kindNothing
		}
	}
}

func (p *rawPeer) disconnect() {
	if p.conn == nil {
		return
	}
	p.conn.Close()
	for range p.messages { // until the reader has ended
	}
	p.conn = nil
}

func (p *rawPeer) write(b []byte) {
	p.conn.SetWriteDeadline(time.Now().Add(patience))
	_, _ = p.conn.Write(b) // a closed connection is seen by the reader
}
