package bfd

import (
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/namespace"
)

const (
	loadSessions = 100
	otherEnd     = "BFD_OTHER_END" // set in the process that is the other end
)

// loadPaths returns the sessions of the benchmark at one end.
func loadPaths(other bool) []Session {
	var list []Session
	for i := range byte(loadSessions) {
		here, there := netip.AddrFrom4([4]byte{10, 78, 0, i + 1}), netip.AddrFrom4([4]byte{10, 78, 1, i + 1})
		if other {
			here, there = there, here
		}
		list = append(list, path(there, here, fast))
	}
	return list
}

// TestOtherEnd is the other end of BenchmarkDetection, in another process.
func TestOtherEnd(t *testing.T) {
	if os.Getenv(otherEnd) == "" {
		t.Skip("runs as a part of BenchmarkDetection only")
	}
	e := New(Config{})
	defer e.Close()
	if err := e.Set(loadPaths(true)); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the benchmark ends
}

// BenchmarkDetection cuts the link under 100 sessions of 3 x 50 ms, and reports how long after it they go down. Before,
// it counts those that go down without a cut for BFD_SECONDS (default 5). All the while every core has a busy process
// and the garbage collector runs without a pause over a big heap in the process of the engine.
func BenchmarkDetection(b *testing.B) {
	x := newTwoHosts(b, "sh")
	for ns, end := range map[string][]Session{x.ours: loadPaths(false), x.theirs: loadPaths(true)} {
		for _, s := range end {
			x.ip("-n", ns, "addr", "add", s.Local.String()+"/16", "dev", "eth0")
		}
	}
	other := namespace.Command(x.theirs, os.Args[0], "-test.run=^TestOtherEnd$", "-test.timeout=2h")
	other.Env = append(os.Environ(), otherEnd+"=1")
	hold, err := other.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := other.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = hold.Close(); _ = other.Wait() })

	type timedEvent struct {
		at time.Time
		Event
	}
	events := make(chan timedEvent, 100*loadSessions)
	e := New(Config{OnEvent: func(ev Event) { events <- timedEvent{time.Now(), ev} }})
	b.Cleanup(e.Close)
	if nsErr := namespace.Inside(x.ours, func() { err = e.Set(loadPaths(false)) }); nsErr != nil || err != nil {
		b.Fatal(nsErr, err)
	}
	allUp := func() {
		b.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			ready := 0
			for _, s := range e.statuses() {
				if s.State == Up && s.Transmit == fast && s.Detection == 3*fast {
					ready++
				}
			}
			if ready == loadSessions {
				return
			}
			if time.Now().After(end) {
				b.Fatalf("%d of %d sessions are up", ready, loadSessions)
			}
		}
	}
	drain := func() (downs int) {
		for {
			select {
			case ev := <-events:
				if isDown(ev.Event) {
					downs++
					b.Logf("%s: %s", ev.Status.Session.Remote, ev.Status.Reason)
				}
			default:
				return downs
			}
		}
	}
	allUp()
	drain()
	overload(b)
	seconds := 5
	if text := os.Getenv("BFD_SECONDS"); text != "" {
		if seconds, err = strconv.Atoi(text); err != nil {
			b.Fatalf("BFD_SECONDS = %q: want a number of seconds", text)
		}
	}
	time.Sleep(time.Duration(seconds) * time.Second) // the time that is measured
	wrong := drain()
	b.Logf("%d false detections in %d s", wrong, seconds)

	var took []time.Duration
	for b.Loop() {
		allUp()
		wrong += drain()
		cut := time.Now()
		x.setCarrier(x.theirs, false)
		for range loadSessions {
			select {
			case ev := <-events:
				took = append(took, ev.at.Sub(cut))
			case <-time.After(10 * time.Second):
				b.Fatal("a cut is not detected")
			}
		}
		x.setCarrier(x.theirs, true)
	}
	slices.Sort(took)
	for name, part := range map[string]int{"p50-ms": 50, "p99-ms": 99, "max-ms": 100} {
		b.ReportMetric(float64(took[(len(took)-1)*part/100].Microseconds())/1000, name)
	}
	b.ReportMetric(float64(took[0].Microseconds())/1000, "min-ms")
	b.ReportMetric(float64(wrong), "false-detections")
	b.ReportMetric(0, "ns/op")
}

// setCarrier sets the link of a namespace up or down, without the time for the start of a program.
func (x *twoHosts) setCarrier(ns string, on bool) {
	x.t.Helper()
	var err error
	nsErr := namespace.Inside(ns, func() {
		fd, e := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err = e; err != nil {
			return
		}
		defer unix.Close(fd)
		request, e := unix.NewIfreq("eth0")
		if err = e; err != nil {
			return
		}
		if on {
			request.SetUint16(unix.IFF_UP)
		}
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
	})
	if nsErr != nil || err != nil {
		x.t.Fatal(nsErr, err)
	}
}

// overload keeps all cores and the garbage collector busy.
func overload(b *testing.B) {
	for range runtime.NumCPU() {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		heap := make([]*[16]*int, 1<<20) // about 128 MB of pointers
		for i := range heap {
			heap[i] = new([16]*int)
		}
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
				runtime.KeepAlive(heap)
			}
		}
	}()
	b.Cleanup(func() { close(stop); <-stopped })
}
