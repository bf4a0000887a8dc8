package bfd

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/manxnet/manx/integration/namespace"
)

// twoHosts has two namespaces on one link: ours, and that of another BFD daemon.
type twoHosts struct {
	t            testing.TB
	ours, theirs string
	dir          string
	events       chan Event
	engine       *Engine
	bird         *exec.Cmd
}

var (
	our4, their4 = netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")
	our6, their6 = netip.MustParseAddr("fd77::1"), netip.MustParseAddr("fd77::2")
)

func newTwoHosts(t testing.TB, programs ...string) *twoHosts {
	t.Helper()
	namespace.Require(t, programs...)
	x := &twoHosts{t: t, dir: t.TempDir(), events: make(chan Event, 1000)}
	x.ours, x.theirs = namespace.New(t, "mxbfd-a"), namespace.New(t, "mxbfd-b")
	x.ip("link", "add", "eth0", "netns", x.ours, "type", "veth", "peer", "name", "eth0", "netns", x.theirs)
	for ns, addrs := range map[string][2]netip.Addr{x.ours: {our4, our6}, x.theirs: {their4, their6}} {
		x.ip("-n", ns, "link", "set", "eth0", "up")
		x.ip("-n", ns, "addr", "add", addrs[0].String()+"/24", "dev", "eth0")
		x.ip("-n", ns, "addr", "add", addrs[1].String()+"/64", "dev", "eth0", "nodad")
	}
	return x
}

func (x *twoHosts) ip(args ...string) {
	x.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		x.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// startEngine runs our engine.
func (x *twoHosts) startEngine() {
	x.engine = New(Config{Logger: zaptest.NewLogger(x.t), OnEvent: func(e Event) { x.events <- e }})
	x.t.Cleanup(x.engine.Close)
}

func (x *twoHosts) set(sessions ...Session) {
	x.t.Helper()
	var err error
	if nsErr := namespace.Inside(x.ours, func() { err = x.engine.Set(sessions) }); nsErr != nil || err != nil {
		x.t.Fatal(nsErr, err)
	}
}

// statuses returns the status of all sessions, sorted by address.
func (e *Engine) statuses() []Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]Status, 0, len(e.sessions))
	for _, s := range e.sessions {
		list = append(list, s.status())
	}
	slices.SortFunc(list, func(a, b Status) int { return a.Session.Remote.Compare(b.Session.Remote) })
	return list
}

// await waits for an event.
func (x *twoHosts) await(what string, cond func(Event) bool) Event {
	x.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case e := <-x.events:
			if cond(e) {
				return e
			}
		case <-timeout:
			x.t.Fatalf("timeout while waiting for %s; sessions: %+v", what, x.engine.statuses())
		}
	}
}

func isUp(e Event) bool { return e.Status.State == Up }

func isDown(e Event) bool { return e.Status.State == Down }

// staysUp fails if a session goes down meanwhile.
func (x *twoHosts) staysUp(what string, d time.Duration) {
	x.t.Helper()
	timeout := time.After(d)
	for {
		select {
		case e := <-x.events:
			if isDown(e) {
				x.t.Fatalf("%s: went down: %+v", what, e)
			}
		case <-timeout:
			return
		}
	}
}

func (x *twoHosts) run(ready func() (string, bool), name string, args ...string) *exec.Cmd {
	x.t.Helper()
	cmd := namespace.Command(x.theirs, name, args...)
	log, err := os.Create(filepath.Join(x.dir, filepath.Base(name)+".log"))
	if err != nil {
		x.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); log.Close() })
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text, ok := ready()
		if ok {
			return cmd
		}
		if time.Now().After(end) {
			b, _ := os.ReadFile(log.Name())
			x.t.Fatalf("%s is not ready: %s\n%s", name, text, b)
		}
	}
}

