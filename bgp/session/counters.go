package session

import (
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// Count takes over the counters and timers of a peer from GoBGP, and returns the number of received prefixes.
// advertised reports whether p counts the advertised prefixes.
func (t *Table) Count(addr netip.Addr, p *api.Peer, now time.Time, advertised bool) (received int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil {
		e.count(p, now, advertised)
		return int(e.counters.Received)
	}
	return 0
}

// Refresh publishes a session whose counters or timers were read, if they change its status.
func (t *Table) Refresh(addr netip.Addr) { t.change(addr, func(*entry, time.Time) {}) }

func (e *entry) count(p *api.Peer, now time.Time, advertised bool) {
	c := Counters{At: now, Advertised: e.counters.Advertised, AdvertisedAt: e.counters.AdvertisedAt}
	for _, f := range p.GetAfiSafis() {
		c.Received += f.GetState().GetReceived()
		c.Accepted += f.GetState().GetAccepted()
		if advertised {
			c.Advertised, c.AdvertisedAt = f.GetState().GetAdvertised(), now
		}
	}
	in, out := p.GetState().GetMessages().GetReceived(), p.GetState().GetMessages().GetSent()
	c.MessagesIn, c.MessagesOut, c.UpdatesIn, c.UpdatesOut = in.GetTotal(), out.GetTotal(), in.GetUpdate(),
		out.GetUpdate()
	e.counters = c
	if t := p.GetTimers().GetState(); e.fsm == gobgp.BGP_FSM_ESTABLISHED && t != nil {
		e.peer.hold = time.Duration(t.GetNegotiatedHoldTime()) * time.Second
		e.peer.keepalive = time.Duration(t.GetKeepaliveInterval()) * time.Second
		if a, err := netip.ParseAddr(p.GetTransport().GetLocalAddress()); err == nil && !a.IsUnspecified() {
			e.peer.local = a.Unmap()
		}
	}
}
