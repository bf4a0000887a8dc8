package speaker

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// ResetKind says how much of a session is reset.
type ResetKind int

const (
	ResetSoftIn  ResetKind = iota // look at received routes again
	ResetSoftOut                  // send all routes again, and withdraw those that may not be sent any more
	ResetHard                     // end the session with Cease 4 (RFC 4486); the peer drops our routes until it is up again
)

// ResetSession resets a session that is established; others are refused.
func (s *Speaker) ResetSession(ctx context.Context, addr netip.Addr, kind ResetKind) error {
	addr = addr.Unmap()
	run := s.current()
	if run == nil || !s.status.isEstablished(addr) {
		return fmt.Errorf("bgp session with %s is not established; there is nothing to reset", addr)
	}
	req := &api.ResetPeerRequest{Address: addr.String(), Soft: kind != ResetHard}
	switch kind {
	case ResetSoftIn:
		req.Direction = api.ResetPeerRequest_DIRECTION_IN
	case ResetSoftOut:
		req.Direction = api.ResetPeerRequest_DIRECTION_OUT
	}
	return run.srv.ResetPeer(ctx, req)
}

func (t *statusTable) isEstablished(addr netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	return e != nil && e.state == gobgp.BGP_FSM_ESTABLISHED
}
