package gobgpinside

import (
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/eapache/channels"
	"github.com/osrg/gobgp/v4/pkg/server"
	"golang.org/x/time/rate"

	"github.com/manxnet/manx/bgp/wire"
)

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
		if err := checkIdle(reflect.TypeOf(c.server)); (err == nil) != c.ok {
			t.Errorf("%T: %v; want usable %v", c.server, err, c.ok)
		}
	}
}

func TestTimeInIdleThatIsNotGoBGPsIsLeftAlone(t *testing.T) {
	hold := func(seconds *float64, internal bool) *Idle {
		return &Idle{seconds: seconds, internal: internal,
			returns: rate.NewLimiter(rate.Every(idleAfterLoss), quickReturns)}
	}
	for _, c := range []struct {
		seconds, want float64
		cause         wire.Cause
		internal      bool
	}{
		{5, 0, wire.CauseConnection, true}, {5, 0, wire.CauseReplaced, true}, {5, 5, wire.CauseConnection, false},
		{5, 5, wire.CauseNotification, true}, {5, 5, wire.CauseSettings, true}, {5, 0, wire.CauseLocal, false},
		{30, 30, wire.CauseConnection, true}, {1, 1, wire.CauseConnection, true},
	} {
		seconds := c.seconds
		hold(&seconds, c.internal).Lost(c.cause, time.Now())
		if seconds != c.want {
			t.Errorf("%+v: %v s", c, seconds)
		}
	}
	hold(nil, true).Lost(wire.CauseConnection, time.Now()) // nothing to change
	var five float64
	h := hold(&five, true)
	start := time.Now()
	for i, after := range []time.Duration{0, 0, 0, 0, idleAfterLoss, idleAfterLoss} {
		five = 5
		h.Lost(wire.CauseConnection, start.Add(after))
		if quick, want := five == 0, i < quickReturns || i == 4; quick != want {
			t.Errorf("loss %d after %s: at once %v, want %v", i, after, quick, want)
		}
	}
}

// A GoBGP that takes no connections as expected is an error: BGP does not start.
func TestServerWithoutItsChannel(t *testing.T) {
	t.Parallel()
	if _, err := acceptChannel(server.NewBgpServer()); err == nil || !strings.Contains(err.Error(), "as expected") {
		t.Errorf("%v", err)
	}
}

func TestQueueOfAnotherGoBGP(t *testing.T) {
	type machine struct{ outgoingCh chan any }
	type peer struct{ fsm *machine }
	_, _ = machine{}.outgoingCh, peer{}.fsm
	err := checkOutbox(reflect.TypeFor[struct{ neighborMap map[netip.Addr]*peer }]())
	if err == nil || !strings.Contains(err.Error(), "has no outgoingCh of type") {
		t.Errorf("error %v", err)
	}
}

// Whatever another GoBGP has in the place of a field, nothing is written and nothing panics.
func TestOtherInsides(t *testing.T) {
	peer := netip.MustParseAddr("192.0.2.1")
	type fsm struct{ idleHoldTime float64 }
	type known struct{ fsm *fsm }
	type byValue struct{ fsm fsm }
	type text struct {
		fsm *struct{ idleHoldTime string }
	}
	_, _, _, _ = known{}.fsm, byValue{}.fsm, text{}.fsm, fsm{}.idleHoldTime
	for _, srv := range []any{
		&struct{}{},
		&struct{ neighborMap []*known }{},
		&struct{ neighborMap map[netip.Addr]*known }{}, // nil
		&struct{ neighborMap map[netip.Addr]*known }{map[netip.Addr]*known{}},
		&struct{ neighborMap map[netip.Addr]*known }{map[netip.Addr]*known{peer: nil}},
		&struct{ neighborMap map[netip.Addr]*known }{map[netip.Addr]*known{peer: {}}}, // no FSM yet
		&struct{ neighborMap map[netip.Addr]*byValue }{map[netip.Addr]*byValue{peer: {}}},
		&struct{ neighborMap map[netip.Addr]*text }{map[netip.Addr]*text{peer: {}}},
	} {
		if f := ofMachine[float64](srv, peer, idleField); f != nil {
			t.Errorf("%T has a time in Idle", srv)
		}
	}
	five := &fsm{5}
	srv := &struct{ neighborMap map[netip.Addr]*known }{map[netip.Addr]*known{peer: {five}}}
	if f := ofMachine[float64](srv, peer, idleField); f == nil || *f != 5 {
		t.Error("the field is not found where it is")
	}
	for _, srv := range []any{&struct{}{}, &struct{ acceptCh chan int }{}, &struct{ acceptCh net.Conn }{},
		&struct{ acceptCh chan net.Conn }{}} {
		if _, err := acceptChannel(srv); err == nil {
			t.Errorf("%T takes connections", srv)
		}
	}
	if conns, err := acceptChannel(&struct{ acceptCh chan net.Conn }{make(chan net.Conn)}); err != nil || conns == nil {
		t.Errorf("the channel is not found where it is: %v", err)
	}
}

// keyless is a path without the method that names it in the table, keyOfText one with another method of that name.
type keyless struct{ outgoingPath }

type keyOfText struct{ outgoingPath }

func (*keyOfText) GetLocalKey(string) string { return "" }

type keyOfSlice struct{ outgoingPath }

func (*keyOfSlice) GetLocalKey() []int { return nil }

// Messages of another form reach the sender as they are.
func TestOtherMessages(t *testing.T) {
	for _, m := range []any{"text", nil, struct{}{}, &struct{}{}, (*playedMessage)(nil), &struct{ Paths int }{},
		&struct{ Paths []int }{}, &struct{ Paths []playedPath }{}, &struct{ Paths []outgoingPath }{},
		&struct{ Paths []*keyless }{[]*keyless{{}}}, &struct{ Paths []*keyOfText }{[]*keyOfText{{}}},
		&struct{ Paths []*keyOfSlice }{[]*keyOfSlice{{}}}} {
		if b := (batch{paths: true}); b.add(m) {
			t.Errorf("%T is merged", m)
		}
	}
	b := batch{paths: true}
	if !b.add(&playedMessage{[]*playedPath{{prefix: netip.MustParsePrefix("10.0.0.0/24")}}}) {
		t.Error("a message of GoBGP's form is not merged")
	}
	type other struct{ playedPath }
	if b.add(&struct{ Paths []*other }{[]*other{{}}}) {
		t.Error("messages of two types are merged")
	}
}

// Without its queue a peer has no outbox, and the calls for it do nothing.
func TestNoOutbox(t *testing.T) {
	srv := server.NewBgpServer()
	o := NewOutbox(srv, netip.MustParseAddr("192.0.2.1"), nil)
	if o != nil {
		t.Fatal("a peer that does not exist has an outbox")
	}
	o.Begin(true)
	o.Writes()
	if o.Waiting() != 0 {
		t.Error("something waits")
	}
	queue := channels.NewInfiniteChannel()
	if old := newOutbox(&queue); NewOutbox(srv, netip.MustParseAddr("192.0.2.1"), old) != old {
		t.Error("the outbox is lost")
	}
}
