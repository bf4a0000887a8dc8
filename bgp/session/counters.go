package session

import (
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

// Count takes over the counters of a peer from GoBGP. advertised reports whether p counts the advertised prefixes.
func (t *Table) Count(addr netip.Addr, p *api.Peer, now time.Time, advertised bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil {
		e.count(p, now, advertised)
	}
}

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
}
