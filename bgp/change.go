package bgp

import (
	"net/netip"
	"slices"
)

// SessionChange is the cost of a difference between two sessions with one address.
type SessionChange int

const (
	ChangeNone SessionChange = iota
	// takes effect with the next OPEN: nothing happens until the session is down for another reason
	ChangeDefer
	ChangeRestart // the session goes down and comes back with new settings
	ChangeReplace // as ChangeRestart, but the neighbour has to be removed and added
)

// Resets reports whether the session goes down.
func (c SessionChange) Resets() bool { return c == ChangeRestart || c == ChangeReplace }

// CompareSessions returns how one session becomes another with the same address. A field outside Wire, like
// filters, next hop mode and BFD, changes while the session is up.
func CompareSessions(old, new Session) SessionChange {
	o, n := old.Wire(), new.Wire()
	if o == n {
		return ChangeNone
	}
	if o.ReflectorClient != n.ReflectorClient || o.ReflectorClusterID != n.ReflectorClusterID {
		return ChangeReplace
	}
	o.Hold, o.Keepalive, o.Restart = n.Hold, n.Keepalive, n.Restart
	if o == n {
		return ChangeDefer
	}
	return ChangeRestart
}

// Equal reports whether the two are the same session with the same settings.
func (s Session) Equal(o Session) bool {
	return s.Address == o.Address && s.Port == o.Port && s.Type == o.Type && slices.Equal(s.From, o.From) &&
		s.LocalAS == o.LocalAS && s.PeerAS == o.PeerAS && s.Source == o.Source && s.Via == o.Via &&
		s.Passive == o.Passive && s.Password == o.Password && s.PasswordFrom == o.PasswordFrom &&
		s.PasswordError == o.PasswordError && s.MultihopTTL == o.MultihopTTL && s.TTLSecurity == o.TTLSecurity &&
		s.HoldSeconds == o.HoldSeconds && s.KeepaliveSeconds == o.KeepaliveSeconds &&
		s.RestartSeconds == o.RestartSeconds && s.ReflectorClient == o.ReflectorClient &&
		s.ReflectorClusterID == o.ReflectorClusterID && s.AllowOwnAS == o.AllowOwnAS && s.NextHop == o.NextHop &&
		slices.Equal(s.Filters, o.Filters) && s.Outsider == o.Outsider && s.Workload == o.Workload &&
		s.MaxPrefixes == o.MaxPrefixes && s.Drain == o.Drain && s.BFD == o.BFD
}

// Wire has the settings of a session that determine its connection and its OPEN, with all defaults applied.
type Wire struct {
	Address, Source, ReflectorClusterID netip.Addr
	Port                                uint16
	LocalAS, PeerAS, AllowOwnAS         uint32
	Passive, ReflectorClient            bool
	Password                            string
	TTL, TTLSecurity                    uint8
	Hold, Keepalive, Restart            uint32 // seconds
}

// Wire applies the defaults.
func (s Session) Wire() Wire {
	w := Wire{
		Address: s.Address.Unmap(), Source: s.Source, ReflectorClusterID: s.ReflectorClusterID, Port: s.Port,
		LocalAS: s.LocalAS, PeerAS: s.PeerAS, AllowOwnAS: min(s.AllowOwnAS, 255), Passive: s.Passive,
		ReflectorClient: s.ReflectorClient,
		Password:        s.Password, TTLSecurity: s.TTLSecurity,
		Hold: orDefault(s.HoldSeconds, holdSeconds), Restart: min(orDefault(s.RestartSeconds, defaultRestartSeconds),
			maxRestartSeconds),
	}
	w.Keepalive = min(orDefault(s.KeepaliveSeconds, w.Hold/3), w.Hold/3) // RFC 4271 section 4.4
	if w.TTLSecurity == 0 {
		w.TTL = orDefault(s.MultihopTTL, multihopTTL)
	}
	return w
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
