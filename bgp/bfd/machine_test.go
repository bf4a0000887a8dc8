package bfd

import (
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const ms = time.Millisecond

// wire runs two machines against each other on a clock of the test.
type wire struct {
	t       *testing.T
	now     time.Time
	a, b    *machine
	cut     bool // nothing arrives any more
	sent    map[*machine][]packet
	changes []change // of a
}

func newWire(t *testing.T, a, b *machine) *wire {
	return &wire{t: t, now: t0, a: a, b: b, sent: map[*machine][]packet{}}
}

// run moves the clock until then.
func (w *wire) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(ms) {
		for _, m := range []*machine{w.a, w.b} {
			if c := m.expire(w.now); c.from != c.to && m == w.a {
				w.changes = append(w.changes, c)
			}
			if m.due(w.now) {
				w.send(m, m.packet(false))
			}
		}
	}
}

func (w *wire) send(from *machine, p packet) {
	w.sent[from] = append(w.sent[from], p)
	if w.cut {
		return
	}
	to := w.a
	if from == w.a {
		to = w.b
	}
	if p.your != 0 && p.your != to.my {
		return
	}
	p, err := parse(p.marshal())
	if err != nil {
		w.t.Fatal(err)
	}
	c, answer := to.receive(p, w.now)
	if c.from != c.to && to == w.a {
		w.changes = append(w.changes, c)
	}
	if answer {
		w.send(to, to.packet(true))
	}
}

func newUpWire(t *testing.T, a, b *machine) *wire {
	t.Helper()
	w := newWire(t, a, b)
	w.run(4 * time.Second)
	if a.state != Up || b.state != Up {
		t.Fatalf("states %s and %s, want Up", a.state, b.state)
	}
	return w
}

func TestTimersAreNegotiated(t *testing.T) {
	a, b := newMachine(1, 50*ms, 60*ms, 3, t0), newMachine(2, 200*ms, 100*ms, 5, t0)
	w := newUpWire(t, a, b)
	for _, c := range []struct {
		name      string
		got, want time.Duration
	}{
		{"a sends as often as b takes it", a.interval(), 100 * ms},
		{"b sends as often as it wants", b.interval(), 200 * ms},
		{"a waits b's multiplier times b's interval", a.detection(), 5 * 200 * ms},
		{"b waits a's multiplier times its own interval", b.detection(), 3 * 100 * ms},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.name, c.got, c.want)
		}
	}
	before := len(w.sent[a])
	w.run(10 * time.Second)
	if n := len(w.sent[a]) - before; n < 100 || n > 134 { // 10 s / 100 ms, up to a quarter more by jitter
		t.Errorf("a sent %d packets in 10 s, want 100 to 134", n)
	}
}

func TestSlowUntilUp(t *testing.T) {
	a := newMachine(1, 50*ms, 50*ms, 3, t0)
	w := newWire(t, a, newMachine(2, 50*ms, 50*ms, 3, t0))
	w.cut = true
	w.run(10 * time.Second)
	if n := len(w.sent[a]); n < 10 || n > 15 {
		t.Errorf("%d packets in 10 s while down, want about one a second", n)
	}
	if p := w.sent[a][3]; p.desiredTx != time.Second || p.state != Down || p.your != 0 {
		t.Errorf("packet while down: %+v", p)
	}
}

func TestSilenceIsDetected(t *testing.T) {
	a, b := newMachine(1, 50*ms, 50*ms, 3, t0), newMachine(2, 50*ms, 50*ms, 3, t0)
	w := newUpWire(t, a, b)
	w.cut, w.changes = true, nil
	w.run(149 * ms)
	if a.state != Up && w.now.Sub(a.expires) < 0 {
		t.Error("down before the detection time")
	}
	w.run(10 * ms)
	if a.state != Down || a.diag != detectionTimeExpired || a.your != 0 {
		t.Errorf("after the detection time: %s, %s, your discriminator %d", a.state, a.diag, a.your)
	}
	if a.desiredTx != time.Second {
		t.Errorf("desired transmit interval while down: %s, want 1s", a.desiredTx)
	}
	w.cut = false
	w.run(5 * time.Second)
	if a.state != Up || b.state != Up {
		t.Errorf("%s and %s when the path is back", a.state, b.state)
	}
}

