package speaker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/locrib"
)

// A speaker in another process can be killed like a real one, and may be in a network namespace. The test binary runs
// itself for this.
const (
	childEnv = "MANX_TEST_SPEAKER"
	childBMP = "MANX_TEST_SPEAKER_BMP" // address of a BMP collector, or empty
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		runChild()
		return
	}
	os.Exit(m.Run())
}

// childLine is a report of the child.
type childLine struct {
	Set     *string        `json:",omitempty"` // error text of a Set, or empty
	Session *SessionStatus `json:",omitempty"`
	Routes  []locrib.Route `json:",omitempty"`
	Synced  bool           `json:",omitempty"`
}

// runChild reads one Desired per line and reports sessions and routes.
func runChild() {
	log, err := zap.NewDevelopment(zap.IncreaseLevel(zap.InfoLevel))
	if err != nil {
		panic(err)
	}
	cfg := Config{Logger: log}
	if addr, err := netip.ParseAddrPort(os.Getenv(childBMP)); err == nil {
		cfg.BMP = []BMP{{Collector: addr, Policy: bmpPrePolicy, SysName: "child", SysDescr: "Manx"}}
	}
	s := New(cfg)
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	report := func(l childLine) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(l)
	}
	go func() {
		for ev := range s.WatchSessions(context.Background()) {
			report(childLine{Session: &ev.Status})
		}
	}()
	go func() {
		reported := false
		for range s.Changed() {
			if synced, _ := s.Synced(); synced && !reported {
				reported = true
				report(childLine{Synced: true})
			}
			if r := s.Take(0); len(r) > 0 {
				report(childLine{Routes: r})
			}
		}
	}()
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var d bgp.Desired
		if err := json.Unmarshal(in.Bytes(), &d); err != nil {
			panic(err)
		}
		text := ""
		if err := s.Set(context.Background(), d); err != nil {
			text = err.Error()
		}
		report(childLine{Set: &text})
	}
	select {} // until killed
}

// child is a speaker in its own process.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu       sync.Mutex
	changed  *sync.Cond
	sets     []string
	sessions map[netip.Addr]SessionStatus
	routes   routeTable
	removed  []netip.Prefix // prefixes that were ever removed
	synced   bool
	ended    bool
}

func startChild(t *testing.T, netns string, env ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command("ip", "netns", "exec", netns, exe), sessions: map[netip.Addr]SessionStatus{},
		routes: routeTable{}}
	c.changed = sync.NewCond(&c.mu)
	c.cmd.Env = append(append(os.Environ(), childEnv+"=1"), env...)
	stderr := &strings.Builder{}
	c.cmd.Stderr = stderr
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.read(stdout)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-done
		_ = c.cmd.Wait()
		if t.Failed() {
			t.Logf("speaker process:\n%s", stderr)
		}
	})
	return c
}

func (c *child) read(r io.Reader) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		var l childLine
		if json.Unmarshal(in.Bytes(), &l) != nil {
			continue
		}
		c.mu.Lock()
		if l.Set != nil {
			c.sets = append(c.sets, *l.Set)
		}
		if l.Session != nil {
			c.sessions[l.Session.Session.Address] = *l.Session
		}
		for _, r := range l.Routes {
			if len(r.Paths) == 0 {
				delete(c.routes, r.Prefix)
				c.removed = append(c.removed, r.Prefix)
			} else {
				c.routes[r.Prefix] = r
			}
		}
		c.synced = c.synced || l.Synced
		c.changed.Broadcast()
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.ended = true
	c.changed.Broadcast()
	c.mu.Unlock()
}

func (c *child) set(d bgp.Desired) {
	c.t.Helper()
	b, err := json.Marshal(d)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	n := len(c.sets)
	c.mu.Unlock()
	if _, err := c.stdin.Write(append(b, '\n')); err != nil {
		c.t.Fatal(err)
	}
	c.await("the answer to Set", func() bool { return len(c.sets) > n })
	if c.sets[n] != "" {
		c.t.Fatalf("Set: %s", c.sets[n])
	}
}

// await waits until cond, called with the child locked, is true.
func (c *child) await(what string, cond func() bool) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := time.AfterFunc(60*time.Second, func() { c.changed.Broadcast() })
	defer timer.Stop()
	start := time.Now()
	for !cond() {
		if c.ended || time.Since(start) > 60*time.Second {
			var states []string
			for a, s := range c.sessions {
				states = append(states, fmt.Sprintf("%s %s %q", a, s.Phase, s.Reason))
			}
			c.t.Fatalf("process ended %v, or timeout, while waiting for %s; sessions %v; routes %v", c.ended, what,
				states, firstRoutes(c.routes))
		}
		c.changed.Wait()
	}
}

// session and route are the child's last report, for callers that have not locked it.
func (c *child) session(a netip.Addr) SessionStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions[a]
}

func (c *child) route(p netip.Prefix) locrib.Route {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.routes[p]
}

// kill ends the process with a signal and waits for its end.
func (c *child) kill(sig os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	for !c.ended {
		c.changed.Wait()
	}
	c.mu.Unlock()
}
