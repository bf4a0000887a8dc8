package session

import (
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire"
	"github.com/manxnet/manx/bgp/wire/message"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// A recent cause stays while only symptoms follow. A NOTIFICATION of the peer replaces it, and any symptom replaces an
// old cause.
func TestASymptomDoesNotReplaceItsCause(t *testing.T) {
	now := time.Now()
	e := &entry{session: bgp.Session{Address: ip("10.0.1.1"), Source: ip("10.0.2.5"),
		From: []string{"BGPPeer/tor"}}}
	cause := otherAddressWords(e, "10.0.1.5")
	for _, part := range []string{"10.0.1.1 connects to 10.0.1.5, but this session uses 10.0.2.5",
		"manxd --ip=10.0.1.5", "--ip-autodetection-method=can-reach=10.0.1.1",
		"manxctl apply BGPPeer/tor with sourceAddress: None"} {
		if !strings.Contains(cause, part) {
			t.Errorf("no %q in %q", part, cause)
		}
	}
	e.because(DirectionLocal, cause, now)
	for _, symptom := range []error{syscall.ECONNREFUSED, os.ErrDeadlineExceeded, syscall.ECONNRESET} {
		e.guess(DirectionLocal, dialWords(e, symptom), now.Add(time.Minute))
	}
	e.guess(DirectionLocal, closedWords(e, wire.Ended{}, netip.Addr{}), now.Add(2*time.Minute))
	if e.failure.words != cause {
		t.Errorf("a symptom replaced the cause: %q", e.failure.words)
	}
	e.guess(DirectionLocal, "connection refused", now.Add(causeMatters+time.Second))
	if e.failure.words != "connection refused" {
		t.Errorf("the cause of long ago is still shown: %q", e.failure.words)
	}
	e.because(DirectionLocal, cause, now)
	e.fail(DirectionReceived, "received NOTIFICATION", now.Add(time.Second))
	if e.failure.words != "received NOTIFICATION" {
		t.Errorf("%q stays although the peer has sent the reason", e.failure.words)
	}

	mesh := &entry{session: bgp.Session{Address: ip("fd00::1"), Source: ip("fd00::5"),
		From: []string{"BGPConfiguration/default"}}}
	if words := otherAddressWords(mesh, "fd00::6"); strings.Contains(words, "sourceAddress") ||
		!strings.Contains(words, "manxd --ip6=fd00::6") {
		t.Errorf("the mesh has no sourceAddress, and IPv6 a flag of its own: %q", words)
	}
}

// The wire reports the end of a session that lasts a moment before GoBGP reports that it was established.
func TestTheSideThatSentANotification(t *testing.T) {
	for want, end := range map[Direction]wire.Ended{
		DirectionReceived: {Received: &message.Notification{Code: 6, Sub: 2}},
		DirectionSent:     {Sent: &message.Notification{Code: 3, Sub: 1}},
		DirectionLocal:    {Cause: wire.CauseConnection},
	} {
		l := newMachineLab(false)
		end.Established = true
		l.Wire(labPeer, wire.Up{Open: &wire.Open{AS: 64512, Family: true}})
		l.Wire(labPeer, end)
		l.Transition(labPeer, gobgp.BGP_FSM_ESTABLISHED, l.now)
		l.Transition(labPeer, gobgp.BGP_FSM_IDLE, l.now)
		if by := l.entries[labPeer].failure.by; by != want {
			t.Errorf("%+v: by %q, want %q", end, by, want)
		}
	}
}

// Reasons that alternate are logged once each, and again when they come back after a session or after a long time.
func TestAlternatingReasonsAreLoggedOnce(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	table := NewTable(Config{Logger: zap.New(core)})
	addr := ip("10.0.1.1")
	table.SetSessions([]bgp.Session{{Address: addr, Source: ip("10.0.2.5")}})
	fail := func(words string) {
		table.change(addr, func(e *entry, now time.Time) { e.fail(DirectionLocal, words, now) })
	}
	for range 20 {
		fail("one")
		fail("other")
	}
	if n := logs.FilterField(zap.String("phase", string(PhaseFailed))).Len(); n != 2 {
		t.Errorf("two reasons that alternate made %d lines: %v", n, logs.All())
	}
	table.change(addr, func(e *entry, _ time.Time) {
		for i := range e.logged {
			e.logged[i].seen = time.Now().Add(-2 * logAgain)
		}
	})
	fail("one")
	if n := logs.FilterField(zap.String("reason", "one")).Len(); n != 2 {
		t.Errorf("a reason that came back after %s made %d lines in all, want 2", logAgain, n)
	}
}

// A peer with ever new faults fills no disk: of its warnings a few are logged, and the others counted.
func TestWarningsAreLoggedNowAndThen(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	table := NewTable(Config{Logger: zap.New(core)})
	addr := ip("10.0.1.1")
	table.SetSessions([]bgp.Session{{Address: addr, Source: ip("10.0.2.5")}})
	now := time.Now()
	table.mu.Lock()
	defer table.mu.Unlock()
	e := table.entries[addr]
	for i := range 1000 { // a fault a second
		mend := message.Mend{Kind: message.Discarded, Detail: "a fault"}
		e.warnings.mended(wire.Mended{Mend: mend, Count: i, At: now})
		table.refresh(addr, e, now)
		now = now.Add(time.Second)
	}
	if n := logs.Len(); n < warningsAtOnce || n > warningsAtOnce+1000/int(warningEvery.Seconds()) {
		t.Errorf("%d lines", n)
	}
	if last := logs.All()[logs.Len()-1].ContextMap(); last["unlogged"] != int64(warningEvery.Seconds()-1) {
		t.Errorf("the last line: %v", last)
	}
	if !strings.Contains(e.shown.warning, "the 999. such one") {
		t.Errorf("the status has %q", e.shown.warning)
	}
}

// Only a single unknown address can be the peer's. Any number of unknown addresses costs no memory.
func TestStrangers(t *testing.T) {
	var s strangers
	now := time.Now()
	if s.only(now).IsValid() {
		t.Error("there is a stranger before any has come")
	}
	s.add(ip("10.0.2.5"), now)
	s.add(ip("10.0.2.5"), now.Add(time.Second))
	if got := s.only(now.Add(time.Minute)); got != ip("10.0.2.5") {
		t.Errorf("the only stranger is %s", got)
	}
	if got := s.only(now.Add(2 * causeMatters)); got.IsValid() {
		t.Errorf("%s came long ago", got)
	}
	for i := range 1000 {
		s.add(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), now)
	}
	if len(s) != mostStrangers || s.only(now).IsValid() {
		t.Errorf("%d strangers, the only one is %s", len(s), s.only(now))
	}
	s.add(ip("10.0.2.6"), now.Add(2*causeMatters))
	if got := s.only(now.Add(2 * causeMatters)); got != ip("10.0.2.6") {
		t.Errorf("after the others have gone the only stranger is %s", got)
	}
}
