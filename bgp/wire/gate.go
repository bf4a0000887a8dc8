package wire

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/manxnet/manx/bgp/wire/message"
)

// Peer has the settings of a session that concern the wire. Two equal ones need no new connection.
type Peer struct {
	Address  netip.Addr // with a zone if it is a link-local one
	Port     uint16     // to connect to; 0: 179
	Passive  bool       // only the peer connects
	Source   netip.Addr // invalid: the kernel chooses, and the peer may connect to any address
	Password string     // MD5 (RFC 2385); empty: none

	TTL    uint8 // of the packets that we send; 0: the kernel's
	MinTTL uint8 // that packets of the peer must have (RFC 5082); 0: any

	LocalAS, PeerAS uint32
	Hold, Keepalive uint16 // seconds; Keepalive 0: a third of the hold time
	RestartTime     uint16 // seconds, that we announce
	Unrecorded      bool   // routes sent are not recorded, and withdrawals not checked: see Advertised
}

// Limit is the number of routes that a peer may announce, and the number above which there is a warning; 0: none.
type Limit struct{ Warn, Most int }

// Level is the level of a number of routes against its limit.
type Level int

const (
	Normal  Level = iota
	Many          // so many that there is a warning
	TooMany       // more than the limit
)

// level returns the level of a number of routes. A number above a limit has to fall clearly below the warning.
func (l Limit) level(n int, was Level) Level {
	switch {
	case l.Most == 0:
		return Normal
	case n > l.Most:
		return TooMany
	case n > l.Warn, was != Normal && n > l.Warn*9/10:
		return Many
	}
	return Normal
}

// Receiver gets the routes of a peer's UPDATEs before the speaker does, in the order of the messages, on the goroutine
// that reads the connection. The lists are valid during the call alone. Routes that the gate turned into withdrawals
// are withdrawn.
type Receiver interface {
	Begin() // a session comes up
	Update(withdrawn, announced []message.Route, nextHop netip.Addr)
	End() // it has ended
}

// Config has the surroundings of a Gate.
type Config struct {
	RouterID     netip.Addr
	ConnectRetry time.Duration // at most between two attempts to connect
	OpenTimeout  time.Duration // for the OPEN exchange

	// HandOver takes a connection on which the OPEN exchange is finished. The speaker has to be in the state Active of
	// RFC 4271 for that peer (Ready). The context ends with the gate.
	HandOver func(context.Context, net.Conn)
	// Event gets what happens on the wire of a peer. It must not block, nor call the Gate.
	Event func(peer netip.Addr, e Event)
	// Stranger gets the address of a host that connected and has no session.
	Stranger func(remote, local netip.Addr)
	// Accepting gets why connections are not accepted on an address, and nil when they are again.
	Accepting func(address netip.AddrPort, err error)
	// Restarting reports whether this side still restarts, so that its OPENs have the flag R (RFC 4724 section 3).
	Restarting func(peer netip.Addr) bool
	// Deferring reports whether End-of-RIBs of this side are held back, until EndDeferral is called, and at most for
	// the time Deferral (RFC 4724 section 4.1, Selection_Deferral_Timer). The routes themselves are not.
	Deferring func() bool
	Deferral  time.Duration
	// Waiting reports whether the speaker has messages for a peer that it has not written.
	Waiting func(peer netip.Addr) bool
	// Forwarding returns for how long the kernel has kept the routes of this host, at least.
	Forwarding func() time.Duration
	// Opening is called before the speaker is Established, on the goroutine of its state machine. paths: routes that
	// are sent have identifiers (RFC 7911).
	Opening func(peer netip.Addr, paths bool)
	// Writing is called by the speaker's sender before each UPDATE, also one that is not sent.
	Writing func(peer netip.Addr)
	// Leaving is called when the speaker leaves the state Established, on the goroutine of its state machine.
	Leaving func(peer netip.Addr, cause Cause)
}

// Gate owns the connections of all peers.
type Gate struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	growth atomic.Int64

	accepting accepting

	mu        sync.Mutex
	peers     map[netip.Addr]*peer
	listeners []*listener
}

// New makes a gate without listeners and peers.
func New(cfg Config) *Gate {
	ctx, cancel := context.WithCancel(context.Background())
	return &Gate{cfg: cfg, ctx: ctx, cancel: cancel, peers: map[netip.Addr]*peer{}}
}

// SetGrowth sets by how many bytes the attributes of a route may grow before it is passed on.
func (g *Gate) SetGrowth(n int) { g.growth.Store(int64(n)) }

// Set adds a peer, or changes its settings; a change ends its connections. It fails if a listener cannot protect the
// session with its password; there is no such peer then.
func (g *Gate) Set(s Peer, limit Limit, r Receiver) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.peers[s.Address]
	if p != nil && p.settings() == s {
		p.setLimit(limit)
		return nil
	}
	var errs []error
	for _, l := range g.listeners {
		errs = append(errs, l.setKey(s.Address, s.Password))
	}
	if err := errors.Join(errs...); err != nil {
		g.remove(s.Address)
		return err
	}
	if p == nil {
		p = newPeer(g, s, r)
		g.peers[s.Address] = p
		p.setLimit(limit)
		go p.dialing()
		return nil
	}
	p.setLimit(limit)
	p.change(s)
	return nil
}

