package part

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// story records the calls of parts, in order.
type story struct {
	mu    sync.Mutex
	lines []string
}

func (s *story) record(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// only returns the records since the last call that begin with a word.
func (s *story) only(word string) []string {
	return slices.DeleteFunc(strings.Split(s.take(), ", "), func(l string) bool { return !strings.HasPrefix(l, word) })
}

// take returns the records since the last call.
func (s *story) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(s.lines, ", ")
	s.lines = nil
	return text
}

// actor is a part that a test controls.
type actor struct {
	name  string
	story *story
	open  func() error
	run   func(context.Context) error // nil: until ctx ends
}

func (a *actor) Name() string { return a.name }

func (a *actor) Open() error {
	a.story.record("open %s", a.name)
	if a.open != nil {
		return a.open()
	}
	return nil
}

func (a *actor) Run(ctx context.Context) error {
	a.story.record("run %s", a.name)
	if a.run != nil {
		return a.run(ctx)
	}
	<-ctx.Done()
	a.story.record("end %s", a.name)
	return ctx.Err()
}

func (a *actor) Close() { a.story.record("close %s", a.name) }

// begin runs a group in a bubble; the returned function ends it and returns its error.
func begin(t *testing.T, g *Group) (end func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-done
	}
}

func TestPartsAreOpenedInOrderAndEndInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{}
		slow := &actor{name: "b", story: s}
		slow.run = func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Minute) // the group does not end a meanwhile
			s.record("end b")
			return nil
		}
		g := NewGroup(zap.NewNop(), &actor{name: "a", story: s}, nil, slow, &actor{name: "c", story: s})
		end := begin(t, g)
		if got := strings.Join(s.only("open"), ", "); got != "open a, open b, open c" {
			t.Errorf("start: %s", got)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := s.take(); got != "end c, close c, end b, close b, end a, close a" {
			t.Errorf("end: %s", got)
		}
	})
}

func TestFailedPartIsRestartedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{}
		began := time.Now()
		var works atomic.Bool
		bad := &actor{name: "bad", story: s}
		bad.run = func(ctx context.Context) error {
			s.record("at %s", time.Since(began))
			if works.Load() {
				time.Sleep(backoff.Max)
			}
			return errors.New("no luck")
		}
		end := begin(t, NewGroup(zap.NewNop(), &actor{name: "good", story: s}, bad))
		time.Sleep(100 * time.Second)
		got := s.only("at")
		want := []string{"at 0s", "at 1s", "at 3s", "at 7s", "at 15s", "at 31s", "at 1m1s", "at 1m31s"}
		if !slices.Equal(got, want) {
			t.Errorf("runs %q, want %q", got, want)
		}
		works.Store(true) // for as long as the longest pause, from 2m1s on; then it fails once more
		time.Sleep(60 * time.Second)
		got = s.only("at")
		if want := []string{"at 2m1s", "at 2m32s"}; !slices.Equal(got, want) {
			t.Errorf("after it worked, runs %q, want %q", got, want)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := s.take(); strings.Contains(got, "run good") || !strings.Contains(got, "end good, close good") {
			t.Errorf("the other part: %s", got)
		}
	})
}

// A part that cannot be opened is opened again every second. Parts behind it start meanwhile.
func TestOpenIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{}
		tries := 0
		port := &actor{name: "port", story: s}
		port.open = func() error {
			if tries++; tries <= 3 {
				return errors.New("in use")
			}
			return nil
		}
		end := begin(t, NewGroup(zap.NewNop(), port, &actor{name: "next", story: s}))
		if got := s.take(); got != "open port, open next, run next" {
			t.Errorf("at first: %s", got)
		}
		time.Sleep(2500 * time.Millisecond)
		if got := s.take(); got != "open port, open port" {
			t.Errorf("while the port is in use: %s", got)
		}
		time.Sleep(time.Second)
		if got := s.take(); got != "open port, run port" {
			t.Errorf("when it is free: %s", got)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

func TestFatalFailureEndsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the store was closed")
		s := &story{}
		bad := &actor{name: "bad", story: s, run: func(context.Context) error {
			time.Sleep(time.Second)
			return Fatal(fmt.Errorf("tables: %w", cause))
		}}
		err := NewGroup(zap.NewNop(), &actor{name: "a", story: s}, bad, &actor{name: "c", story: s}).Run(t.Context())
		if !errors.Is(err, cause) || err.Error() != "tables: the store was closed" {
			t.Errorf("error %v", err)
		}
		if got := s.take(); !strings.HasSuffix(got, "end c, close c, close bad, end a, close a") {
			t.Errorf("end: %s", got)
		}
		// After a fatal error of Open, the parts behind it do not start.
		bad.open = func() error { return Fatal(cause) }
		if err := NewGroup(zap.NewNop(), bad, &actor{name: "c", story: s}).Run(t.Context()); !errors.Is(err, cause) {
			t.Errorf("error %v", err)
		}
		if got := s.take(); got != "open bad, close c, close bad" {
			t.Errorf("after a fatal Open: %s", got)
		}
	})
}

func TestPartThatEndsEarlyIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{}
		once := &actor{name: "once", story: s, run: func(context.Context) error { return nil }}
		g := NewGroup(zap.NewNop(), once, &actor{name: "other", story: s})
		end := begin(t, g)
		s.take()
		time.Sleep(time.Hour)
		if got := s.take(); got != "" {
			t.Errorf("an hour later: %s", got)
		}
		if n := (*condition)(g.members[0]).Notices(); len(n) > 0 {
			t.Errorf("notices %v", n)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := s.take(); got != "end other, close other, close once" {
			t.Errorf("end: %s", got)
		}
	})
}

// A panic ends the process: no code continues with a half changed state.
func TestPanicEndsTheProcess(t *testing.T) {
	if os.Getenv("MANX_TEST_PANIC") != "" {
		bad := &actor{name: "bad", story: &story{}, run: func(context.Context) error { panic("boom") }}
		_ = NewGroup(zap.NewNop(), bad).Run(t.Context())
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicEndsTheProcess$")
	cmd.Env = append(os.Environ(), "MANX_TEST_PANIC=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: boom") {
		t.Errorf("%v: %s", err, out)
	}
}

// explained has readiness and explains its errors.
type explained struct{ actor }

func (*explained) Ready() server.Check    { return server.Check{Name: "lamp", OK: true, Reason: "lit"} }
func (*explained) Explain(e error) string { return "dark: " + e.Error() }

// A part that is down fails its check, and a notice has the reason. When it runs again, the check passes and the notice
// is gone.
func TestPartThatIsDownIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		lamp := &explained{actor{name: "lamp", story: &story{}, open: func() error {
			if broken.Load() {
				return errors.New("no power")
			}
			return nil
		}}}
		plain := &actor{name: "plain", story: &story{}, run: func(ctx context.Context) error {
			if broken.Load() {
				return errors.New("no luck")
			}
			<-ctx.Done()
			return nil
		}}
		g := NewGroup(zap.NewNop(), lamp, plain)
		s := server.New(server.Config{Log: zap.NewNop()})
		g.Show(s)
		end := begin(t, g)
		lampCheck := func() server.Check {
			_, checks := s.Ready()
			at := slices.IndexFunc(checks, func(c server.Check) bool { return c.Name == "lamp" })
			if at < 0 {
				t.Fatalf("checks are %v", checks)
			}
			return checks[at]
		}
		notices := func() (list []string) {
			for _, m := range g.members {
				for _, n := range (*condition)(m).Notices() {
					list = append(list, n.Topic+" "+n.Subject+": "+n.Text)
				}
			}
			return list
		}
		if c := lampCheck(); c.OK || c.Reason != "dark: no power" {
			t.Errorf("check %v", c)
		}
		want := []string{"daemon lamp: dark: no power", "daemon plain: failed, started again: no luck"}
		if got := notices(); !slices.Equal(got, want) {
			t.Errorf("notices %q, want %q", got, want)
		}
		broken.Store(false)
		time.Sleep(2 * backoff.Max)
		if c := lampCheck(); !c.OK || c.Reason != "lit" {
			t.Errorf("check %v", c)
		}
		if got := notices(); len(got) > 0 {
			t.Errorf("notices %q", got)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

type needs struct {
	actor
	list Needs
}

func (n *needs) Needs() Needs { return n.list }

// Each kind that a part needs is there once. One part that needs all objects is enough.
func TestNeedsAreThoseOfAllParts(t *testing.T) {
	got := Merged(&needs{list: append(AllOf("B"), OwnOf("A", "D")...)}, nil, &actor{},
		&needs{list: append(AllOf("A", "C"), OwnOf("B", "D")...)})
	if want := (Needs{{"B", All}, {"A", All}, {"D", Own}, {"C", All}}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if kinds := got.Kinds(); !slices.Equal(kinds, []model.Kind{"B", "A", "D", "C"}) {
		t.Errorf("kinds %q", kinds)
	}
}
