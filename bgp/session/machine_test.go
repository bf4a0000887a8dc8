package session

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire"
	"github.com/manxnet/manx/bgp/wire/message"
)

// machineLab is a table with one session, and the possible events of the session.
type machineLab struct {
	*Table
	now    time.Time
	events map[string]func()
}

var labPeer = netip.MustParseAddr("10.0.0.2")

func newMachineLab(passive bool) *machineLab {
	l := &machineLab{Table: NewTable(Config{Logger: zap.NewNop(), PrefixHold: time.Hour}),
		now: time.Now()}
	l.SetSessions([]bgp.Session{{Address: labPeer, LocalAS: 64512, PeerAS: 64512, Passive: passive}})
	end := func(ev wire.Ended) {
		ev.Established = true
		l.change(labPeer, func(e *entry, _ time.Time) { e.endedSession(ev, l.now, l.cfg) })
	}
	lose := func(ev wire.Ended) func() {
		return func() {
			if e := l.entries[labPeer]; e.state == up {
				end(ev)
			}
			l.Transition(labPeer, gobgp.BGP_FSM_IDLE, l.now)
		}
	}
	l.events = map[string]func(){
		"connect": func() { l.Wire(labPeer, wire.Connecting{}) },
		"establish": func() {
			l.Wire(labPeer, wire.Up{Open: &wire.Open{AS: 64512, Family: true}})
			l.Transition(labPeer, gobgp.BGP_FSM_ESTABLISHED, l.now)
		},
		"lose":    lose(wire.Ended{Sent: &message.Notification{Code: 4}}),
		"restart": lose(wire.Ended{Graceful: true, RestartTime: time.Minute}),
		"notified": func() {
			l.change(labPeer, func(e *entry, _ time.Time) { e.fail(DirectionReceived, "the peer has said why", l.now) })
		},
		"refused dial": func() {
			l.change(labPeer, func(e *entry, _ time.Time) { e.guess(DirectionLocal, "nobody listens", l.now) })
		},
		"too many":  func() { end(wire.Ended{Cause: wire.CauseLimit, Detail: "more than 5 prefixes"}) },
		"time over": func() { l.Release(labPeer); l.Held(l.now) },
		"cut":       func() { l.BreakPath(labPeer, l.entries[labPeer].upAt, "BFD", "no packets") },
		"later":     func() { l.now = l.now.Add(time.Hour) },
		"reset":     func() { l.Reset() },
		"fatal":     func() { l.SetFatal(errors.New("port 179 is in use")) },
		"no fatal":  func() { l.SetFatal(nil) },
		"refuse":    func() { l.Configured(labPeer, errors.New("the password is missing")) },
		"accept":    func() { l.Configured(labPeer, nil) },
	}
	return l
}

// Each sequence of events ends in a state, and the state in a phase with a reason.
func TestEventsLeadToStates(t *testing.T) {
	for _, c := range []struct {
		events string // comma separated; "passive" first for a session that waits
		state  state
		phase  Phase
		reason string
	}{
		{"", fresh, PhaseConnecting, "connecting to 10.0.0.2:179"},
		{"passive", fresh, PhaseWaiting, "waiting for 10.0.0.2 to connect"},
		{"refused dial", failed, PhaseFailed, "nobody listens"},
		{"refused dial,connect", failed, PhaseFailed, "nobody listens"},
		{"establish", up, PhaseEstablished, "established with AS 64512"},
		{"refused dial,establish", up, PhaseEstablished, "established with AS 64512"},
		{"establish,lose", failed, PhaseFailed, "hold timer expired"},
		{"establish,restart", failed, PhaseFailed, "(graceful restart)"},
		{"establish,notified", ending, PhaseEstablished, "established with AS 64512"},
		{"establish,notified,lose", failed, PhaseFailed, "the peer has said why"},
		{"establish,notified,lose,later,refused dial", failed, PhaseFailed, "nobody listens"},
		{"establish,lose,establish", up, PhaseEstablished, "established with AS 64512"},
		{"establish,too many", holding, PhaseEstablished, "established with AS 64512"},
		{"establish,too many,lose", held, PhaseFailed, "held down for 1h"},
		{"establish,too many,lose,refused dial,notified", held, PhaseFailed, "held down for 1h"},
		{"establish,too many,lose,too many", held, PhaseFailed, "held down for 1h"},
		{"establish,too many,lose,time over", failed, PhaseFailed, "held down for 1h"},
		{"establish,too many,lose,time over,establish", up, PhaseEstablished, "established with AS 64512"},
		{"too many", held, PhaseFailed, "held down for 1h"}, // before GoBGP has reported that it was established
		{"too many,establish,lose", held, PhaseFailed, "held down for 1h"},
		{"establish,cut", ending, PhaseEstablished, "established with AS 64512"},
		{"establish,cut,lose,notified", failed, PhaseFailed, "BFD: the path to 10.0.0.2 is broken"},
		{"establish,cut,lose,later,notified", failed, PhaseFailed, "the peer has said why"},
		{"establish,reset", fresh, PhaseConnecting, "connecting to"},
		{"establish,too many,reset", held, PhaseFailed, "held down for 1h"},
		{"establish,fatal", up, PhaseFailed, "port 179 is in use"},
		{"establish,fatal,no fatal", up, PhaseEstablished, "established with AS 64512"},
		{"establish,refuse", up, PhaseRefused, "the password is missing"},
		{"refused dial,refuse,accept", failed, PhaseFailed, "nobody listens"},
	} {
		l := newMachineLab(strings.HasPrefix(c.events, "passive"))
		for name := range strings.SplitSeq(strings.TrimPrefix(c.events, "passive"), ",") {
			if name != "" {
				l.events[name]()
			}
		}
		e := l.entries[labPeer]
		if e.state != c.state || e.shown.phase != c.phase || !strings.Contains(e.shown.reason, c.reason) {
			t.Errorf("%q: state %d, %s, %q; want %d, %s, %q", c.events, e.state, e.shown.phase, e.shown.reason, c.state,
				c.phase, c.reason)
		}
		if e.state.established() != (e.fsm == gobgp.BGP_FSM_ESTABLISHED) {
			t.Errorf("%q: state %d does not suit GoBGP's %s", c.events, e.state, stateName(e.fsm))
		}
	}
}

