package datastore

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/datastore/model"
)

func node(name string, revision int64) *model.Object {
	o := model.NewObject(model.ResourceKey(model.KindNode, name), new(model.Node))
	o.Revision = revision
	return o
}

func update(name string, revision int64) Event {
	o := node(name, revision)
	return Event{Type: EventUpdate, Key: o.Key, Object: o, Revision: revision}
}

func invalid(name string, revision int64) Event {
	e := update(name, revision)
	e.Object.Value, e.Object.Err = nil, errors.New("broken")
	return e
}

func remove(name string, revision int64) Event {
	return Event{Type: EventDelete, Key: model.ResourceKey(model.KindNode, name), Revision: revision}
}

func inSync(revision int64) Event { return Event{Type: EventInSync, Revision: revision} }
func lostEvent(text string) Event { return Event{Type: EventLost, Err: errors.New(text)} }

// content lists the objects that readers see, in their order: "a=3 b=7".
func content(s *Snapshot) string {
	text := ""
	for o := range s.All(model.KindNode) {
		text += fmt.Sprintf("%s=%d ", o.Key.Name, o.Revision)
	}
	return text
}

func changes(s, since *Snapshot) string {
	text := ""
	for c := range s.Changes(since) {
		text += fmt.Sprintf("%s:%d>%d ", c.Key.Name, revisionOf(c.Old), revisionOf(c.New))
	}
	return text
}

func synced(events ...Event) *Tables {
	t := NewTables(zap.NewNop(), "")
	t.Apply(append(events, inSync(10))...)
	return t
}

func TestNothingIsHandedOutBeforeTheFirstSync(t *testing.T) {
	tables := NewTables(zap.NewNop(), "")
	changed := tables.Changed()
	tables.Apply(update("a", 1), update("b", 2))
	tables.Apply(lostEvent("down"))
	if s := tables.Snapshot(); s.InSync() || s.Len() != 0 || content(s) != "" {
		t.Errorf("snapshot before sync: %q", content(s))
	}
	select {
	case <-changed:
		t.Error("a change was announced before sync")
	default:
	}
	if st := tables.Status(); st.InSync || st.LastError == nil {
		t.Errorf("status %+v", st)
	}
	tables.Apply(inSync(5))
	<-changed
	if s := tables.Snapshot(); !s.InSync() || content(s) != "a=1 b=2 " || s.Revision() != 5 {
		t.Errorf("snapshot after sync: %q at %d", content(s), s.Revision())
	}
}

func TestWaitInSyncBlocksUntilSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := NewTables(zap.NewNop(), "")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := tables.WaitInSync(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("without sync: %v", err)
		}
		got := make(chan *Snapshot)
		go func() {
			s, _ := tables.WaitInSync(t.Context())
			got <- s
		}()
		synctest.Wait()
		tables.Apply(update("a", 1), inSync(1))
		if s := <-got; content(s) != "a=1 " {
			t.Errorf("got %q", content(s))
		}
	})
}

func TestSnapshotsDoNotChange(t *testing.T) {
	tables := synced(update("a", 1), update("b", 2))
	before := tables.Snapshot()
	tables.Apply(update("a", 11), remove("b", 12), update("c", 13))
	if content(before) != "a=1 b=2 " || before.Get(model.ResourceKey(model.KindNode, "b")) == nil {
		t.Errorf("the old snapshot became %q", content(before))
	}
	if s := tables.Snapshot(); content(s) != "a=11 c=13 " || s.Revision() != 13 {
		t.Errorf("the new one is %q at %d", content(s), s.Revision())
	}
}

