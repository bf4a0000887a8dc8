package session

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
	"github.com/manxnet/manx/bgp/wire"
)

// lines are the transitions of a session.
func (l *machineLab) lines() (list []string) {
	for _, x := range l.History(labPeer) {
		list = append(list, fmt.Sprintf("%s-%s %s %d %s %s: %s", x.From, x.To, x.Lasted, x.Flaps, x.Routes, x.BFD,
			x.Reason))
	}
	return list
}

func TestHistory(t *testing.T) {
	for _, c := range []struct {
		events string   // one each second
		want   []string // the beginnings of its lines
	}{
		{"connect", nil},
		{"refused dial,connect,refused dial", []string{"Connecting-Failed 1s 0  Down: nobody listens"}},
		{"establish,lose,refused dial,establish", []string{
			"Connecting-Established 1s 0  Down: established with AS 64512",
			"Established-Failed 1s 1 withdrawn Up: hold timer expired", "Failed-Established 2s 1  Down: established"}},
		{"establish,lose,refused dial,notified,notified,establish", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Failed 1s 1 withdrawn Up: hold timer expired",
			"Failed-Failed 2s 1  Down: the peer has said why", "Failed-Established 4s 1  Down: established"}},
		{"establish,restart", []string{"Connecting-Established 1s 0  Down: ", "Established-Failed 1s 1 kept Up: "}},
		{"establish,reset,establish", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Connecting 1s 1 kept Up: the BGP speaker of this node restarts",
			"Connecting-Established 1s 1  Down: "}},
		{"establish,too many,lose", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Failed 2s 1 withdrawn Up: 10.0.0.2 announced more than 5 prefixes"}},
		{"refuse,accept,establish", []string{"Connecting-Refused 1s 0  Down: the password is missing",
			"Refused-Established 2s 0  Down: established"}},
		{"establish,refuse", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Refused 1s 0  Up: the password is missing"}},
		{"establish,refuse,lose", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Refused 1s 0 withdrawn Up: the password is missing"}},
		{"establish,refuse,restart", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Refused 1s 0 kept Up: the password is missing"}},
		{"establish,refuse,gone", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Refused 1s 0 withdrawn Up: the password", "Refused-Removed 1s 0  Up: neither the mesh"}},
		{"establish,fatal,reset", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Failed 1s 0 kept Up: port 179", "Failed-Connecting 1s 1  Up: the BGP speaker"}},
		{"establish,refuse,unexplained,explained", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Refused 1s 0 kept Up: the password is missing"}},
		{"establish,gone", []string{"Connecting-Established 1s 0  Down: ",
			"Established-Removed 1s 0 withdrawn Up: neither the mesh"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newMachineLab(false)
			l.SetSessions([]bgp.Session{{Address: labPeer, LocalAS: 64512, PeerAS: 64512, BFD: bgp.BFD{Enabled: true}}})
			path := bfd.Down
			l.cfg.Path = func(netip.Addr) (bfd.Status, bool) { return bfd.Status{State: path}, true }
			l.events["gone"] = func() { l.SetSessions(nil) }
			l.events["unexplained"] = func() { l.Transition(labPeer, gobgp.BGP_FSM_IDLE, l.now) }
			l.events["explained"] = func() { l.Wire(labPeer, wire.Ended{Established: true, Graceful: true}) }
			for _, event := range strings.Split(c.events, ",") {
				time.Sleep(time.Second)
				l.now = time.Now()
				l.events[event]()
				path = bfd.Down
				if l.IsEstablished(labPeer) {
					path = bfd.Up
				}
			}
			got := l.lines()
			ok := len(got) == len(c.want)
			for i := 0; ok && i < len(got); i++ {
				ok = strings.HasPrefix(got[i], c.want[i])
			}
			if !ok {
				t.Errorf("%s: history is\n%s\nwant\n%s", c.events, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// GoBGP may report the end of a session before the wire says why.
func TestHistoryOfAnEndThatIsExplainedLater(t *testing.T) {
	l := newMachineLab(false)
	l.events["establish"]()
	l.Transition(labPeer, gobgp.BGP_FSM_IDLE, l.now)
	l.Wire(labPeer, wire.Ended{Established: true, Graceful: true})
	if got := l.lines(); len(got) != 2 || !strings.HasPrefix(got[1], "Established-Failed ") ||
		!strings.Contains(got[1], " 1 kept ") ||
		!strings.Contains(got[1], "(graceful restart)") {
		t.Errorf("history is %q", got)
	}
}

// A peer that flaps fast loses its own past alone, and what it says is cut.
func TestHistoryIsBounded(t *testing.T) {
	l := newMachineLab(false)
	quiet := netip.MustParseAddr("10.0.0.3")
	l.SetSessions([]bgp.Session{{Address: labPeer}, {Address: quiet}})
	l.Wire(quiet, wire.Up{Open: &wire.Open{Family: true}})
	l.Transition(quiet, gobgp.BGP_FSM_ESTABLISHED, l.now)
	for range 3 * mostOfSession {
		l.events["establish"]()
		l.events["lose"]()
	}
	if one, all := l.History(labPeer), l.History(netip.Addr{}); len(one) != mostOfSession ||
		one[len(one)-1].Flaps != 3*mostOfSession || len(all) != mostOfSession+1 || all[0].Address != quiet {
		t.Errorf("%d of the session and %d in all, the last %+v", len(one), len(all), one[len(one)-1])
	}
	e := l.entries[labPeer]
	l.record(e, e.shown, PhaseRefused, "a"+strings.Repeat("ä", longestReason), l.now)
	one := l.History(labPeer) // the cut would be within a letter
	if got, want := one[len(one)-1].Reason, "a"+strings.Repeat("ä", longestReason/2-1)+"..."; got != want {
		t.Errorf("a reason is %q, want %q", got, want)
	}
	next := quiet
	more := func(n int) {
		for range n {
			next = next.Next()
			l.SetSessions([]bgp.Session{{Address: next}})
		}
	}
	more(mostTransitions - mostOfSession/2) // each replaces the one before, which leaves one transition
	if one, still := l.History(labPeer), l.History(quiet); len(one) != mostOfSession/2-1 || len(still) != 2 {
		t.Errorf("the peer that flaps has %d transitions, the quiet one %d", len(one), len(still))
	}
	more(2 * mostOfSession)
	if all := l.History(netip.Addr{}); len(all) != mostTransitions || len(l.history.of) > mostTransitions {
		t.Errorf("%d transitions of %d sessions, want %d", len(all), len(l.history.of), mostTransitions)
	}
	if len(l.History(quiet)) > 0 {
		t.Error("the oldest transition is still there")
	}
}
