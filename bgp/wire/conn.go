package wire

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/manxnet/manx/bgp/wire/message"
)

const (
	// leastSendHold is the least time for which a peer may take no data (RFC 9687 section 5).
	leastSendHold = 8 * time.Minute
	// lingering is how long a connection whose end was announced by a NOTIFICATION stays half open, so that unread data
	// do not make the kernel throw the NOTIFICATION away.
	lingering = time.Second
)

// conn is a connection with a peer. The gate owns it during the OPEN exchange. After the hand-over the speaker uses it
// as a net.Conn: its receiver reads, its sender and its state machine write and close.
type conn struct {
	p        *peer
	settings Peer
	tcp      *net.TCPConn
	incoming bool
	began    time.Time
	frames   message.Framer

	open       *Open     // the peer's; guarded by the peer's lock until the hand-over
	yieldUntil time.Time // guarded by the peer's lock

	// Of the receiver's goroutine.
	filter message.Filter
	out    []byte // for the speaker, next
	over   bool   // nothing follows out
	taken  bool   // Read was called

	// Of the speaker's goroutines.
	sent        message.Record
	swallowed   int  // messages of the speaker's own OPEN exchange
	established bool // the speaker's state
	sendHold    time.Duration
	every       time.Duration // between KEEPALIVEs of the gate; 0: the speaker's are often enough
	beat        *time.Timer

	local, remote netip.AddrPort

	writes       sync.Mutex // for the time of a write
	mu           sync.Mutex
	wanted       *Ended // the end that somebody wants
	ended        *Ended // the end as it was reported
	inject       []byte // a message that the speaker is to read
	woken        bool
	readDeadline time.Time // that the speaker set
	closed       bool
	writing      bool
	notified     *message.Notification
	failed       error // of a write
	announced    message.RouteSet
	heldBack     *time.Timer // until the End-of-RIB that the speaker has written is sent; nil: none is held back
	lastWrite    time.Time
	limit        Limit
	level        Level
	stale        *time.Timer
	mended       map[message.Kind]*mendReport
}

func newConn(p *peer, s Peer, tcp *net.TCPConn, incoming bool) *conn {
	_ = tcp.SetKeepAlive(false) // BGP has its own
	return &conn{p: p, settings: s, tcp: tcp, incoming: incoming, began: time.Now(), frames: message.Framer{From: tcp}}
}

// begin prepares the hand-over: the speaker first reads the peer's OPEN and KEEPALIVE.
func (c *conn) begin(l Limit, stale staleness) {
	p, o := c.settings, c.open
	edited, err := o.edited(p)
	if err != nil { // the speaker ends the session for want of an OPEN
		edited = nil
	}
	remote, local := addressOf(c.tcp.RemoteAddr()), addressOf(c.tcp.LocalAddr())
	c.filter = message.Filter{V6: p.Address.Unmap().Is6(), Family: o.Family, Paths: o.SendsPaths,
		External: p.LocalAS != p.PeerAS, Loopback: remote.Addr().IsLoopback() && local.Addr().IsLoopback(), Width: 2,
		Growth: func() int { return int(c.p.gate.growth.Load()) }}
	if o.FourOctetAS {
		c.filter.Width = 4
	}
	c.sent = message.Record{V6: c.filter.V6, Paths: o.TakesPaths, Off: p.Unrecorded}
	c.limit, c.announced, c.mended = l, message.RouteSet{}, map[message.Kind]*mendReport{}
	c.out = append(edited, message.Keepalive()...)
	switch {
	case stale.now:
		c.inject = message.EndOfRIB(c.filter.V6)
	case stale.after != 0:
		c.stale = time.AfterFunc(stale.after, func() {
			if c.p.keepsStale() {
				c.injectMessage(message.EndOfRIB(c.filter.V6))
			}
		})
	}
	c.local, c.remote = local, remote
}

// reportUp comes before the hand-over.
func (c *conn) reportUp() {
	hold, interval, tooRare := c.open.timers(c.settings)
	if tooRare {
		c.every = interval
	}
	c.sendHold = max(leastSendHold, 2*hold)
	c.p.receiver.Begin()
	c.p.emit(Up{Open: c.open, Local: c.local, Remote: c.remote, Hold: hold, Keepalive: interval})
}

// send writes a message during the OPEN exchange.
func (c *conn) send(m []byte) error {
	_ = c.tcp.SetWriteDeadline(time.Now().Add(time.Second))
	_, err := c.tcp.Write(m)
	return err
}

// doom ends the connection during the OPEN exchange. The first reason counts.
func (c *conn) doom(e Ended) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wanted == nil {
		c.wanted = &e
		_ = c.tcp.SetReadDeadline(time.Unix(1, 0))
	}
}

func (c *conn) doomed() *Ended {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted
}

// endWith ends the established session.
func (c *conn) endWith(e Ended) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wanted == nil {
		c.wanted = &e
		c.wake()
	}
}

// ending reports whether the established session is about to end.
func (c *conn) ending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted != nil || c.ended != nil || c.closed
}

// injectMessage makes the speaker read a message that did not come from the peer.
func (c *conn) injectMessage(m []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inject = m
	c.wake()
}

// wake interrupts a read. c is locked.
func (c *conn) wake() {
	c.woken = true
	_ = c.tcp.SetReadDeadline(time.Unix(1, 0))
}

// SetReadDeadline is called by the speaker's state machine, with a past time when it leaves a state.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.readDeadline = t
	err := c.tcp.SetReadDeadline(t)
	if c.inject != nil || c.wanted != nil && c.ended == nil {
		c.wake()
	}
	cause := CauseLocal
	if c.ended != nil {
		cause = c.ended.Cause
	}
	c.mu.Unlock()
	if c.established && !t.IsZero() && !t.After(time.Now()) {
		c.p.gate.cfg.Leaving(c.p.addr, cause)
	}
	return err
}