func TestChangesAreTheNetDifference(t *testing.T) {
	tables := synced(update("a", 1), update("b", 2), update("d", 3))
	first := tables.Snapshot()
	tables.Apply(update("a", 11))
	second := tables.Snapshot()
	tables.Apply(update("a", 12), remove("b", 13))
	tables.Apply(update("c", 14), update("x", 15), remove("x", 16))
	last := tables.Snapshot()
	for name, c := range map[string]struct {
		since *Snapshot
		want  string
	}{
		"since nothing":    {nil, "a:0>12 c:0>14 d:0>3 "},
		"since the first":  {first, "a:1>12 b:2>0 c:0>14 "},
		"since the second": {second, "a:11>12 b:2>0 c:0>14 "},
		"since itself":     {last, ""},
	} {
		if got := changes(last, c.since); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := changes(first, last); got != "" {
		t.Errorf("backwards: %q", got)
	}
}

func TestInvalidObjectIsQuarantinedUntilItIsValid(t *testing.T) {
	tables := synced(update("a", 1), invalid("b", 2))
	start := tables.now()
	tables.now = func() time.Time { return start.Add(time.Hour) }
	s := tables.Snapshot()
	if content(s) != "a=1 " || s.Len() != 1 || tables.Status().Quarantined != 1 {
		t.Fatalf("readers see %q, status %+v", content(s), tables.Status())
	}
	tables.Apply(update("b", 11), invalid("a", 12))
	next := tables.Snapshot()
	if got := changes(next, s); got != "b:0>11 " || content(next) != "a=1 b=11 " {
		t.Errorf("changes %q to %q, want the valid version of a kept", got, content(next))
	}
	since := tables.now()
	tables.now = func() time.Time { return start.Add(2 * time.Hour) }
	tables.Apply(invalid("a", 13))
	last := tables.Snapshot()
	if got := changes(last, next); got != "" {
		t.Errorf("readers are notified of %q although they see the same", got)
	}
	var quarantined []Quarantined
	for q := range last.Quarantined() {
		quarantined = append(quarantined, q)
	}
	if len(quarantined) != 1 || quarantined[0].Object.Revision != 13 || !quarantined[0].Since.Equal(since) ||
		quarantined[0].Object.Err == nil || quarantined[0].InUse != 1 {
		t.Errorf("quarantine %+v, want a of revision 13 since %v, with 1 in use", quarantined, since)
	}
	tables.Apply(remove("a", 14))
	if got := content(tables.Snapshot()); got != "b=11 " {
		t.Errorf("after the deletion: %q", got)
	}
	for q := range tables.Snapshot().Quarantined() {
		t.Errorf("%v is gone, but in quarantine", q.Object.Key)
	}
}

func TestLastStateStaysWhileTheConnectionIsLost(t *testing.T) {
	tables := synced(update("a", 1), update("b", 2))
	before := tables.Snapshot()
	tables.Apply(update("c", 11), lostEvent("no route"), update("a", 21))
	s := tables.Snapshot()
	if s.InSync() || content(s) != "a=1 b=2 c=11 " {
		t.Errorf("while lost: in sync %v, %q", s.InSync(), content(s))
	}
	tables.Apply(remove("b", 30), lostEvent("still none"))
	if tables.Snapshot() != s {
		t.Error("a half read state was published")
	}
	if st := tables.Status(); st.InSync || st.LastError.Error() != "still none" || st.Restarts != 0 {
		t.Errorf("status %+v", st)
	}
	tables.Apply(inSync(30))
	s = tables.Snapshot()
	if !s.InSync() || changes(s, before) != "a:1>21 b:2>0 c:0>11 " || s.Revision() != 30 {
		t.Errorf("after: %q at %d", changes(s, before), s.Revision())
	}
	if st := tables.Status(); !st.InSync || st.Restarts != 1 || st.Objects != 2 || st.Rollbacks != 0 {
		t.Errorf("status %+v", st)
	}
}

// The log has the reason of a loss, and those that take its place while it lasts, now and then.
func TestReasonsOfALossAreLogged(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	tables := NewTables(zap.New(core), "")
	now := time.Now()
	tables.now = func() time.Time { return now }
	tables.Apply(update("a", 1), inSync(10))
	for range 100 { // 200 s
		tables.Apply(lostEvent("refused"), lostEvent("refused"))
		now = now.Add(time.Second)
		tables.Apply(lostEvent("unknown authority"))
		now = now.Add(time.Second)
	}
	var reasons []string
	for _, e := range logged.All() {
		reasons = append(reasons, e.ContextMap()["error"].(string))
	}
	if n := len(reasons); n < 5 || n > 8 || !slices.Equal(reasons[:3], []string{"refused", "unknown authority",
		"refused"}) {
		t.Errorf("logged %q", reasons)
	}
	tables.Apply(inSync(11), lostEvent("refused"))
	if n := logged.Len(); n != len(reasons)+1 {
		t.Errorf("another loss: %d lines, want %d", n, len(reasons)+1)
	}
}

func TestDatastorePutBackToAnEarlierState(t *testing.T) {
	tables := synced(update("a", 9), update("b", 8))
	tables.Apply(lostEvent("restored"), update("a", 3), remove("b", 4), inSync(4))
	if s := tables.Snapshot(); content(s) != "a=3 " || s.Revision() != 4 {
		t.Errorf("%q at %d", content(s), s.Revision())
	}
	if st := tables.Status(); st.Rollbacks != 1 || st.Rollback.From != 10 || st.Rollback.To != 4 ||
		st.Rollback.At.IsZero() {
		t.Errorf("status %+v", st)
	}
	tables.Apply(update("b", 5))
	if s := tables.Snapshot(); content(s) != "a=3 b=5 " {
		t.Errorf("%q", content(s))
	}
	// An object that is valid only together with undone changes is not kept.
	tables.Apply(lostEvent("restored again"), invalid("a", 2), inSync(5))
	tables.Apply(update("a", 6))
	if s := tables.Snapshot(); content(s) != "a=6 b=5 " {
		t.Errorf("%q", content(s))
	}
}

// A datastore that was restored while the daemon did not run is noticed at the first full read.
func TestDatastorePutBackBetweenTwoRuns(t *testing.T) {
	for first, want := range map[int64]int{49: 1, 50: 0, 51: 0} {
		tables := NewTables(zap.NewNop(), "")
		tables.After(50, nil)
		tables.Apply(update("a", 9), inSync(first))
		st := tables.Status()
		if st.Rollbacks != want || want == 1 && (st.Rollback.From != 50 || st.Rollback.To != first) {
			t.Errorf("at %d: %+v", first, st)
		}
		if tables.Apply(lostEvent("restarted"), inSync(first)); tables.Status().Rollbacks != want {
			t.Errorf("at %d: it counts twice", first)
		}
	}
}

// Of an object whose newest version is invalid at a start, the version that the run before has read stays in use.
func TestEarlierVersionOfAnInvalidObject(t *testing.T) {
	earlier := []*model.Object{node("a", 3), node("b", 3), node("c", 9), node("d", 3), node("e", 3)}
	start := func(events ...Event) *Tables {
		tables := NewTables(zap.NewNop(), "")
		tables.After(9, earlier)
		tables.Apply(events...)
		return tables
	}
	// b is valid, c was restored to an earlier version, d was deleted, and f is unknown.
	tables := start(invalid("a", 5), update("b", 6), invalid("c", 7), invalid("f", 8), inSync(9))
	if s := tables.Snapshot(); content(s) != "a=3 b=6 " {
		t.Errorf("in use: %q", content(s))
	}
	for q := range tables.Snapshot().Quarantined() {
		if want := map[string]int64{"a": 3}[q.Object.Key.Name]; q.InUse != want {
			t.Errorf("%s: the version %d is in use, want %d", q.Object.Key.Name, q.InUse, want)
		}
	}
	tables.Apply(invalid("e", 10), remove("a", 11), invalid("a", 12))
	if s := tables.Snapshot(); content(s) != "b=6 " {
		t.Errorf("after the first read: %q", content(s))
	}
	if s := start(invalid("a", 5), lostEvent("down"), update("a", 6), inSync(9)).Snapshot(); content(s) != "a=6 " {
		t.Errorf("read again: %q", content(s))
	}
}

// Any order of the same updates ends in the same tables.
func TestPermutation(t *testing.T) {
	var events []Event
	revision := int64(10)
	next := func(make func(string, int64) Event, name string) {
		revision++
		events = append(events, make(name, revision))
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		next(update, name)
		next(invalid, name)
		next(update, name)
		next(remove, name)
	}
	next(update, "b")
	next(invalid, "c")
	next(update, "d")
	next(remove, "d")
	next(remove, "f")
	next(update, "g")
	next(invalid, "g")
	const want = "b=31 g=36 "
	random := rand.New(rand.NewSource(1))
	for range 2000 {
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		tables := synced()
		for batch := range slices.Chunk(events, 1+random.Intn(len(events))) {
			tables.Apply(batch...)
		}
		s := tables.Snapshot()
		var bad []string
		for q := range s.Quarantined() {
			bad = append(bad, q.Object.Key.Name)
		}
		if content(s) != want || !slices.Equal(bad, []string{"c", "g"}) || s.Revision() != revision {
			t.Fatalf("%q, quarantined %v, at %d", content(s), bad, s.Revision())
		}
	}
}

// One batch of queued events becomes one snapshot, and a reader that waits misses none.
func TestWaitReturnsWhatIsNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := synced(update("a", 1))
		s := tables.Snapshot()
		if got, _ := tables.Wait(t.Context(), nil); got != s {
			t.Error("waiting for nothing blocks")
		}
		got := make(chan *Snapshot)
		go func() {
			n, _ := tables.Wait(t.Context(), s)
			got <- n
		}()
		synctest.Wait()
		tables.Apply(update("a", 11), update("b", 12))
		if n := <-got; changes(n, s) != "a:1>11 b:0>12 " {
			t.Errorf("got %q", changes(n, s))
		}
	})
}