// Remove forgets a peer, and closes its connections.
func (g *Gate) Remove(addr netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.remove(addr)
}

func (g *Gate) remove(addr netip.Addr) {
	p := g.peers[addr]
	if p == nil {
		return
	}
	delete(g.peers, addr)
	p.close()
	if c := p.established(); c != nil { // the speaker may not have taken it yet
		c.endWith(Ended{Cause: CauseSettings, Sent: message.Cease(message.SubDeconfigured)})
	}
	for _, l := range g.listeners {
		_ = l.setKey(addr, "") // a key that is left would only keep strangers out
	}
}

func (g *Gate) peer(addr netip.Addr) *peer {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.peers[addr]
}

// Ready says whether the speaker takes a connection of a peer: it is in the state Active.
func (g *Gate) Ready(addr netip.Addr, ready bool) {
	if p := g.peer(addr); p != nil {
		p.setReady(ready)
	}
}

// SetLimit changes the limit of a peer's routes. It applies to those that were received before, too.
func (g *Gate) SetLimit(addr netip.Addr, l Limit) {
	if p := g.peer(addr); p != nil {
		p.setLimit(l)
	}
}

// Hold refuses connections of a peer until Release.
func (g *Gate) Hold(addr netip.Addr) {
	if p := g.peer(addr); p != nil {
		p.setHeld(true)
	}
}

// Release lets a peer connect again that is held down because of its number of routes.
func (g *Gate) Release(addr netip.Addr) {
	if p := g.peer(addr); p != nil {
		p.setHeld(false)
	}
}

// End ends the established session of a peer with a NOTIFICATION. The peer's routes are dropped.
func (g *Gate) End(addr netip.Addr, n *message.Notification, cause Cause) {
	if p := g.peer(addr); p != nil {
		p.end(cause, n)
	}
}

// EndDeferral has the End-of-RIBs sent that were held back.
func (g *Gate) EndDeferral() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.peers {
		if c := p.established(); c != nil {
			c.endDeferral()
		}
	}
}

// Close closes the listeners and all connections that were not handed over, without a NOTIFICATION.
func (g *Gate) Close() {
	g.cancel()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.listeners {
		_ = l.socket.Close()
	}
	for _, p := range g.peers {
		p.close()
	}
	clear(g.peers)
}

// NotAccepting returns why connections are not accepted, empty if they are.
func (g *Gate) NotAccepting() string { return g.accepting.why() }

// Advertised returns the UPDATEs by which the peer was sent the routes that it has from us, as they were sent; one
// UPDATE stands for all its routes that were not withdrawn since. ok is false if there is no session, or its routes are
// not recorded.
func (g *Gate) Advertised(addr netip.Addr) (list []message.Sent, ok bool) {
	if p := g.peer(addr); p != nil {
		if c := p.established(); c != nil && !c.settings.Unrecorded {
			return c.sent.List(), true
		}
	}
	return nil, false
}

// Busy reports whether something is under way to a peer: the speaker has messages for it, or has just written some.
func (g *Gate) Busy(addr netip.Addr) bool {
	if p := g.peer(addr); p != nil {
		if c := p.established(); c != nil {
			return g.cfg.Waiting(addr) || c.busy()
		}
	}
	return false
}

// Sent returns those of some masked prefixes of which a peer has a route from us; none if its routes are not recorded,
// or have identifiers (RFC 7911).
func (g *Gate) Sent(addr netip.Addr, prefixes map[netip.Prefix]bool) []netip.Prefix {
	if p := g.peer(addr); p != nil {
		if c := p.established(); c != nil {
			return c.sent.Among(prefixes)
		}
	}
	return nil
}

// Withdraw withdraws a route in the result of Sent from a peer that has got it before a time. It returns false if
// that cannot be done now: the peer has got it later, or takes no data.
func (g *Gate) Withdraw(addr netip.Addr, prefix netip.Prefix, before time.Time) bool {
	if p := g.peer(addr); p != nil {
		if c := p.established(); c != nil {
			return c.withdraw(prefix, before)
		}
	}
	return true
}

// Offered returns the peer's OPEN of the established session, nil if there is none.
func (g *Gate) Offered(addr netip.Addr) *Open {
	if p := g.peer(addr); p != nil {
		if c := p.established(); c != nil {
			return c.open
		}
	}
	return nil
}

// Injected reports whether the End-of-RIB that the speaker has got from a peer was not the peer's own; it is to be
// called once for each.
func (g *Gate) Injected(addr netip.Addr) bool {
	if p := g.peer(addr); p != nil {
		return p.takeInjected()
	}
	return false
}
