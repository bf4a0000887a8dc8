package speaker

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/session"
)

const (
	returning = "127.0.9.1"
	control   = "127.0.9.2" // fails in the OPEN exchange, so it waits for GoBGP's usual time
)

// returningSession is a speaker with a session that is lost and returns, and a control session for the time in Idle.
type returningSession struct {
	*testing.T
	speaker *Speaker
	to      string
	peer    *fakePeer
}

func newReturningSession(t *testing.T) *returningSession {
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive(returning), passive(control)}
	mustSet(t, s, d)
	r := &returningSession{T: t, speaker: s, to: listenOf(d)}
	r.establish()
	return r
}

func (r *returningSession) establish() {
	r.Helper()
	r.peer = dialFake(r, returning, r.to, fakeOptions{as: 64512, id: "10.99.9.1", graceful: true})
	awaitSession(r, r.speaker, returning, "Established", established)
}

// lose closes the established session without a NOTIFICATION, as the end of the peer's process does.
func (r *returningSession) lose() {
	r.Helper()
	r.peer.conn.Close()
	awaitSession(r, r.speaker, returning, "the loss", func(st SessionStatus) bool { return !established(st) })
}

// failControl sends an OPEN with a wrong AS and waits until the control session is in Idle.
func (r *returningSession) failControl() {
	r.Helper()
	awaitSession(r, r.speaker, control, "Active", func(st SessionStatus) bool { return st.State == "Active" })
	conn := dialFrom(r, control, r.to)
	defer conn.Close()
	b, err := fakeOptions{as: 64999, id: "10.99.9.2"}.open().Serialize()
	if err != nil {
		r.Fatal(err)
	}
	if _, err := conn.Write(b); err != nil {
		r.Fatal(err)
	}
	awaitSession(r, r.speaker, control, "Idle", func(st SessionStatus) bool { return st.State == "Idle" })
}

// backFirst loses the session, has the peer connect at once and reports whether it was established again before the
// control, which failed before, had left Idle.
func (r *returningSession) backFirst() bool {
	r.Helper()
	r.failControl()
	r.lose()
	r.establish()
	st, _ := r.speaker.Session(ip(control))
	return st.State == "Idle"
}

func TestPeerThatRestartsIsTakenBackAtOnce(t *testing.T) {
	t.Parallel()
	r := newReturningSession(t)
	for range 5 { // on a machine that stalls for seconds, the control may be first
		if r.backFirst() {
			return
		}
	}
	t.Error("a peer that was established and connects again is kept out for as long as one that failed")
}

func TestPeerThatFlapsHasToWait(t *testing.T) {
	t.Parallel()
	r := newReturningSession(t)
	for range 5 {
		for range quickReturns + 1 {
			r.lose()
			r.establish()
		}
		if !r.backFirst() {
			return
		}
	}
	t.Error("a peer that opens and closes sessions is taken back at once each time")
}

// TestPeerThatCeasesHasToWait: a peer ends its session with a Cease, which is no restart.
func TestPeerThatCeasesHasToWait(t *testing.T) {
	t.Parallel()
	r := newReturningSession(t)
	r.failControl()
	r.peer.send(gobgp.NewBGPNotificationMessage(gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_PEER_DECONFIGURED, nil))
	r.lose()
	r.establish()
	if st, _ := r.speaker.Session(ip(control)); st.State == "Idle" {
		t.Error("a peer that ended the session with a Cease is taken back before one that failed earlier")
	}
}

// TestReplacedPeerIsTakenBackAtOnce: the watchdog replaces the FSM of a session.
func TestReplacedPeerIsTakenBackAtOnce(t *testing.T) {
	t.Parallel()
	r := newReturningSession(t)
	r.speaker.replacePeer(ip(returning), "test")
	r.peer.awaitClosed()
	r.establish()
	for range 5 {
		if r.backFirst() {
			return
		}
	}
	t.Error("the session of a replaced peer is not taken back at once")
}

