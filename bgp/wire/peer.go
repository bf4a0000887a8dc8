package wire

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/manxnet/manx/bgp/wire/message"
)

const (
	// yieldTime is how long a connection that would lose a collision waits for the OPEN on the other one. Without it
	// each end may establish the connection that the other one closes.
	yieldTime = 2 * time.Second
	// connectTime is how long a connection of the peer waits for our attempt to connect, which may be on its way to the
	// peer. A peer that is there answers sooner.
	connectTime = 200 * time.Millisecond
	// replaceAfter is how long a session must have been up before a new connection of the peer counts as its restart.
	// An earlier one is the loser of a collision.
	replaceAfter = 2 * time.Second
	// Connections of one peer that are let into the OPEN exchange: a burst, and then one in an interval.
	acceptsAtOnce = 20
	acceptEvery   = 500 * time.Millisecond
)

// peer is one neighbour.
type peer struct {
	gate     *Gate
	addr     netip.Addr
	receiver Receiver
	accepts  *rate.Limiter

	mu      sync.Mutex
	s       Peer
	changed chan struct{} // closed and replaced at each change
	active  bool          // the speaker has reported Active last
	ready   bool          // and has got no connection since
	held    bool          // no connections until further notice
	closed  bool
	opening []*conn // connections in the OPEN exchange
	up      *conn   // the one that was handed over
	upAt    time.Time
	limit   Limit

	connecting bool      // this side connects, and the connection is not in the OPEN exchange yet
	failures   int       // attempts to connect, since the last session
	nextDial   time.Time // zero: this side does not connect now

	stale    bool // the speaker may keep routes of a lost session
	injected int  // End-of-RIBs that the speaker has not reported yet
}

func newPeer(g *Gate, s Peer, r Receiver) *peer {
	return &peer{gate: g, addr: s.Address, s: s, receiver: r, changed: make(chan struct{}),
		accepts: rate.NewLimiter(rate.Every(acceptEvery), acceptsAtOnce)}
}

func (p *peer) emit(e Event) { p.gate.cfg.Event(p.addr, e) }

func (p *peer) settings() Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.s
}

// notify wakes up all that waits for a change. p is locked.
func (p *peer) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *peer) setReady(ready bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active = ready
	if p.ready != ready {
		p.ready = ready
		p.notify()
	}
}

func (p *peer) setHeld(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.failures = held, 0
	for _, c := range p.opening {
		if held {
			c.doom(Ended{Cause: CauseLimit, Sent: message.Cease(message.SubRejected)})
		}
	}
	p.notify()
}

func (p *peer) setLimit(l Limit) {
	p.mu.Lock()
	p.limit = l
	c := p.up
	p.mu.Unlock()
	if c != nil {
		c.setLimit(l)
	}
}

// change takes over other settings; connections of the old ones end.
func (p *peer) change(s Peer) {
	p.mu.Lock()
	p.s, p.failures = s, 0
	p.notify()
	p.mu.Unlock()
	p.end(CauseSettings, message.Cease(message.SubOtherChange))
}

func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.opening {
		c.doom(Ended{Cause: CauseSettings})
	}
	p.notify()
}

// end ends all connections. Those in the OPEN exchange close with the same NOTIFICATION.
func (p *peer) end(cause Cause, n *message.Notification) {
	p.mu.Lock()
	for _, c := range p.opening {
		c.doom(Ended{Cause: cause, Sent: n})
	}
	up := p.up
	p.notify()
	p.mu.Unlock()
	if up != nil {
		up.endWith(Ended{Cause: cause, Sent: n})
	}
}

func (p *peer) established() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.up
}

// accept begins the OPEN exchange on a connection of the peer, or closes it. RFC 4486 would like a Cease for that, but
// many routers wait for a minute or more after a NOTIFICATION, and a node is often a few seconds later than its router.
func (p *peer) accept(tcp *net.TCPConn, s Peer, local netip.Addr) {
	p.mu.Lock()
	refuse := p.closed || p.held || !p.accepts.Allow()
	p.mu.Unlock()
	switch {
	case refuse:
		_ = tcp.Close()
	case s.Source.IsValid() && local != s.Source.Unmap().WithZone(""):
		p.emit(OtherAddress{Local: local})
		_ = tcp.Close()
	default:
		go p.open(newConn(p, s, tcp, true))
	}
}

// enter adds a connection to those in the OPEN exchange. It returns false if there may be none.
func (p *peer) enter(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.incoming {
		p.endConnecting()
	}
	if p.closed || p.held || p.s != c.settings || p.up != nil && !c.incoming {
		return false
	}
	p.opening = append(p.opening, c)
	p.notify()
	return true
}

func (p *peer) leave(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(c)
}

func (p *peer) forget(c *conn) {
	for i, other := range p.opening {
		if other == c {
			p.opening = append(p.opening[:i:i], p.opening[i+1:]...)
			p.notify()
			return
		}
	}
}

