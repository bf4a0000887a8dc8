package speaker

import (
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

const countersAge = 5 * time.Second // counters are read again when somebody asks and they are older

func (t *statusTable) countersDue() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := time.Since(t.read) >= countersAge
	if due {
		t.read = time.Now()
	}
	return due
}

// readCounters asks GoBGP for the counters of one peer, or of all.
func (s *Speaker) readCounters(addr string, advertised bool) {
	run := s.current()
	if run == nil {
		return
	}
	read := map[netip.Addr]*api.Peer{}
	err := run.srv.ListPeer(s.ctx, &api.ListPeerRequest{Address: addr, EnableAdvertised: advertised}, func(p *api.Peer) {
		if a, err := netip.ParseAddr(p.GetConf().GetNeighborAddress()); err == nil {
			read[a.Unmap()] = p
		}
	})
	if err != nil {
		return // the server is being replaced
	}
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	now := time.Now()
	for a, p := range read {
		if e := s.status.entries[a]; e != nil {
			e.count(p, now, advertised)
		}
	}
}

func (e *sessionEntry) count(p *api.Peer, now time.Time, advertised bool) {
	c := Counters{At: now, Advertised: e.counters.Advertised}
	for _, f := range p.GetAfiSafis() {
		c.Received += f.GetState().GetReceived()
		c.Accepted += f.GetState().GetAccepted()
		if advertised {
			c.Advertised = f.GetState().GetAdvertised()
		}
	}
	in, out := p.GetState().GetMessages().GetReceived(), p.GetState().GetMessages().GetSent()
	c.MessagesIn, c.MessagesOut, c.UpdatesIn, c.UpdatesOut = in.GetTotal(), out.GetTotal(), in.GetUpdate(), out.GetUpdate()
	e.counters = c
	if t := p.GetTimers().GetState(); e.state == gobgp.BGP_FSM_ESTABLISHED && t != nil {
		e.hold = time.Duration(t.GetNegotiatedHoldTime()) * time.Second
		e.keepalive = time.Duration(t.GetKeepaliveInterval()) * time.Second
		if a, err := netip.ParseAddr(p.GetTransport().GetLocalAddress()); err == nil && !a.IsUnspecified() {
			e.local = a.Unmap()
		}
	}
}

// learnTimers reads what was negotiated, once after a session has come up: the events do not tell.
func (s *Speaker) learnTimers(addr netip.Addr) {
	s.readCounters(addr.String(), false)
	s.status.change(addr, func(*sessionEntry, time.Time) {})
}
