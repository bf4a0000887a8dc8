package speaker

import (
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgpinside"
)

// peerTap is the speaker's data of a peer for the goroutines of its connections.
type peerTap struct {
	idle       atomic.Pointer[gobgpinside.Idle]   // of the FSM that was made last; nil: none was made
	outgoing   atomic.Pointer[gobgpinside.Outbox] // of that FSM
	adding     sync.Mutex                         // while GoBGP has the peer and its FSM is not mended yet
	restarting atomic.Bool                        // the session existed before the restart that is under way
	withheld   atomic.Bool                        // GoBGP would take a connection, but the path is to be up first
	uplink     atomic.Pointer[string]             // of the last session: see Config.Uplink; empty for internal peers
	received   received
	counted    budget        // for counting the prefixes advertised to the peer
	changes    atomic.Uint64 // of routes of others when the session was not up yet
}

// taps holds the taps of all configured sessions.
type taps struct {
	mu    sync.Mutex
	peers map[netip.Addr]*peerTap
}

// of returns the one of a peer, nil if it has no session.
func (t *taps) of(peer netip.Addr) *peerTap {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[peer]
}

// all returns the taps of all sessions.
func (t *taps) all() map[netip.Addr]*peerTap {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.peers)
}

// received returns the received routes of all sessions.
func (t *taps) received() map[netip.Addr]*received {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[netip.Addr]*received, len(t.peers))
	for addr, tap := range t.peers {
		all[addr] = &tap.received
	}
	return all
}

// setTaps makes those of new sessions and forgets those of sessions that are gone.
func (s *Speaker) setTaps(changed []bgp.Session, gone []netip.Addr) {
	t := &s.taps
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers == nil {
		t.peers = map[netip.Addr]*peerTap{}
	}
	for _, addr := range gone {
		delete(t.peers, addr)
	}
	for _, x := range changed {
		peer := x.Address.Unmap()
		if t.peers[peer] == nil {
			t.peers[peer] = &peerTap{}
		}
	}
}

// resetTaps drops the data of all sessions, because the speaker restarts.
func (s *Speaker) resetTaps() {
	s.taps.mu.Lock()
	defer s.taps.mu.Unlock()
	for _, tap := range s.taps.peers {
		tap.received.End()
	}
}