// compete decides, when the OPEN of the peer has come on c, which of its connections stay (RFC 4271 section 6.8, RFC
// 4724 section 5). It returns whether c does.
func (p *peer) compete(c *conn, now time.Time) bool {
	p.mu.Lock()
	lost := Ended{Cause: CauseCollision, Sent: message.Cease(message.SubCollision)}
	var replaced *conn
	if up := p.up; up != nil && !up.ending() {
		if !c.incoming || !up.open.Graceful || c.began.Before(p.upAt.Add(replaceAfter)) {
			p.mu.Unlock()
			return false
		}
		replaced = up
	}
	stays := true
	for _, other := range p.opening {
		switch {
		case other == c || other.open == nil:
		case other.incoming == c.incoming: // the peer, or we, gave up the older one
			other.doom(lost)
		case c.beats(other):
			other.doom(lost)
		default:
			stays = false
		}
	}
	c.yieldUntil = now.Add(yieldTime)
	p.notify()
	p.mu.Unlock()
	if replaced != nil {
		replaced.endWith(Ended{Cause: CauseReplaced})
	}
	return stays
}

// beats reports whether c, rather than a connection of the other direction, survives a collision: the one that the side
// with the greater router ID has opened, and with equal ones the side with the greater AS (RFC 6286 section 2.3). The
// peer's OPEN has come on c.
func (c *conn) beats(*conn) bool {
	ours, theirs := c.p.gate.cfg.RouterID, c.open.RouterID
	weAreGreater := theirs.Less(ours) || theirs == ours && c.settings.LocalAS > c.open.AS
	return weAreGreater != c.incoming
}

// mayConfirm reports whether c may send its KEEPALIVE, after which there is no way back; if not, changed is closed when
// that may be different, and it is different at the latest after wait, if that is not 0.
func (p *peer) mayConfirm(c *conn, now time.Time) (may bool, changed <-chan struct{}, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ready || p.up != nil || p.held {
		return false, p.changed, 0
	}
	// The peer may come to a connection of ours only after the session is up. It would take it for the sign that we
	// have restarted, and end the session (RFC 4724 section 5): a second restart, at which routes go. So it has to
	// answer ours first, whichever of them survives.
	for _, other := range p.opening {
		if other.incoming != c.incoming && other.open == nil && (c.incoming || !c.beats(other)) &&
			now.Before(c.yieldUntil) {
			return false, p.changed, c.yieldUntil.Sub(now)
		}
	}
	if until := c.yieldUntil.Add(connectTime - yieldTime); c.incoming && p.connecting && now.Before(until) {
		return false, p.changed, until.Sub(now)
	}
	return true, p.changed, 0
}

// endConnecting records that an attempt to connect is over. p is locked.
func (p *peer) endConnecting() {
	p.connecting = false
	p.notify()
}

// handOver makes c the established session. It returns false if it must not be.
func (p *peer) handOver(c *conn, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.held || p.up != nil || !p.ready || c.doomed() != nil {
		return false
	}
	p.forget(c)
	for _, other := range p.opening {
		if other.open != nil { // it has come a moment ago, and compete has not compared it yet
			other.doom(Ended{Cause: CauseCollision, Sent: message.Cease(message.SubCollision)})
		}
	}
	p.up, p.upAt, p.ready = c, now, false
	c.begin(p.limit, p.afterRestart(c.open))
	p.notify()
	return true
}

// takenBack records that the speaker has closed the established connection, and whether it had used it.
func (p *peer) takenBack(c *conn, used bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.up == c {
		p.up = nil
		if !used {
			p.ready = p.active
		}
		p.notify()
	}
}

// lost records the end of a session: whether the speaker keeps the peer's routes, and how long.
func (p *peer) lost(e Ended) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Established { // else the speaker has not used it
		p.stale = e.Graceful
		p.failures, p.nextDial = 0, time.Time{}
	}
}

// staleness is the state of the routes that the speaker keeps of an earlier session.
type staleness struct {
	now   bool          // they have to go at once
	after time.Duration // they have to go then, if no End-of-RIB has come; 0: there are none
}

// afterRestart decides about the routes of the session before (RFC 4724 section 4.2). They go at once if the new OPEN
// does not offer graceful restart of the family any more, or says that the peer has restarted and forwards nothing.
// After a mere loss of TCP, BIRD and GoBGP set neither R nor F, and forward: their routes stay.
func (p *peer) afterRestart(o *Open) staleness {
	switch {
	case !p.stale:
		return staleness{}
	case !o.Graceful, o.Restarted && !o.Forwarding:
		return staleness{now: true}
	}
	return staleness{after: max(o.RestartTime, time.Second)}
}

// synced records that the peer's End-of-RIB has come, or one was injected in its place.
func (p *peer) synced(injected bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stale = false
	if injected {
		p.injected++
	}
}

// keepsStale reports whether the speaker may still keep routes of an earlier session. An End-of-RIB too many does no
// harm.
func (p *peer) keepsStale() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stale
}

func (p *peer) takeInjected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.injected == 0 {
		return false
	}
	p.injected--
	return true
}
