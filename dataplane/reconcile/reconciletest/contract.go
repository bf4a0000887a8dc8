package reconciletest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/retry"
)

// Table is a table of a target whose objects have names and numbers.
type Table interface {
	Set(key string, value int)
	Unset(key string)
	Observe(key string, value int)
	ObserveGone(key string)
	Retry(key string)
	Prune(allowed bool)
	Resync() error
	Flush() (steps, failures int)
	Next() (at time.Time, ok bool)
	Status(key string) reconcile.Status
	Phases() map[string]reconcile.Phase // of all objects
	Len() int
	Failures() int
	Repairs() (list []reconcile.Repair, more int)
}

// round is the number of steps that a table may apply at once.
const round = 2048

// Backoff is the backoff of tables under test.
var Backoff = retry.Backoff{Min: time.Second, Max: 4 * time.Second}

// Run checks that tables fulfil the contract. newTable makes a table on a target and a clock.
func Run(t *testing.T, newTable func(*Store, func() time.Time) Table) {
	m := func(have map[string]int) (Table, *Store, *clock) {
		s := &Store{Have: have, Fail: map[string]error{}}
		c := &clock{time.Unix(1000, 0)}
		return newTable(s, c.now), s, c
	}
	for name, test := range map[string]func(*testing.T, maker){
		"Only differences are applied":              onlyDifferencesAreApplied,
		"Leftovers go only when pruning is allowed": leftoversGoOnlyWhenPruningIsAllowed,
		"Withdrawn is removed at once":              withdrawnIsRemovedAtOnce,
		"Additions come before removals":            additionsComeBeforeRemovals,
		"Failures are retried with backoff":         failuresAreRetriedWithBackoff,
		"Drift is repaired":                         driftIsRepaired,
		"Failed list changes nothing":               failedListChangesNothing,
		"Ends as desired":                           endsAsDesired,
		"Repairs are reported":                      repairsAreReported,
	} {
		t.Run(name, func(t *testing.T) { test(t, m) })
	}
}

type maker func(have map[string]int) (Table, *Store, *clock)

// Store is a target in memory that logs its steps.
type Store struct {
	Have      map[string]int
	Log       []string
	Fail      map[string]error // steps for these objects fail
	ListError error
}

// Apply does one step, whose value is ignored for a removal.
func (s *Store) Apply(action reconcile.Action, key string, value int) error {
	s.Log = append(s.Log, fmt.Sprintf("%s %s", action, key))
	if err := s.Fail[key]; err != nil {
		return err
	}
	if action == reconcile.Remove {
		delete(s.Have, key)
	} else {
		s.Have[key] = value
	}
	return nil
}

func (s *Store) took() []string {
	log := s.Log
	s.Log = nil
	return log
}

type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

func onlyDifferencesAreApplied(t *testing.T, newTable maker) {
	table, s, _ := newTable(map[string]int{"same": 1, "other": 1, "old": 1})
	for _, k := range []string{"same", "other", "new"} {
		table.Set(k, map[string]int{"same": 1, "other": 2, "new": 3}[k])
	}
	if err := table.Resync(); err != nil {
		t.Fatal(err)
	}
	table.Flush()
	slices.Sort(s.Log)
	expect(t, "first flush", s.took(), "add new", "change other")
	table.Set("new", 3)
	table.Flush()
	expect(t, "nothing new", s.took())
}

