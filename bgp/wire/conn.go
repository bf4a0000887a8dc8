package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

const (
	// leastSendHold is the least time for which a peer may take no data (RFC 9687 section 5).
	leastSendHold = 8 * time.Minute
	// lingering is how long a connection whose end was announced by a NOTIFICATION stays half open, so that unread data
	// do not make the kernel throw the NOTIFICATION away.
	lingering = time.Second
	// mendEvery bounds the events about changed UPDATEs.
	mendEvery = time.Second
)

// conn is a connection with a peer. The gate owns it during the OPEN exchange. After the hand-over the speaker uses it
// as a net.Conn: its receiver reads, its sender and its state machine write and close.
type conn struct {
	p        *peer
	settings Peer
	tcp      *net.TCPConn
	incoming bool
	began    time.Time
	frames   framer

	open       *Open     // the peer's; guarded by the peer's lock until the hand-over
	yieldUntil time.Time // guarded by the peer's lock

	// Of the receiver's goroutine.
	filter filter
	out    []byte // for the speaker, next
	over   bool   // nothing follows out
	taken  bool   // Read was called

	// Of the speaker's goroutines.
	sent        record
	routesSent  atomic.Uint64
	swallowed   int  // messages of the speaker's own OPEN exchange
	established bool // the speaker's state
	sendHold    time.Duration

	local, remote netip.AddrPort

	mu           sync.Mutex
	wanted       *Ended // the end that somebody wants
	ended        *Ended // the end as it was reported
	inject       []byte // a message that the speaker is to read
	woken        bool
	readDeadline time.Time // that the speaker set
	closed       bool
	writing      bool
	notified     *Notification
	failed       error // of a write
	announced    map[route]struct{}
	limit        Limit
	level        Level
	stale        *time.Timer
	mended       map[Mend]*mendReport
}

// mendReport is about changed UPDATEs of one kind.
type mendReport struct {
	last     Mended
	waiting  bool // an event was sent a moment ago
	reported int  // the count in it
}

func newConn(p *peer, s Peer, tcp *net.TCPConn, incoming bool) *conn {
	_ = tcp.SetKeepAlive(false) // BGP has its own
	return &conn{p: p, settings: s, tcp: tcp, incoming: incoming, began: time.Now(), frames: framer{from: tcp}}
}

// begin prepares the hand-over: the speaker first reads the peer's OPEN and KEEPALIVE.
func (c *conn) begin(l Limit, stale staleness) {
	p, o := c.settings, c.open
	edited, err := o.edited(p)
	if err != nil { // the speaker ends the session for want of an OPEN
		edited = nil
	}
	remote, local := addressOf(c.tcp.RemoteAddr()), addressOf(c.tcp.LocalAddr())
	c.filter = filter{v6: p.Address.Unmap().Is6(), family: o.Family, paths: o.SendsPaths,
		external: p.LocalAS != p.PeerAS, loopback: remote.Addr().IsLoopback() && local.Addr().IsLoopback(), width: 2,
		growth: func() int { return int(c.p.gate.growth.Load()) }}
	if o.FourOctetAS {
		c.filter.width = 4
	}
	c.sent = record{v6: c.filter.v6, paths: o.TakesPaths, off: p.Unrecorded}
	c.limit, c.announced, c.mended = l, map[route]struct{}{}, map[Mend]*mendReport{}
	c.out = append(edited, keepalive()...)
	switch {
	case stale.now:
		c.inject = endOfRIB(c.filter.v6)
	case stale.after != 0:
		c.stale = time.AfterFunc(stale.after, func() {
			if c.p.keepsStale() {
				c.injectMessage(endOfRIB(c.filter.v6))
			}
		})
	}
	c.local, c.remote = local, remote
}

// reportUp comes before the hand-over.
func (c *conn) reportUp() {
	hold, interval := c.open.timers(c.settings)
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

// Read returns the messages of the peer, checked, behind its OPEN and KEEPALIVE.
func (c *conn) Read(b []byte) (int, error) {
	if !c.taken {
		c.taken = true
		if end := c.doomed(); end != nil { // before the speaker took it
			c.finish(*end)
		}
	}
	for {
		if len(c.out) > 0 {
			n := copy(b, c.out)
			c.out = c.out[n:]
			return n, nil
		}
		if c.over {
			return 0, io.EOF
		}
		if m, end := c.interrupted(); m != nil {
			c.injected(m)
			continue
		} else if end != nil {
			c.finish(*end)
			continue
		}
		m, err := c.frames.next()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if c.sleep() {
				continue
			}
			return 0, err
		}
		if err != nil {
			c.finish(*c.refused(c.failure(err)))
			continue
		}
		c.receive(m)
	}
}

// interrupted returns a message to inject, or the end that somebody wants.
func (c *conn) interrupted() (m []byte, end *Ended) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, c.inject = c.inject, nil
	return m, c.wanted
}

// sleep reports whether a read ended because of wake, and restores the speaker's deadline.
func (c *conn) sleep() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.woken
	c.woken = false
	if was {
		_ = c.tcp.SetReadDeadline(c.readDeadline)
	}
	return was
}

// failure returns the error of the connection that was seen first.
func (c *conn) failure(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return c.failed
	}
	return err
}

func (c *conn) injected(m []byte) {
	c.p.synced(true)
	c.out = m
}