func TestAdminDownIsNoFailure(t *testing.T) {
	a, b := newMachine(1, 50*ms, 50*ms, 3, t0), newMachine(2, 50*ms, 50*ms, 3, t0)
	w := newUpWire(t, a, b)
	w.changes = nil
	b.close(w.now)
	w.run(100 * ms)
	if len(w.changes) != 1 || !w.changes[0].fresh || a.state != Down || a.remoteState != AdminDown {
		t.Errorf("after AdminDown of the remote: %+v, state %s", w.changes, a.state)
	}
	w.run(2 * time.Second)
	if !b.closed(w.now) {
		t.Error("a closed session is never over")
	}
}

// stranger is the packet of a restarted remote; any host that can send from its address can forge it.
var stranger = packet{state: Down, diag: noDiagnostic, multiplier: 3, my: 99, desiredTx: time.Second,
	requiredRx: 50 * ms}

func TestRemoteThatBeginsAnewIsNoFailure(t *testing.T) {
	a, b := newMachine(1, 50*ms, 50*ms, 3, t0), newMachine(2, 50*ms, 50*ms, 3, t0)
	w := newUpWire(t, a, b)
	w.b = newMachine(99, 50*ms, 50*ms, 3, w.now) // the remote has lost its state
	w.changes = nil
	w.run(3 * time.Second)
	if len(w.changes) == 0 || w.changes[0].to != Down || !w.changes[0].fresh || !w.changes[0].doubtful ||
		a.state != Up ||
		a.your != 99 {
		t.Errorf("a new session of the remote: %+v, then %s with %d", w.changes, a.state, a.your)
	}

	a, b = newMachine(1, 50*ms, 50*ms, 3, t0), newMachine(2, 50*ms, 50*ms, 3, t0)
	w = newUpWire(t, a, b)
	c, _ := a.receive(packet{state: Down, diag: detectionTimeExpired, multiplier: 3, my: 2, your: 1,
		desiredTx: time.Second, requiredRx: 50 * ms}, w.now)
	if c.to != Down || c.fresh || a.diag != neighborSignaledDown {
		t.Errorf("the remote does not receive our packets: %+v, %s", c, a.diag)
	}
}

// A forged packet without our discriminator changes nothing while packets of the remote arrive: neither the session,
// which would go down by RFC 5880 section 6.8.6, nor the detection time.
func TestAForgedEndIsNotBelieved(t *testing.T) {
	for _, state := range []State{Down, AdminDown} {
		forged := stranger
		forged.state, forged.poll, forged.multiplier, forged.requiredRx = state, true, 255, time.Minute
		a, b := newMachine(1, 50*ms, 50*ms, 3, t0), newMachine(2, 50*ms, 50*ms, 3, t0)
		w := newUpWire(t, a, b)
		w.changes = nil
		for range 2000 {
			before := *a
			if _, answer := a.receive(forged, w.now); answer {
				t.Fatalf("%s: a forged poll is answered", state)
			}
			if after := *a; after.expires != before.expires || after.nextSend != before.nextSend ||
				after.your != before.your || after.remoteRx != before.remoteRx {
				t.Fatalf("%s: a forged packet changes %+v to %+v", state, before, after)
			}
			w.run(ms)
		}
		if len(w.changes) != 0 || a.state != Up || b.state != Up {
			t.Errorf("%s: after 2 s of forged packets: %+v, %s and %s", state, w.changes, a.state, b.state)
		}
		// The path breaks, and the forger goes on.
		w.cut = true
		for range 1000 {
			a.receive(forged, w.now)
			w.run(ms)
		}
		if len(w.changes) == 0 || w.changes[0].to != Down || !w.changes[0].doubtful || a.confirmed {
			t.Errorf("%s: a cut with forged packets: %+v, confirmed: %t", state, w.changes, a.confirmed)
		}
	}
}