func leftoversGoOnlyWhenPruningIsAllowed(t *testing.T, newTable maker) {
	table, s, _ := newTable(map[string]int{"old": 1})
	_ = table.Resync()
	table.Flush()
	if st := table.Status("old"); st.Phase != reconcile.Leftover || st.Reason == "" {
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

// A formerly desired object is removed at once, with or without pruning: its desired state was withdrawn, so it is not
// just unknown.
func withdrawnIsRemovedAtOnce(t *testing.T, newTable maker) {
	table, s, _ := newTable(map[string]int{"a": 1})
	_ = table.Resync()
	table.Set("a", 1)
	table.Flush()
	table.Unset("a")
	table.Flush()
	expect(t, "log", s.took(), "remove a")
}

func additionsComeBeforeRemovals(t *testing.T, newTable maker) {
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
	firstRemoval := slices.IndexFunc(s.Log, func(l string) bool { return l[:6] == "remove" })
	if firstRemoval != 3*round || len(s.Have) != 3*round {
		t.Fatalf("first removal at step %d, %d objects", firstRemoval, len(s.Have))
	}
}

func failuresAreRetriedWithBackoff(t *testing.T, newTable maker) {
	table, s, c := newTable(map[string]int{})
	s.Fail["bad"] = errors.New("no space")
	table.Set("bad", 1)
	table.Set("good", 1)
	if _, failures := table.Flush(); failures != 1 {
		t.Fatal(failures)
	}
	expect(t, "first", s.took(), "add bad", "add good")
	if st := table.Status("bad"); st.Phase != reconcile.Failed || st.Reason != "no space" || !st.Since.Equal(c.Time) {
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
	delete(s.Fail, "bad")
	table.Retry("bad")
	table.Flush()
	if st := table.Status("bad"); st.Phase != reconcile.Applied || st.Reason != "" {
		t.Fatalf("%+v", st)
	}
	if _, ok := table.Next(); ok || table.Failures() != 0 {
		t.Fatal("still something to retry")
	}
}

func driftIsRepaired(t *testing.T, newTable maker) {
	table, s, _ := newTable(map[string]int{})
	table.Set("a", 1)
	table.Flush()
	s.took()
	delete(s.Have, "a")
	table.ObserveGone("a")
	table.Flush()
	expect(t, "gone", s.took(), "add a")
	s.Have["a"] = 7
	table.Observe("a", 7)
	table.Flush()
	expect(t, "changed", s.took(), "change a")
	table.Observe("a", 1)
	table.Flush()
	expect(t, "unchanged", s.took())
}

func failedListChangesNothing(t *testing.T, newTable maker) {
	table, s, _ := newTable(map[string]int{})
	table.Set("a", 1)
	table.Flush()
	s.took()
	s.ListError = errors.New("interrupted")
	clear(s.Have)
	if err := table.Resync(); !errors.Is(err, s.ListError) {
		t.Fatal(err)
	}
	table.Flush()
	expect(t, "log", s.took())
}

// After any events in any order, with failures in between, the end is the desired state.
func endsAsDesired(t *testing.T, newTable maker) {
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
			case 3: // another program interferes
				s.Have[k] = 9
				table.Observe(k, 9)
			case 4:
				delete(s.Have, k)
				table.ObserveGone(k)
			case 5:
				s.Fail[k] = errors.New("fails")
			case 6:
				delete(s.Fail, k)
			case 7:
				table.Flush()
				c.Time = c.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			}
		}
		clear(s.Fail)
		table.Prune(true)
		_ = table.Resync()
		c.Time = c.Add(time.Hour)
		table.Flush()
		if !maps.Equal(s.Have, want) {
			t.Fatalf("seed %d: %v, want %v", seed, s.Have, want)
		}
		for k, phase := range table.Phases() {
			if phase != reconcile.Applied {
				t.Fatalf("seed %d: %s is %s", seed, k, phase)
			}
		}
		if table.Len() != len(want) {
			t.Fatalf("seed %d: %d entries for %d objects", seed, table.Len(), len(want))
		}
	}
}

func repairsAreReported(t *testing.T, newTable maker) {
	table, s, _ := newTable(map[string]int{})
	reported := func() (lines []string) {
		list, more := table.Repairs()
		for _, r := range list {
			lines = append(lines, fmt.Sprintf("%s: %q %q", r.Key, r.Found, r.Wanted))
		}
		if more > 0 {
			lines = append(lines, fmt.Sprintf("%d more", more))
		}
		return lines
	}
	table.Prune(true)
	s.Have["left"] = 1
	if err := table.Resync(); err != nil {
		t.Fatal(err)
	}
	table.Flush()
	expect(t, "what an earlier run left", reported())
	for i := range 30 {
		table.Set(fmt.Sprintf("k%02d", i), i)
	}
	table.Flush()
	for k, v := range s.Have {
		table.Observe(k, v) // the target's own echo
	}
	table.Flush()
	expect(t, "what the table did itself", reported())

	table.Observe("k01", 99)
	table.ObserveGone("k02")
	table.Observe("extra", 5)
	table.Flush()
	expect(t, "what others did", reported(), `k01: "99" "1"`, `k02: "" "2"`, `extra: "5" ""`)
	expect(t, "once", reported())

	table.ObserveGone("k03")
	table.Unset("k03")
	table.Observe("k04", 98)
	table.Set("k04", 40)
	table.ObserveGone("k05")
	table.Observe("k05", 5)
	table.Flush()
	expect(t, "what is wanted otherwise by then, or is right again", reported())

	s.Have = map[string]int{}
	if err := table.Resync(); err != nil {
		t.Fatal(err)
	}
	table.Flush()
	if lines := reported(); len(lines) != reconcile.MostRepairs+1 || lines[reconcile.MostRepairs] != "9 more" {
		t.Errorf("an emptied table: %q", lines)
	}
}