func BenchmarkSnapshotUpdate10kObjects(b *testing.B) {
	tables := synced()
	const objects = 10000
	for i := range objects {
		tables.Apply(update(fmt.Sprintf("node-%05d", i), int64(11+i)))
	}
	events := make([]Event, objects)
	for i := range events {
		events[i] = update(fmt.Sprintf("node-%05d", i), 1<<40)
	}
	seen := tables.Snapshot()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e := events[i%objects]
		e.Revision += int64(i)
		tables.Apply(e)
		s := tables.Snapshot()
		n := 0
		for range s.Changes(seen) {
			n++
		}
		if n != 1 && i < objects {
			b.Fatalf("%d changes", n)
		}
		seen = s
	}
}

// A reader that only applies changes ends with the state of a fresh reader, even if it lags far behind.
func TestReadersThatFollowChangesEndWithTheSameState(t *testing.T) {
	tables := synced()
	const last = 3000
	follow := func() string {
		mine := map[model.Key]*model.Object{}
		var seen *Snapshot
		for {
			s, err := tables.Wait(t.Context(), seen)
			if err != nil {
				return err.Error()
			}
			for c := range s.Changes(seen) {
				if mine[c.Key] != c.Old {
					return fmt.Sprintf("%s: old is %v, was %v", c.Key, c.Old, mine[c.Key])
				}
				if mine[c.Key] = c.New; c.New == nil {
					delete(mine, c.Key)
				}
			}
			seen = s
			if s.Revision() < last || !s.InSync() {
				continue
			}
			if len(mine) != s.Len() {
				return fmt.Sprintf("%d objects, want %d", len(mine), s.Len())
			}
			for o := range s.All(model.KindNode) {
				if mine[o.Key] != o {
					return fmt.Sprintf("%s is %v, want %v", o.Key, mine[o.Key], o)
				}
			}
			return ""
		}
	}
	results := make(chan string)
	const readers = 4
	for range readers {
		go func() { results <- follow() }()
	}
	random := rand.New(rand.NewSource(3))
	for revision := int64(11); revision <= last; revision++ {
		name := fmt.Sprint("n", random.Intn(40))
		events := []Event{[]func(string, int64) Event{update, update, invalid, remove}[random.Intn(4)](name, revision)}
		if revision%100 == 0 {
			events = append([]Event{lostEvent("now and then")}, append(events, inSync(revision))...)
		}
		tables.Apply(events...)
	}
	for range readers {
		if wrong := <-results; wrong != "" {
			t.Error(wrong)
		}
	}
}