func TestChangedGoBGPIsLeftAlone(t *testing.T) {
	type fsm struct{ idleHoldTime float64 }
	type peer struct{ fsm *fsm }
	type seconds struct{ idleHoldTime int }
	type peerOfSeconds struct{ fsm *seconds }
	type renamed struct{ machine *fsm }
	_, _, _ = fsm{}.idleHoldTime, peerOfSeconds{}.fsm, renamed{}.machine
	_, _ = seconds{}.idleHoldTime, peer{}.fsm
	for _, c := range []struct {
		server any
		ok     bool
	}{
		{server.BgpServer{}, true},
		{struct{ neighborMap map[netip.Addr]*peer }{}, true},
		{struct{ neighbors map[netip.Addr]*peer }{}, false},
		{struct{ neighborMap map[string]*peer }{}, false},
		{struct{ neighborMap map[netip.Addr]peer }{}, false},
		{struct{ neighborMap map[netip.Addr]*renamed }{}, false},
		{struct{ neighborMap map[netip.Addr]*peerOfSeconds }{}, false},
	} {
		core, logs := observer.New(zap.WarnLevel)
		ok := checkIdle(zap.New(core), reflect.TypeOf(c.server))
		if ok != c.ok || (logs.Len() == 0) != c.ok {
			t.Errorf("%T: usable %v, %d log lines; want usable %v", c.server, ok, logs.Len(), c.ok)
		}
	}
}

func TestTimeInIdleThatIsNotGoBGPsIsLeftAlone(t *testing.T) {
	for _, c := range []struct {
		seconds, want float64
		reason        string
	}{
		{5, 0, "graceful-restart"}, {5, 0, "read-failed"}, {5, 5, "admin-down"},
		{5, 5, "notification-received code 6(cease) subcode 2(administrative shutdown)"},
		{30, 30, "graceful-restart"}, {1, 1, "read-failed"},
	} {
		h := newIdleHold()
		h.seconds.Store(&c.seconds)
		h.lost(c.reason, time.Now())
		if c.seconds != c.want {
			t.Errorf("after %q: %v s, want %v", c.reason, c.seconds, c.want)
		}
	}
	h := newIdleHold()
	h.lost("graceful-restart", time.Now()) // nothing to change
	var five float64
	h.seconds.Store(&five)
	start := time.Now()
	for i, after := range []time.Duration{0, 0, 0, 0, session.IdleAfterLoss, session.IdleAfterLoss} {
		five = 5
		h.lost("graceful-restart", start.Add(after))
		if quick, want := five == 0, i < quickReturns || i == 4; quick != want {
			t.Errorf("loss %d after %s: at once %v, want %v", i, after, quick, want)
		}
	}
}

// TestRoutesStayOverTheQuickReturn: the peer comes back with half of its routes. The others are removed with its
// End-of-RIB, none before.
func TestRoutesStayOverTheQuickReturn(t *testing.T) {
	t.Parallel()
	r := newReturningSession(t)
	prefixes := manyPrefixes(20)
	r.peer.send(update("10.0.0.2", 0, 100, prefixes...))
	table := routeTable{}
	awaitRoutes(t, r.speaker, table, "the routes", func() bool { return len(table) == len(prefixes) })
	r.lose()
	r.establish()
	r.peer.send(update("10.0.0.2", 0, 100, prefixes[:10]...))
	eor := gobgp.NewEndOfRib(gobgp.RF_IPv4_UC)
	awaitSession(t, r.speaker, returning, "Established", established)
	for _, route := range r.speaker.Take(0) {
		if len(route.Paths) == 0 {
			t.Errorf("%s was withdrawn before the End-of-RIB", route.Prefix)
		}
	}
	r.peer.send(eor)
	awaitRoutes(t, r.speaker, table, "the rest to go", func() bool { return len(table) == 10 })
}

// TestRouterThatRestartsHasToWait: an eBGP peer loses its connection. It must not be back before a node that restarts
// at the same time.
func TestRouterThatRestartsHasToWait(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	router := passive(returning)
	router.PeerAS, router.Type = 65000, bgp.SessionGlobal
	d.Sessions = []bgp.Session{router, passive(control)}
	mustSet(t, s, d)
	r := &returningSession{T: t, speaker: s, to: listenOf(d)}
	establish := func() {
		r.peer = dialFake(t, returning, r.to, fakeOptions{as: 65000, id: "10.99.9.1", graceful: true})
		awaitSession(t, s, returning, "Established", established)
	}
	establish()
	r.failControl()
	r.lose()
	establish()
	if st, _ := s.Session(ip(control)); st.State == "Idle" {
		t.Error("an eBGP peer is taken back before a peer that failed earlier")
	}
}
