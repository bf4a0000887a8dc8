package kubenode

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
)

// downFor is the time that a session is down before an Event is recorded: that of a restarting peer is back sooner.
const downFor = 20 * time.Second

// Sessions decides on Events about BGP sessions. Each session of a BGPPeer counts separately. Those of the node-to-node
// mesh count together, once half of them are down: the reboot of one node causes no Event on the other nodes.
type Sessions struct {
	events   *Events
	down     map[netip.Addr]time.Time // time since which sessions are down
	reported map[netip.Addr]bool      // those reported down
	mesh     bool                     // the mesh is reported down
}

// NewSessions returns Sessions that record Events.
func NewSessions(e *Events) *Sessions {
	return &Sessions{events: e, down: map[netip.Addr]time.Time{}, reported: map[netip.Addr]bool{}}
}

// Evaluate evaluates the current sessions.
func (s *Sessions) Evaluate(now time.Time, list []speaker.SessionStatus) {
	wanted := map[netip.Addr]bool{}
	mesh, meshDown := 0, 0
	var example speaker.SessionStatus
	for _, x := range list {
		if x.Session.Workload != "" {
			continue // pods come and go
		}
		wanted[x.Session.Address] = true
		long := s.downLong(now, x)
		if x.Session.Type != bgp.SessionMesh {
			s.recordSession(x, long)
			continue
		}
		if mesh++; long {
			meshDown++
			example = x
		}
	}
	for a := range s.down {
		if !wanted[a] {
			delete(s.down, a)
			delete(s.reported, a)
		}
	}
	s.recordMesh(mesh, meshDown, example)
}

func (s *Sessions) downLong(now time.Time, x speaker.SessionStatus) bool {
	a := x.Session.Address
	if x.Phase == speaker.PhaseEstablished {
		delete(s.down, a)
		return false
	}
	if s.down[a].IsZero() {
		s.down[a] = now
	}
	return now.Sub(s.down[a]) >= downFor
}

func (s *Sessions) recordSession(x speaker.SessionStatus, long bool) {
	a := x.Session.Address
	switch {
	case long && !s.reported[a]:
		s.reported[a] = true
		s.events.Warn(SessionDown, fmt.Sprintf("the BGP session with %s is down: %s", a, x.Reason))
	case s.reported[a] && x.Phase == speaker.PhaseEstablished:
		delete(s.reported, a)
		s.events.note(SessionUp, fmt.Sprintf("the BGP session with %s is up again", a))
	}
}

func (s *Sessions) recordMesh(all, down int, example speaker.SessionStatus) {
	switch {
	case !s.mesh && all > 0 && 2*down >= all:
		s.mesh = true
		s.events.Warn(SessionDown, fmt.Sprintf("%d of %d BGP sessions of the node-to-node mesh are down, such as "+
			"that with %s: %s",
			down, all, example.Session.Address, example.Reason))
	case s.mesh && 2*down < all:
		s.mesh = false
		s.events.note(SessionUp, fmt.Sprintf("%d of %d BGP sessions of the node-to-node mesh are up again", all-down,
			all))
	}
}