// source is a Store that supports only Watch.
type source struct {
	Store
	events chan Event
}

func (s source) Watch(context.Context, ...model.Kind) <-chan Event { return s.events }

// The events of a transaction become visible together, however slowly they come. Later events are not waited for.
func TestATransactionIsOneSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tables := source{events: make(chan Event, 10)}, NewTables(zap.NewNop(), "")
		go func() { _ = tables.Run(t.Context(), s) }()
		s.events <- inSync(10)
		for i, name := range []string{"a", "b", "c"} {
			e := update(name, 11)
			e.More = i < 2
			s.events <- e
			synctest.Wait()
			if seen := content(tables.Snapshot()); (seen != "") != (i == 2) {
				t.Errorf("after event %d: %q", i+1, seen)
			}
		}
		if got := content(tables.Snapshot()); got != "a=11 b=11 c=11 " {
			t.Errorf("in the end: %q", got)
		}
		close(s.events)
	})
}

func TestReplacedOfAKind(t *testing.T) {
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	pool := func(revision int64) Event {
		o := model.NewObject(model.ResourceKey(model.KindIPPool, "p"), new(model.IPPool))
		o.Revision = revision
		return Event{Type: EventUpdate, Key: o.Key, Object: o, Revision: revision}
	}
	tables := NewTables(zap.NewNop(), "")
	before := tables.Snapshot().ReplacedOf(model.KindNode)
	tables.Apply(update("a", 1), pool(2), inSync(10))
	if !closed(before) {
		t.Error("the first full read replaces nothing")
	}
	s := tables.Snapshot()
	nodes, pools := s.ReplacedOf(model.KindNode), s.ReplacedOf(model.KindIPPool)
	others := s.ReplacedOf(model.KindProfile)
	tables.Apply(pool(11))
	if closed(nodes) || !closed(pools) || !closed(others) {
		t.Errorf("a pool changed: nodes %t, pools %t, a kind that is not watched %t", closed(nodes), closed(pools),
			closed(others))
	}
	if tables.Snapshot().ReplacedOf(model.KindNode) != nodes {
		t.Error("the nodes have another channel, although they did not change")
	}
	tables.Apply(remove("a", 12))
	if !closed(nodes) {
		t.Error("a node was deleted, and its kind is not replaced")
	}
}
