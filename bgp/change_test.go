package bgp

import (
	"net/netip"
	"reflect"
	"testing"
)

// Two sessions that differ in any field are not equal.
func TestSessionsWithAnotherFieldAreNotEqual(t *testing.T) {
	base := Session{From: []string{"a"}, Filters: []string{"f"}}
	if other := (Session{From: []string{"a"}, Filters: []string{"f"}}); !base.Equal(other) {
		t.Error("the same settings are not equal")
	}
	for i := range reflect.TypeFor[Session]().NumField() {
		other := base
		v := reflect.ValueOf(&other).Elem().Field(i)
		name := reflect.TypeFor[Session]().Field(i).Name
		switch v.Interface().(type) {
		case netip.Addr:
			v.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.1")))
		case []string:
			v.Set(reflect.ValueOf([]string{"a", "b"}))
		case BFD:
			v.Set(reflect.ValueOf(BFD{Enabled: true}))
		default:
			switch {
			case v.CanUint():
				v.SetUint(1)
			case v.Kind() == reflect.String:
				v.SetString("other")
			case v.Kind() == reflect.Bool:
				v.SetBool(true)
			default:
				t.Fatalf("field %s is of a type that this test does not know", name)
			}
		}
		if base.Equal(other) || other.Equal(base) {
			t.Errorf("another %s counts as the same", name)
		}
	}
}

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
		"longest keepalive":  {func(s *Session) { s.KeepaliveSeconds = 81 }, ChangeNone},
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
