package speaker

import (
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

// As package gobgpinside has them.
const (
	idleAfterLoss = 5 * time.Second
	quickReturns  = 3
)

const (
	returning = "127.0.9.1"
	control   = "127.0.9.2" // ended by a Cease, so it waits for GoBGP's usual time
)

// returningSession is a speaker with a session that is lost and returns, and a control session for the time in Idle.
type returningSession struct {
	*testing.T
	speaker *Speaker
	to      string
	peer    *fakePeer
	control *fakePeer
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

// ceaseControl ends the control session by a Cease, and has it connect again. The result is closed when it is up again.
func (r *returningSession) ceaseControl() (back chan struct{}) {
	r.Helper()
	o := fakeOptions{as: 64512, id: "10.99.9.2"}
	if r.control == nil {
		r.control = dialFake(r, control, r.to, o)
	}
	awaitSession(r, r.speaker, control, "Established", established)
	r.control.send(gobgp.NewBGPNotificationMessage(gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_PEER_DECONFIGURED, nil))
	awaitSession(r, r.speaker, control, "the loss", func(st SessionStatus) bool { return !established(st) })
	back = make(chan struct{})
	go func() {
		r.control = dialFake(r, control, r.to, o)
		close(back)
	}()
	return back
}

// isBack reports whether the control session is up, or will be within a fraction of the time in Idle.
func isBack(back chan struct{}) bool {
	select {
	case <-back:
		return true
	case <-time.After(idleAfterLoss / 2):
		return false
	}
}

// backFirst loses the session, has the peer connect at once and reports whether it was established again before the
// control, which was lost before.
func (r *returningSession) backFirst() bool {
	r.Helper()
	back := r.ceaseControl()
	r.lose()
	r.establish()
	first := true
	select {
	case <-back:
		first = false
	default:
	}
	<-back
	return first
}

func TestPeerThatRestartsIsTakenBackAtOnce(t *testing.T) {
	t.Parallel()
	r := newReturningSession(t)
	for range 5 { // on a machine that stalls for seconds, the control may be first
		if r.backFirst() {
			return
		}
	}
	t.Error("a peer that was established and connects again is kept out for as long as one that ceased")
}

func TestPeerThatFlapsHasToWait(t *testing.T) {
	t.Parallel()
	r := newReturningSession(t)
	start := time.Now()
	for range quickReturns + 1 {
		r.lose()
		r.establish()
	}
	if took := time.Since(start); took < idleAfterLoss { // GoBGP counts the time in Idle from the last loss
		t.Errorf("a peer that opens and closes sessions is taken back at once each time: %d times in %s",
			quickReturns+1, took)
	}
}

// TestPeerThatCeasesHasToWait: a peer ends its session with a Cease, which is no restart.
func TestPeerThatCeasesHasToWait(t *testing.T) {
	t.Parallel()
	r := newReturningSession(t)
	back := r.ceaseControl()
	r.peer.send(gobgp.NewBGPNotificationMessage(gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_PEER_DECONFIGURED, nil))
	r.lose()
	r.establish()
	if !isBack(back) {
		t.Error("a peer that ended the session with a Cease is taken back before one that did so earlier")
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
	back := r.ceaseControl()
	r.lose()
	establish()
	if !isBack(back) {
		t.Error("an eBGP peer is taken back before a peer that ceased earlier")
	}
}
