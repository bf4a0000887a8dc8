package bgp

import (
	"net/netip"
	"testing"
)

func TestCompareSessions(t *testing.T) {
	base := Session{Address: netip.MustParseAddr("10.0.0.2"), Port: 179, LocalAS: 64512, PeerAS: 64512,
		HoldSeconds: 240}
	for name, c := range map[string]struct {
		change func(*Session)
		want   SessionChange
	}{
		"same": {func(*Session) {}, ChangeNone},
		"default written out": {func(s *Session) {
			s.KeepaliveSeconds, s.RestartSeconds, s.MultihopTTL = 80, 120,
				64
		}, ChangeNone},
		"where it comes from": {func(s *Session) { s.From, s.Type = []string{"BGPPeer/a"}, SessionNode },
			ChangeNone},
		"next hop is policy": {func(s *Session) { s.NextHop = NextHopSelf }, ChangeNone},
		"keepalive":          {func(s *Session) { s.KeepaliveSeconds = 10 }, ChangeDefer},
		"hold time":          {func(s *Session) { s.HoldSeconds = 90 }, ChangeDefer},
		"restart time":       {func(s *Session) { s.RestartSeconds = 60 }, ChangeDefer},
		"password":           {func(s *Session) { s.Password = "x" }, ChangeRestart},
		"peer AS":            {func(s *Session) { s.PeerAS = 1 }, ChangeRestart},
		"TTL security":       {func(s *Session) { s.TTLSecurity = 1 }, ChangeRestart},
		"passive":            {func(s *Session) { s.Passive = true }, ChangeRestart},
		"source":             {func(s *Session) { s.Source = netip.MustParseAddr("10.0.0.1") }, ChangeRestart},
		"reflector client":   {func(s *Session) { s.ReflectorClient = true }, ChangeReplace},
		"reflector cluster and more": {func(s *Session) {
			s.ReflectorClusterID, s.Port = netip.MustParseAddr("1.1.1.1"),
				1
		}, ChangeReplace},
	} {
		s := base
		c.change(&s)
		if got := CompareSessions(base, s); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}