// startBIRD runs BIRD with this BFD protocol.
func (x *twoHosts) startBIRD(bfd string) (configure func(bfd string)) {
	x.t.Helper()
	conf, ctl := filepath.Join(x.dir, "bird.conf"), filepath.Join(x.dir, "bird.ctl")
	write := func(bfd string) {
		text := "log stderr all;\nrouter id 10.77.0.2;\nprotocol device {}\n" +
			"protocol direct { ipv4; ipv6; }\nprotocol bfd {\n" + bfd + "}\n"
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			x.t.Fatal(err)
		}
	}
	birdc := func(words ...string) (string, bool) {
		out, err := exec.Command("birdc", append([]string{"-s", ctl}, words...)...).CombinedOutput()
		return string(out), err == nil
	}
	write(bfd)
	x.bird = x.run(func() (string, bool) { return birdc("show", "status") }, "bird", "-f", "-c", conf, "-s", ctl)
	return func(bfd string) {
		write(bfd)
		if out, ok := birdc("configure"); !ok || !strings.Contains(out, "Reconfigur") {
			x.t.Fatalf("birdc configure: %s", out)
		}
	}
}

func path(remote, local netip.Addr, every time.Duration) Session {
	return Session{Remote: remote, Local: local, Transmit: every, Receive: every, Multiplier: 3}
}

const fast = 50 * time.Millisecond

func TestBIRD(t *testing.T) {
	x := newTwoHosts(t, "bird", "birdc")
	timers := "interface \"*\" { min rx interval %d ms; min tx interval %d ms; multiplier 4; };\n" +
		"multihop { min rx interval %d ms; min tx interval %d ms; multiplier 4; };\n"
	neighbours := "neighbor 10.77.0.1;\nneighbor fd77::1;\n"
	configure := x.startBIRD(fmt.Sprintf(timers, 50, 50, 50, 50) + neighbours)
	x.startEngine()
	four, six := path(their4, our4, fast), path(their6, our6, fast)

	x.set(four, six)
	for range 2 {
		x.await("both families up", isUp)
	}
	x.awaitStatus("timers of 50 ms", their4, func(s Status) bool {
		return s.Detection == 200*time.Millisecond &&
			s.Transmit == fast
	})

	x.set(path(their4, our4, 200*time.Millisecond), six)
	x.awaitStatus("slower timers", their4, func(s Status) bool {
		return s.Transmit == 200*time.Millisecond &&
			s.Detection == 800*time.Millisecond
	})
	configure(fmt.Sprintf(timers, 50, 400, 50, 50) + neighbours)
	x.awaitStatus("slower timers of BIRD", their4, func(s Status) bool { return s.Detection == 1600*time.Millisecond })
	configure(fmt.Sprintf(timers, 50, 50, 50, 50) + neighbours)
	x.set(four, six)
	x.awaitStatus("fast timers again", their4, func(s Status) bool {
		return s.Detection == 200*time.Millisecond &&
			s.Transmit == fast
	})
	x.staysUp("after timers changed", 500*time.Millisecond)

	x.ip("-n", x.theirs, "link", "set", "eth0", "down")
	e := x.await("the cut", isDown)
	if !e.Failure || e.Status.Downs != 1 {
		t.Errorf("a cut is no failure: %+v", e)
	}
	x.await("the cut of the other family", isDown)
	x.ip("-n", x.theirs, "link", "set", "eth0", "up")
	x.ip("-n", x.theirs, "addr", "replace", their6.String()+"/64", "dev", "eth0", "nodad")
	x.await("the path back", isUp)

	x.set(six) // BIRD receives AdminDown and does not treat it as a failure
	x.awaitStatus("IPv6 up", their6, func(s Status) bool { return s.State == Up })
	x.set(four, six)
	x.awaitStatus("IPv4 up again", their4, func(s Status) bool { return s.State == Up })

	multi := four
	multi.Multihop = true
	configure(fmt.Sprintf(timers, 50, 50, 50, 50) + "neighbor 10.77.0.1 local 10.77.0.2 multihop;\n")
	x.set(multi)
	x.awaitStatus("multihop up", their4, func(s Status) bool { return s.State == Up && s.Session.Multihop })
}

// awaitStatus waits until the status of a session meets a condition.
func (x *twoHosts) awaitStatus(what string, remote netip.Addr, cond func(Status) bool) {
	x.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s, ok := x.engine.Session(remote)
		if ok && cond(s) {
			return
		}
		if time.Now().After(end) {
			x.t.Fatalf("timeout while waiting for %s; session: %+v", what, s)
		}
	}
}
