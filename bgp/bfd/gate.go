package bfd

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Drops counts packets from the address of a session's remote that did not reach the session, by reason.
type Drops struct {
	TTL           uint64 // forwarded more often than allowed (RFC 5881 section 5)
	Port          uint64 // sent from a port of a system service
	Malformed     uint64 // RFC 5880 section 6.8.6 has them discarded
	Discriminator uint64 // for another session
	Rate          uint64 // too many
	Unconfirmed   uint64 // reported state Down, without proof of knowing the session, while it was up
	LastTTL       uint8  // of the last one dropped for it
}

// String lists the dropped packets in words; empty if there are none.
func (d Drops) String() string {
	var parts []string
	for _, p := range []struct {
		n    uint64
		text string
	}{
		{d.TTL, fmt.Sprintf("with too low a TTL (the last had %d)", d.LastTTL)}, {d.Port, "from a port below 1024"},
		{d.Malformed, "malformed"}, {d.Discriminator, "for another session"}, {d.Rate, "too many"},
		{d.Unconfirmed, "that said it is down without naming the session"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.text))
		}
	}
	return strings.Join(parts, ", ")
}

// The packets that a remote may send. A session that is up needs those that carry its discriminator, which a stranger
// has to guess. Other packets can be forged, and have a limit of their own.
const (
	perInterval  = 4  // several times the rate that we requested
	leastRate    = 50 // a second; also while the remote does not know yet that we request fewer
	burst        = 100
	strangeRate  = 10 // without a discriminator: once a second is usual (RFC 5880 section 6.8.3)
	strangeBurst = 20
)

// lowestPort is the first port of no system service. RFC 5881 section 4 requires 49152 or more, but BIRD on Linux uses
// net.ipv4.ip_local_port_range, which begins at 32768.
const lowestPort = 1024

// gate decides about packets from the address of one session's remote before they cost anything. Only its counters and
// settings are shared between goroutines.
type gate struct {
	my       uint32
	multihop bool
	minTTL   atomic.Uint32
	lastTTL  atomic.Uint32
	known    *rate.Limiter
	strange  *rate.Limiter

	ttl, port, malformed, discriminator, excess atomic.Uint64
}

func newGate(my uint32, s Session) *gate {
	g := &gate{my: my, multihop: s.Multihop,
		known: rate.NewLimiter(0, burst), strange: rate.NewLimiter(strangeRate, strangeBurst)}
	g.configure(s)
	return g
}

// configure takes over settings that may change while the session runs.
func (g *gate) configure(s Session) {
	g.minTTL.Store(maxTTL)
	if s.Multihop {
		g.minTTL.Store(uint32(s.MinTTL))
	}
	g.known.SetLimit(max(leastRate, rate.Limit(perInterval*float64(time.Second)/float64(s.Receive))))
}

// admits reports whether a packet may be processed further.
func (g *gate) admits(b []byte, port uint16, ttl int, now time.Time) bool {
	switch {
	case ttl < int(g.minTTL.Load()):
		g.ttl.Add(1)
		g.lastTTL.Store(uint32(ttl))
		return false
	case port < lowestPort:
		g.port.Add(1)
		return false
	case len(b) < packetLength:
		g.malformed.Add(1)
		return false
	}
	limit := g.known
	switch binary.BigEndian.Uint32(b[8:]) {
	case g.my:
	case 0:
		limit = g.strange
	default:
		g.discriminator.Add(1)
		return false
	}
	if !limit.AllowN(now, 1) {
		g.excess.Add(1)
		return false
	}
	return true
}

func (g *gate) drops() Drops {
	return Drops{TTL: g.ttl.Load(), LastTTL: uint8(g.lastTTL.Load()), Port: g.port.Load(),
		Malformed:     g.malformed.Load(),
		Discriminator: g.discriminator.Load(), Rate: g.excess.Load()}
}

// gates holds the gates of all sessions by the address of the remote. Their lock is their own and is held only briefly.
type gates struct {
	mu  sync.RWMutex
	all map[netip.Addr]*gate
}

func (g *gates) of(remote netip.Addr) *gate {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.all[remote]
}

func (g *gates) put(remote netip.Addr, one *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = map[netip.Addr]*gate{}
	}
	g.all[remote] = one
}

func (g *gates) remove(remote netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, remote)
}

// arrived takes a packet from the network. It runs on the goroutine of the socket; a dropped packet touches no lock of
// the engine.
func (e *Engine) arrived(b []byte, from netip.AddrPort, ttl int, multihop bool) {
	g, now := e.gates.of(from.Addr().Unmap()), time.Now()
	if g == nil || g.multihop != multihop || !g.admits(b, from.Port(), ttl, now) {
		return
	}
	p, err := parse(b)
	if err != nil {
		g.malformed.Add(1)
		return
	}
	e.received(p, from.Addr().Unmap(), g, now)
}