// The events on the wire and those of GoBGP come in any order, and the sentence is the same.
func TestOrderOfEvents(t *testing.T) {
	up := func(l *machineLab) { l.Wire(labPeer, wire.Up{Open: &wire.Open{AS: 64512, Family: true}}) }
	gobgpIs := func(l *machineLab, s gobgp.FSMState) { l.Transition(labPeer, s, l.now) }
	limit := wire.Ended{Established: true, Cause: wire.CauseLimit, Detail: "more than 5 prefixes"}
	changed := wire.Ended{Established: true, Cause: wire.CauseNotification, Sent: message.Cease(message.SubOtherChange)}
	for _, c := range []struct {
		name   string
		events func(l *machineLab)
		phase  Phase
		reason string
	}{
		{"the limit is passed before GoBGP has reported the session", func(l *machineLab) {
			up(l)
			l.Wire(labPeer, limit)
			gobgpIs(l, gobgp.BGP_FSM_ESTABLISHED)
			gobgpIs(l, gobgp.BGP_FSM_IDLE)
		}, PhaseFailed, "the session is held down for 1h0m0s"},
		{"GoBGP reports the end before the wire", func(l *machineLab) {
			up(l)
			gobgpIs(l, gobgp.BGP_FSM_ESTABLISHED)
			gobgpIs(l, gobgp.BGP_FSM_IDLE)
			l.Wire(labPeer, changed)
		}, PhaseFailed, "because its settings changed"},
		{"the loser of a collision is no failure", func(l *machineLab) {
			l.Wire(labPeer, wire.Connected{})
			l.Wire(labPeer, wire.Ended{Received: &message.Notification{Code: 6, Sub: 7}})
		}, PhaseConnecting, "connecting to"},
		{"a refusal stays while the peer refuses connections", func(l *machineLab) {
			l.Wire(labPeer, wire.Ended{Received: &message.Notification{Code: 2, Sub: 2}})
			l.Wire(labPeer, wire.ConnectFailed{Err: syscall.ECONNREFUSED})
			l.Wire(labPeer, wire.Connected{})
		}, PhaseFailed, "it expects another AS"},
		{"a change of the peer's settings explains no later failure", func(l *machineLab) {
			up(l)
			gobgpIs(l, gobgp.BGP_FSM_ESTABLISHED)
			l.Wire(labPeer, wire.Ended{Established: true, Cause: wire.CauseNotification,
				Received: message.Cease(message.SubOtherChange)})
			gobgpIs(l, gobgp.BGP_FSM_IDLE)
			l.Wire(labPeer, wire.ConnectFailed{Err: os.ErrDeadlineExceeded})
		}, PhaseFailed, "no answer"},
		{"a change of our settings explains no later failure", func(l *machineLab) {
			up(l)
			gobgpIs(l, gobgp.BGP_FSM_ESTABLISHED)
			l.Wire(labPeer, wire.Ended{Established: true, Cause: wire.CauseSettings,
				Sent: message.Cease(message.SubOtherChange)})
			gobgpIs(l, gobgp.BGP_FSM_IDLE)
			l.Wire(labPeer, wire.ConnectFailed{Err: os.ErrDeadlineExceeded})
		}, PhaseFailed, "no answer"},
		{"a refusal of a connection is over with the next one", func(l *machineLab) {
			l.Wire(labPeer, wire.ConnectFailed{Err: syscall.ECONNREFUSED})
			l.Wire(labPeer, wire.Connected{})
		}, PhaseConnecting, "waiting for its OPEN"},
	} {
		l := newMachineLab(false)
		c.events(l)
		if st, _ := l.Get(labPeer); st.Phase != c.phase || !strings.Contains(st.Reason, c.reason) {
			t.Errorf("%s: %s, %q", c.name, st.Phase, st.Reason)
		}
		if held := l.Held(l.now.Add(100 * time.Hour)); (len(held) == 1) != strings.Contains(c.reason, "held") {
			t.Errorf("%s: released are %v", c.name, held)
		}
	}
}

// A session that is down has no prefixes, unless they are kept for a graceful restart.
func TestPrefixesOfASessionThatEnded(t *testing.T) {
	for graceful, want := range map[bool]uint64{false: 0, true: 7} {
		l := newMachineLab(false)
		l.Wire(labPeer, wire.Up{Open: &wire.Open{AS: 64512, Family: true}})
		l.Transition(labPeer, gobgp.BGP_FSM_ESTABLISHED, l.now)
		l.entries[labPeer].counters.Received = 7
		l.Wire(labPeer, wire.Ended{Established: true, Cause: wire.CauseConnection, Graceful: graceful})
		if got := l.entries[labPeer].counters.Received; got != want {
			t.Errorf("graceful restart %v: %d prefixes", graceful, got)
		}
	}
}
