package node

import (
	"context"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// drainTest runs a Drainer of node "n" whose workloads get rate packets between two checks.
type drainTest struct {
	tunnelTest
	drainer *Drainer
	rate    atomic.Uint64
	tables  *datastore.Tables
}

func newDrainTest(t *testing.T) *drainTest {
	x := &drainTest{tunnelTest: newTunnelTest(t)}
	x.rate.Store(1000)
	var total atomic.Uint64
	x.drainer = &Drainer{Store: x.store, Node: "n", Log: zap.NewNop(), Interval: 20 * time.Millisecond,
		Settle:  50 * time.Millisecond,
		Packets: func() (uint64, error) { return total.Add(x.rate.Load()), nil }}
	x.tables = datastore.NewTables(zap.NewNop(), "")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- x.tables.Run(ctx, x.store, model.KindNode) }()
	go func() { done <- x.drainer.Run(ctx, x.tables) }()
	t.Cleanup(func() { cancel(); <-done; <-done })
	return x
}

func (x *drainTest) annotate(change func(map[string]string)) {
	x.Helper()
	for range 10 {
		o, err := x.store.Get(context.Background(), model.ResourceKey(model.KindNode, "n"))
		if err != nil {
			x.Fatal(err)
		}
		n := o.Value.(*model.Node)
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		change(n.Annotations)
		if _, err = x.store.Update(context.Background(), o); err == nil {
			return
		}
	}
	x.Fatal("the node cannot be updated")
}

func (x *drainTest) waitPhase(want model.DrainPhase) string {
	x.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		s := x.drainer.State()
		if s.Phase == want {
			return s.Reason
		}
		if time.Now().After(deadline) {
			x.Fatalf("phase %q (%s), want %q", s.Phase, s.Reason, want)
		}
	}
}

func TestDrainWaitsUntilTrafficHasLeft(t *testing.T) {
	x := newDrainTest(t)
	x.annotate(func(a map[string]string) { a[model.AnnotationDrain] = "2026-01-01T00:00:00Z" })
	x.waitPhase(model.Draining)
	for !strings.Contains(x.waitPhase(model.Draining), "packets/s go to workloads") {
		time.Sleep(5 * time.Millisecond)
	}
	x.rate.Store(0)
	x.waitPhase(model.Drained)
	if raw := x.rawValue("nodes/n"); !strings.Contains(raw, model.AnnotationDrained) ||
		!strings.Contains(raw, `"futureSpec":{"a":1}`) {
		t.Errorf("the node does not report, or lost unknown fields: %s", raw)
	}
	x.annotate(func(a map[string]string) { delete(a, model.AnnotationDrain) })
	x.waitPhase(model.Returning)
	x.waitPhase(model.InService)
	if raw := x.rawValue("nodes/n"); strings.Contains(raw, "manx.io/") {
		t.Errorf("annotations are left: %s", raw)
	}
}

func TestDrainerSpeaksBGP(t *testing.T) {
	x := newDrainTest(t)
	x.annotate(func(a map[string]string) { a[model.AnnotationBGPOff] = "BGP is off (here)" })
	for end := time.Now().Add(time.Minute); strings.Contains(x.rawValue("nodes/n"), model.AnnotationBGPOff); {
		if time.Sleep(5 * time.Millisecond); time.Now().After(end) {
			t.Fatal("the note of an earlier daemon stays")
		}
	}
}

func TestDrainDoesNotWaitForEver(t *testing.T) {
	x := newDrainTest(t)
	x.annotate(func(a map[string]string) {
		a[model.AnnotationDrain], a[model.AnnotationDrainTimeout] = "2026-01-01T00:00:00Z", "200ms"
	})
	x.waitPhase(model.Drained)
}

func TestDrainCanBeCalledOff(t *testing.T) {
	x := newDrainTest(t)
	x.annotate(func(a map[string]string) { a[model.AnnotationDrain] = "2026-01-01T00:00:00Z" })
	x.waitPhase(model.Draining)
	x.annotate(func(a map[string]string) { delete(a, model.AnnotationDrain) })
	x.waitPhase(model.InService)
}

func TestDrainTimeoutMustBeADuration(t *testing.T) {
	n := &model.Node{}
	n.Annotations = map[string]string{model.AnnotationDrainTimeout: "soon"}
	d, err := n.DrainTimeout()
	if d != model.DefaultDrainTimeout || err == nil || !strings.Contains(err.Error(), `"soon"`) {
		t.Errorf("DrainTimeout = %s, %v", d, err)
	}
}

// A pod that ends takes the counter of its interface along. A second in which the sum fell says nothing of the traffic
// of the other pods, so it is no quiet one.
func TestDrainReads(t *testing.T) {
	for _, c := range []struct {
		name  string
		sums  []uint64
		quiet int
	}{
		{"no traffic", []uint64{5000, 5000, 5005, 5005}, 3},
		{"traffic", []uint64{5000, 6000, 7000, 8000}, 0},
		{"traffic while an interface vanishes every second", []uint64{9000, 7000, 5000, 3000}, 0},
		{"an interface vanishes after quiet seconds", []uint64{9000, 9000, 9000, 3000}, 0},
		{"an interface vanishes before quiet seconds", []uint64{9000, 3000, 3000, 3000}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sum uint64
			d := &Drainer{Interval: time.Second, Log: zap.NewNop(), Packets: func() (uint64, error) { return sum, nil }}
			w, now := &drainWatch{}, time.Unix(1e9, 0)
			for _, sum = range c.sums {
				d.read(w, now)
				now = now.Add(time.Second)
			}
			if w.quiet != c.quiet {
				t.Errorf("%d quiet seconds, want %d", w.quiet, c.quiet)
			}
		})
	}
}

// A drained peer is answered when other routers have had time to act, at once after a restart, and its answer goes with
// the request.
func TestDrainOfPeers(t *testing.T) {
	x := newDrainTest(t)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	request := func(move func(context.Context, datastore.Store, string, []netip.Addr) (model.DrainPhase, error),
		want model.DrainPhase, peers ...netip.Addr) {
		t.Helper()
		if before, err := move(t.Context(), x.store, "n", peers); err != nil || before != want {
			t.Errorf("phase before %q, %v; want %q", before, err, want)
		}
	}
	answered := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			o, err := x.store.Get(t.Context(), model.ResourceKey(model.KindNode, "n"))
			if err != nil {
				t.Fatal(err)
			}
			have := o.Value.(*model.Node).Annotations[model.AnnotationDrainedPeers]
			if have == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("answer %q, want %q", have, want)
			}
		}
	}
	begin := time.Now()
	request(RequestPeerDrain, model.InService, b, a)
	answered("192.0.2.1,2001:db8::1")
	if took := time.Since(begin); took < x.drainer.Settle {
		t.Errorf("answered after %s, other routers have %s", took, x.drainer.Settle)
	}
	request(RequestPeerDrain, model.Drained, a)
	for deadline := time.Now().Add(time.Minute); x.drainer.Peers()[a] != model.Drained; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("phases %v", x.drainer.Peers())
		}
	}
	if s := x.drainer.State(); s.Phase != model.InService {
		t.Errorf("the node is %s", s.Phase)
	}
	request(CancelPeerDrain, model.Draining, a)
	answered("2001:db8::1")
	request(CancelPeerDrain, model.InService, a)
	x.annotate(func(a map[string]string) { a[model.AnnotationDrainPeers] += ", nonsense" })
	request(CancelPeerDrain, model.Draining, b)
	answered("")
	if have := len(x.drainer.Peers()); have != 0 {
		t.Errorf("%d peers are drained", have)
	}
}