// receive passes on a message of the established session, or ends it.
func (c *conn) receive(m []byte) {
	switch m[18] {
	case bgp.BGP_MSG_KEEPALIVE:
		c.out = m
	case bgp.BGP_MSG_UPDATE:
		c.update(m)
	case bgp.BGP_MSG_NOTIFICATION:
		c.finish(Ended{Cause: CauseNotification, Received: readNotification(m)})
	case bgp.BGP_MSG_ROUTE_REFRESH:
		if c.filter.refreshes(m) {
			c.out = m
		}
	default:
		c.finish(Ended{Cause: CauseNotification, Sent: &Notification{Code: fsmCode, Sub: subInEstablished},
			Detail: "it sent a second OPEN"})
	}
}

func (c *conn) update(m []byte) {
	f := c.filter.check(m)
	if f.reset != nil {
		c.finish(Ended{Cause: CauseNotification, Sent: f.reset, Detail: f.why})
		return
	}
	if c.out = f.message; c.out == nil {
		c.out = keepalive() // the peer is alive
	}
	for _, mend := range f.mends {
		c.report(mend)
	}
	if len(f.withdrawn)+len(f.announced) > 0 {
		if l, tooMany := c.countRoutes(f); tooMany {
			c.finish(c.overLimit(l))
			return
		}
		announced := append([]Route(nil), c.filter.list(f.announced)...)
		c.p.receiver.Update(c.filter.list(f.withdrawn), announced, f.nextHop)
	}
	if f.endOfRIB {
		c.p.synced(false)
	}
}

// report passes on that an UPDATE was changed, at most once a second for each kind, the last of a burst included.
func (c *conn) report(m Mended) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mended[m.Mend]
	if r == nil {
		r = &mendReport{}
		c.mended[m.Mend] = r
	}
	m.Count, m.At = r.last.Count+1, time.Now()
	r.last = m
	if !r.waiting {
		c.passOn(r)
	}
}

// passOn sends the event of a report, and another one later if there is more to say then. c is locked.
func (c *conn) passOn(r *mendReport) {
	r.waiting, r.reported = true, r.last.Count
	c.p.emit(r.last)
	time.AfterFunc(mendEvery, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.waiting = false; c.ended == nil && r.last.Count > r.reported {
			c.passOn(r)
		}
	})
}

// countRoutes counts the routes of an UPDATE, and reports whether there are too many now, for which limit.
func (c *conn) countRoutes(f finding) (l Limit, tooMany bool) {
	c.mu.Lock()
	routes(f.withdrawn, c.filter.v6, c.filter.paths, func(r route, _ []byte) { delete(c.announced, r) })
	routes(f.announced, c.filter.v6, c.filter.paths, func(r route, _ []byte) { c.announced[r] = struct{}{} })
	l = c.limit
	c.mu.Unlock()
	return l, c.recount() == TooMany
}

// recount reports the level of the number of routes, if it has changed. The warning comes before the limit, also when
// both are passed at once.
func (c *conn) recount() Level {
	c.mu.Lock()
	was, l := c.level, c.limit
	c.level = l.level(len(c.announced), was)
	is := c.level
	c.mu.Unlock()
	if was == Normal && is == TooMany {
		c.p.emit(Prefixes{Many, l})
	}
	if was != is && is != TooMany {
		c.p.emit(Prefixes{is, l})
	}
	return is
}

// setLimit applies another limit to the routes that came before.
func (c *conn) setLimit(l Limit) {
	c.mu.Lock()
	same, was := c.limit == l, c.level
	if !same {
		c.limit, c.level = l, Normal
	}
	c.mu.Unlock()
	if same {
		return
	}
	switch is := c.recount(); {
	case is == TooMany:
		c.endWith(c.overLimit(l))
	case is == Normal && was != Normal:
		c.p.emit(Prefixes{is, l})
	}
}

// overLimit is the end of a session with too many routes. Its NOTIFICATION has the family and the limit (RFC 4486
// section 4).
func (c *conn) overLimit(l Limit) Ended {
	afi := byte(bgp.AFI_IP)
	if c.filter.v6 {
		afi = bgp.AFI_IP6
	}
	data := binary.BigEndian.AppendUint32([]byte{0, afi, bgp.SAFI_UNICAST}, uint32(l.Most))
	return Ended{Cause: CauseLimit, Sent: &Notification{ceaseCode, subPrefixes, data},
		Detail: fmt.Sprintf("more than %d prefixes", l.Most)}
}

// finish ends the session on this side's or the peer's initiative, with a NOTIFICATION if e has one to send. The
// speaker reads one after which it drops the peer's routes, unless they are kept for a graceful restart: then the
// connection just ends.
func (c *conn) finish(e Ended) {
	c.over = true
	if e.Cause == CauseLimit {
		c.p.setHeld(true)
	}
	e.Established, e.Opened, e.Incoming = true, true, c.incoming
	connection := e.Cause == CauseConnection && e.Detail == "" || e.Cause == CauseReplaced
	if e.Graceful = connection && c.open.Graceful && c.open.RestartTime > 0; e.Graceful {
		e.RestartTime = c.open.RestartTime
		if c.p.keepsStale() { // of an even earlier session (RFC 4724 section 4.2)
			c.injected(endOfRIB(c.filter.v6))
		}
	} else {
		c.out = Notification{Code: ceaseCode}.message()
	}
	c.reportEnd(e)
	if e.Sent != nil {
		_ = c.send(e.Sent.message())
	}
}

// reportEnd reports the end of the session, once.
func (c *conn) reportEnd(e Ended) {
	c.mu.Lock()
	first := c.ended == nil
	if first {
		c.ended = &e
	}
	c.mu.Unlock()
	if first {
		c.p.lost(e)
		c.p.receiver.End()
		c.p.emit(e)
	}
}
