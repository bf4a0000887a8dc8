package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// store is a target in memory that logs what is done to it.
type store struct {
	have map[string]int
	log  []string
	fail map[string]error
	list error
}

func (s *store) List() (map[string]int, error) { return maps.Clone(s.have), s.list }

func (s *store) Apply(steps []Step[string, int]) []error {
	errs := make([]error, len(steps))
	for i, st := range steps {
		s.log = append(s.log, fmt.Sprintf("%s %s", st.Action, st.Key))
		if errs[i] = s.fail[st.Key]; errs[i] != nil {
			continue
		}
		if st.Action == Remove {
			delete(s.have, st.Key)
		} else {
			s.have[st.Key] = st.New
		}
	}
	return errs
}

func (s *store) took() []string {
	log := s.log
	s.log = nil
	return log
}

type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func newTable(have map[string]int) (*Table[string, int], *store, *clock) {
	s := &store{have: have, fail: map[string]error{}}
	c := &clock{time.Unix(1000, 0)}
	t := NewTable(s, func(a, b int) bool { return a == b }, c.now, Backoff{Min: time.Second, Max: 4 * time.Second})
	return t, s, c
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

func TestOnlyDifferencesAreApplied(t *testing.T) {
	table, s, _ := newTable(map[string]int{"same": 1, "other": 1, "old": 1})
	for _, k := range []string{"same", "other", "new"} {
		table.Set(k, map[string]int{"same": 1, "other": 2, "new": 3}[k])
	}
	if err := table.Resync(); err != nil {
		t.Fatal(err)
	}
	table.Flush()
	slices.Sort(s.log)
	expect(t, "first flush", s.took(), "add new", "change other")
	table.Set("new", 3)
	table.Flush()
	expect(t, "nothing new", s.took())
}

func TestLeftoversGoOnlyWhenPruningIsAllowed(t *testing.T) {
	table, s, _ := newTable(map[string]int{"old": 1})
	_ = table.Resync()
	table.Flush()
	if st := table.Status("old"); st.Phase != Leftover || st.Reason == "" {
		t.Fatalf("%+v", st)
	}
	expect(t, "before", s.took())
	table.Prune(true)
	table.Flush()
	expect(t, "after", s.took(), "remove old")
	if table.Len() != 0 {
		t.Fatal("the object is remembered")
	}
}

// What was wanted once is removed at once, pruning or not: the wish has been withdrawn, it is not just unknown.
func TestWithdrawnIsRemovedAtOnce(t *testing.T) {
	table, s, _ := newTable(map[string]int{"a": 1})
	_ = table.Resync()
	table.Set("a", 1)
	table.Flush()
	table.Unset("a")
	table.Flush()
	expect(t, "log", s.took(), "remove a")
}

func TestAdditionsComeBeforeRemovals(t *testing.T) {
	table, s, _ := newTable(map[string]int{})
	for i := range 3 * round {
		table.Set(fmt.Sprint("old", i), 1)
	}
	table.Flush()
	s.took()
	for i := range 3 * round {
		table.Unset(fmt.Sprint("old", i))
		table.Set(fmt.Sprint("new", i), 1)
	}
	if steps, failures := table.Flush(); steps != 6*round || failures != 0 {
		t.Fatal(steps, failures)
	}
	firstRemoval := slices.IndexFunc(s.log, func(l string) bool { return l[:6] == "remove" })
	if firstRemoval != 3*round || len(s.have) != 3*round {
		t.Fatalf("first removal at step %d, %d objects", firstRemoval, len(s.have))
	}
}

func TestFailuresAreRetriedWithBackoff(t *testing.T) {
	table, s, c := newTable(map[string]int{})
	s.fail["bad"] = errors.New("no space")
	table.Set("bad", 1)
	table.Set("good", 1)
	if _, failures := table.Flush(); failures != 1 {
		t.Fatal(failures)
	}
	expect(t, "first", s.took(), "add bad", "add good")
	if st := table.Status("bad"); st.Phase != Failed || st.Reason != "no space" || !st.Since.Equal(c.Time) {
		t.Fatalf("%+v", st)
	}
	since := c.Time
	for i, pause := range []time.Duration{1, 2, 4, 4} {
		at, ok := table.Next()
		if !ok || at.Sub(c.Time) != pause*time.Second {
			t.Fatalf("retry %d in %s, want %d s", i, at.Sub(c.Time), pause)
		}
		c.Time = at.Add(-time.Millisecond)
		table.Flush()
		expect(t, "too early", s.took())
		c.Time = at
		table.Flush()
		expect(t, "due", s.took(), "add bad")
	}
	if st := table.Status("bad"); !st.Since.Equal(since) {
		t.Error("the same failure again counts as news")
	}
	delete(s.fail, "bad")
	table.Retry("bad")
	table.Flush()
	if st := table.Status("bad"); st.Phase != Applied || st.Reason != "" {
		t.Fatalf("%+v", st)
	}
	if _, ok := table.Next(); ok || table.Failures() != 0 {
		t.Fatal("still something to retry")
	}
}

func TestDriftIsRepaired(t *testing.T) {
	table, s, _ := newTable(map[string]int{})
	table.Set("a", 1)
	table.Flush()
	s.took()
	delete(s.have, "a")
	table.ObserveGone("a")
	table.Flush()
	expect(t, "gone", s.took(), "add a")
	s.have["a"] = 7
	table.Observe("a", 7)
	table.Flush()
	expect(t, "changed", s.took(), "change a")
	table.Observe("a", 1)
	table.Flush()
	expect(t, "unchanged", s.took())
}

func TestFailedListChangesNothing(t *testing.T) {
	table, s, _ := newTable(map[string]int{})
	table.Set("a", 1)
	table.Flush()
	s.took()
	s.list = errors.New("interrupted")
	clear(s.have)
	if err := table.Resync(); !errors.Is(err, s.list) {
		t.Fatal(err)
	}
	table.Flush()
	expect(t, "log", s.took())
}

// Whatever happens in whatever order, with failures in between, the end is what is wanted.
func TestEndsAsDesired(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		key := func() string { return string(rune('a' + r.IntN(8))) }
		table, s, c := newTable(map[string]int{"a": 1, "z": 1})
		want := map[string]int{}
		for range 60 {
			k := key()
			switch r.IntN(8) {
			case 0, 1:
				want[k] = r.IntN(3)
				table.Set(k, want[k])
			case 2:
				delete(want, k)
				table.Unset(k)
			case 3: // someone interferes
				s.have[k] = 9
				table.Observe(k, 9)
			case 4:
				delete(s.have, k)
				table.ObserveGone(k)
			case 5:
				s.fail[k] = errors.New("fails")
			case 6:
				delete(s.fail, k)
			case 7:
				table.Flush()
				c.Time = c.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			}
		}
		clear(s.fail)
		table.Prune(true)
		_ = table.Resync()
		c.Time = c.Add(time.Hour)
		table.Flush()
		if !maps.Equal(s.have, want) {
			t.Fatalf("seed %d: %v, want %v", seed, s.have, want)
		}
		for k, st := range table.All() {
			if st.Phase != Applied {
				t.Fatalf("seed %d: %s is %s", seed, k, st.Phase)
			}
		}
		if table.Len() != len(want) {
			t.Fatalf("seed %d: %d entries for %d objects", seed, table.Len(), len(want))
		}
	}
}

func TestLoopCoalescesTriggers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := NewLoop()
	timer := make(chan time.Time)
	l.After = func(time.Duration) <-chan time.Time { return timer }
	steps, release := make(chan int), make(chan time.Duration)
	done := make(chan struct{})
	go func() {
		n := 0
		l.Run(ctx, func() time.Duration {
			n++
			steps <- n
			return <-release
		})
		close(done)
	}()
	if <-steps != 1 {
		t.Fatal("no step at start")
	}
	for range 100 {
		l.Trigger()
	}
	release <- 0
	if <-steps != 2 {
		t.Fatal("no step after triggers")
	}
	release <- time.Second // 100 triggers were one: only the timer wakes it now
	timer <- time.Time{}
	if <-steps != 3 {
		t.Fatal("no step after the timer")
	}
	cancel()
	release <- 0
	<-done
}

func TestBackoffGrowsToItsMaximum(t *testing.T) {
	b := Backoff{Min: 100, Max: 1000}
	for failures, want := range map[int]time.Duration{1: 100, 2: 200, 4: 800, 5: 1000, 1 << 30: 1000} {
		if got := b.After(failures); got != want {
			t.Errorf("after %d failures: %d, want %d", failures, got, want)
		}
	}
}