func TestTimersChangeWithoutADrop(t *testing.T) {
	a, b := newMachine(1, 50*ms, 50*ms, 3, t0), newMachine(2, 50*ms, 50*ms, 3, t0)
	w := newUpWire(t, a, b)
	w.changes = nil
	for _, next := range []time.Duration{time.Second, 20 * ms, 300 * ms} {
		a.configure(next, next, 3, w.now)
		if a.pollDone == nil {
			t.Fatalf("no poll sequence for %s", next)
		}
		if a.state != Up {
			t.Fatal("the change took the session down")
		}
		w.run(5 * time.Second)
		if a.pollDone != nil || a.interval() != max(next, 50*ms) || a.detectRx != next {
			t.Errorf("after the change to %s: interval %s, detection by %s, poll open: %t", next, a.interval(),
				a.detectRx, a.pollDone != nil)
		}
	}
	if len(w.changes) != 0 || b.state != Up {
		t.Errorf("transitions %+v, remote %s", w.changes, b.state)
	}
}

func TestASecondChangeWaitsForTheAnswerToTheFirst(t *testing.T) {
	a, b := newMachine(1, 50*ms, 50*ms, 3, t0), newMachine(2, 50*ms, 50*ms, 3, t0)
	w := newUpWire(t, a, b)
	a.configure(time.Second, time.Second, 3, w.now)
	a.configure(20*ms, 20*ms, 3, w.now)
	if a.desiredTx != time.Second {
		t.Errorf("announces %s before the remote has answered to 1s", a.desiredTx)
	}
	a.receive(packet{state: Up, final: true, multiplier: 3, my: 2, your: 1, desiredTx: 50 * ms, requiredRx: 50 * ms},
		w.now)
	if a.desiredTx != 20*ms || a.pollDone == nil || a.detectRx != time.Second {
		t.Errorf("after the answer: announces %s, poll open: %t, detection by %s", a.desiredTx, a.pollDone != nil,
			a.detectRx)
	}
	w.run(3 * time.Second)
	if a.detectRx != 20*ms || a.state != Up {
		t.Errorf("in the end: detection by %s, %s", a.detectRx, a.state)
	}
}

func TestRemoteThatWantsNoPackets(t *testing.T) {
	a, b := newMachine(1, 50*ms, 50*ms, 3, t0), newMachine(2, 50*ms, 50*ms, 3, t0)
	w := newUpWire(t, a, b)
	a.receive(packet{state: Up, multiplier: 3, my: 2, your: 1, desiredTx: 50 * ms, requiredRx: 0}, w.now)
	before := len(w.sent[a])
	b.nextSend = w.now.Add(time.Hour)
	w.run(100 * ms)
	if n := len(w.sent[a]) - before; n > 0 {
		t.Errorf("%d packets to a remote that wants none", n)
	}
}

func TestALateTimerIsGivenASecondLook(t *testing.T) {
	a, b := newMachine(1, 50*ms, 50*ms, 3, t0), newMachine(2, 50*ms, 50*ms, 3, t0)
	w := newUpWire(t, a, b)
	late := a.expires.Add(200 * ms) // this process was stopped
	if c := a.expire(late); c.to != Up {
		t.Error("declared down before what came in meanwhile was read")
	}
	a.receive(packet{state: Up, multiplier: 3, my: 2, your: 1, desiredTx: 50 * ms, requiredRx: 50 * ms}, late)
	if c := a.expire(late.Add(20 * ms)); c.to != Up {
		t.Error("down although a packet was waiting")
	}
	_ = w
	later := a.expires.Add(200 * ms)
	a.expire(later)
	if c := a.expire(later.Add(starved)); c.to != Down {
		t.Error("silence is not detected after a second look")
	}
}

func TestJitter(t *testing.T) {
	for range 1000 {
		if d := jitter(100*ms, 3); d < 75*ms || d > 100*ms {
			t.Fatalf("jitter of 100 ms gives %s", d)
		}
		if d := jitter(100*ms, 1); d < 75*ms || d > 90*ms {
			t.Fatalf("jitter of 100 ms with multiplier 1 gives %s", d)
		}
	}
}
