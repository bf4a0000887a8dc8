package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire/message"
)

// openingMessages is how many messages of the speaker's own OPEN exchange are not sent: its OPEN and its KEEPALIVE. The
// gate has sent both before.
const openingMessages = 2

// errHoldTimer makes the speaker drop the routes of a peer whose hold timer has expired. Else it would keep them as
// for a graceful restart, which RFC 4724 section 4.2 grants to the loss of a TCP connection alone.
var errHoldTimer = errors.New("the hold timer has expired")

// Write sends one message of the speaker. A failure is reported by Read: one place decides how the session ended.
func (c *conn) Write(b []byte) (int, error) {
	if len(b) < bgp.BGP_HEADER_LENGTH {
		return 0, io.ErrShortWrite
	}
	kind := b[18]
	if kind == bgp.BGP_MSG_UPDATE {
		c.p.gate.cfg.Writing(c.p.addr)
	}
	switch {
	case c.swallowed < openingMessages && (kind == bgp.BGP_MSG_OPEN || kind == bgp.BGP_MSG_KEEPALIVE):
		if c.swallowed++; c.swallowed == openingMessages {
			c.p.gate.cfg.Opening(c.p.addr, c.sent.Paths)
		}
		return len(b), nil
	case kind == bgp.BGP_MSG_NOTIFICATION:
		return c.writeNotification(b)
	case kind == bgp.BGP_MSG_UPDATE && bytes.Equal(b, message.EndOfRIB(c.filter.V6)) && c.holdBack():
	case kind == bgp.BGP_MSG_UPDATE:
		c.pass(b)
	default:
		c.write(b)
	}
	return len(b), nil
}

func (c *conn) writeNotification(b []byte) (int, error) {
	n := message.ReadNotification(b)
	c.reportEnd(Ended{Cause: CauseNotification, Sent: n, Established: c.established, Opened: true,
		Incoming: c.incoming})
	c.mu.Lock()
	c.notified = n
	_ = c.tcp.SetWriteDeadline(time.Now().Add(time.Second))
	c.mu.Unlock()
	_, _ = c.tcp.Write(b)
	if n.Code == message.CodeHold {
		return 0, errHoldTimer
	}
	return len(b), nil
}

// pass sends an UPDATE of the speaker, without the withdrawals that the peer does not need.
func (c *conn) pass(b []byte) {
	c.writes.Lock() // the record and the peer see the same order
	defer c.writes.Unlock()
	if m := c.sent.Check(b); m != nil {
		c.writeNow(m)
	}
}

// withdraw withdraws a route that was sent before a time. It returns false if the route was sent later, or the peer
// takes no data now.
func (c *conn) withdraw(prefix netip.Prefix, before time.Time) bool {
	if !c.writes.TryLock() {
		return false
	}
	defer c.writes.Unlock()
	m, late := c.sent.Withdraw(prefix, before)
	if m != nil {
		c.writeNow(m)
	}
	return !late
}

// write sends a message, and ends the session if the peer takes no data for too long (RFC 9687).
func (c *conn) write(m []byte) {
	c.writes.Lock()
	defer c.writes.Unlock()
	c.writeNow(m)
}

// writeNow is write for callers that have locked c.writes.
func (c *conn) writeNow(m []byte) {
	start := time.Now()
	c.mu.Lock()
	if c.notified != nil || c.failed != nil || c.ended != nil {
		c.mu.Unlock()
		return
	}
	c.writing = true
	_ = c.tcp.SetWriteDeadline(start.Add(c.sendHold))
	c.mu.Unlock()
	_, err := c.tcp.Write(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing, c.lastWrite = false, time.Now()
	if err == nil || c.notified != nil || c.wanted != nil {
		return
	}
	c.failed = err
	c.wanted = &Ended{Cause: CauseConnection, Err: err}
	if time.Since(start) >= c.sendHold {
		c.wanted = &Ended{Cause: CauseSendHold, Sent: &message.Notification{Code: message.CodeSendHold}}
	}
	c.wake()
}

// keepalives sends the gate's own, as long as the session is up. Other data does instead of one.
func (c *conn) keepalives() {
	if c.ending() {
		return
	}
	if c.writes.TryLock() {
		c.writeNow(message.Keepalive())
		c.writes.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.beat = time.AfterFunc(c.every, c.keepalives)
	}
}

// busy reports whether a write is under way, or the last one was a moment ago.
func (c *conn) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writing || time.Since(c.lastWrite) < quiet
}

// SetWriteDeadline is called by the speaker's state machine: without a deadline when the session is established.
func (c *conn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() && !c.established {
		c.established = true
		if c.every != 0 {
			c.mu.Lock()
			c.beat = time.AfterFunc(c.every, c.keepalives)
			c.mu.Unlock()
		}
	}
	return nil // write and writeNotification have their own
}

// SetDeadline sets the deadline of Read.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Close is called by the speaker when its session has ended.
func (c *conn) Close() error {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	for _, t := range []*time.Timer{c.beat, c.heldBack} {
		if t != nil {
			t.Stop()
		}
	}
	c.mu.Unlock()
	if again {
		return nil
	}
	if c.stale != nil {
		c.stale.Stop()
	}
	c.reportEnd(Ended{Cause: CauseLocal, Established: c.established, Opened: true, Incoming: c.incoming})
	c.p.takenBack(c, c.swallowed > 0)
	c.mu.Lock()
	announced := c.notified != nil || c.ended.Sent != nil
	c.mu.Unlock()
	if announced {
		go linger(c.tcp)
		return nil
	}
	return c.tcp.Close()
}

// close ends a connection that was not handed over, with a NOTIFICATION if n is one.
func (c *conn) close(n *message.Notification) {
	if n == nil {
		_ = c.tcp.Close()
		return
	}
	_ = c.send(n.Message())
	go linger(c.tcp)
}

// linger closes a connection when the peer has read what was sent.
func linger(tcp *net.TCPConn) {
	_ = tcp.CloseWrite()
	_ = tcp.SetReadDeadline(time.Now().Add(lingering))
	_, _ = io.Copy(io.Discard, tcp)
	_ = tcp.Close()
}

// LocalAddr and RemoteAddr are a *net.TCPAddr, as the speaker expects.
func (c *conn) LocalAddr() net.Addr  { return c.tcp.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// SyscallConn lets the speaker set the TTL.
func (c *conn) SyscallConn() (syscall.RawConn, error) { return c.tcp.SyscallConn() }

// addressOf is a TCP address in the form in which sessions have it.
func addressOf(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
