package session

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// machineLab is a table with one session, and the possible events of the session.
type machineLab struct {
	*Table
	now    time.Time
	events map[string]func()
}

var labPeer = netip.MustParseAddr("10.0.0.2")

func newMachineLab(passive bool) *machineLab {
	l := &machineLab{Table: NewTable(Config{Logger: zap.NewNop(), PrefixHold: time.Hour, OpenTimeout: time.Minute}),
		now: time.Now()}
	l.SetSessions([]bgp.Session{{Address: labPeer, LocalAS: 64512, PeerAS: 64512, Passive: passive}})
	move := func(s gobgp.FSMState, why api.PeerState_DisconnectReason) func() {
		return func() {
			l.Transition(labPeer, apiutil.PeerState{SessionState: s, DisconnectReason: why, PeerASN: 64512}, l.now)
		}
	}
	l.events = map[string]func(){
		"connect":   move(gobgp.BGP_FSM_ACTIVE, 0),
		"establish": move(gobgp.BGP_FSM_ESTABLISHED, 0),
		"lose":      move(gobgp.BGP_FSM_IDLE, api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED),
		"restart":   move(gobgp.BGP_FSM_IDLE, api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART),
		"notified": func() {
			l.change(labPeer, func(e *entry, _ time.Time) { e.fail(DirectionReceived, "the peer has said why", l.now) })
		},
		"refused dial": func() {
			l.change(labPeer, func(e *entry, _ time.Time) { e.symptom(DirectionLocal, "nobody listens", l.now) })
		},
		"too many":  func() { l.Hold(labPeer, "more than 5 prefixes") },
		"time over": func() { l.Release(labPeer); l.Held(l.now) },
		"cut":       func() { l.BreakPath(labPeer, l.entries[labPeer].upAt, "no packets") },
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
		{"too many", fresh, PhaseConnecting, "connecting to"},
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
