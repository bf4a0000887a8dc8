package datastore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// Tables mirror the watched part of the datastore in memory. One goroutine feeds them; any number of readers take
// snapshots.
//
// Nothing is handed out before the first full read is complete. While the connection is lost the last good state stays,
// and what is read again becomes visible at once when it is complete. So each snapshot that is published holds what the
// datastore held at one revision.
type Tables struct {
	log     *zap.Logger
	now     func() time.Time
	current atomic.Pointer[Snapshot]

	mu     sync.Mutex // guards what follows: the state that is not yet published
	work   *workingState
	status Status
}

// Status tells how the tables stand to the datastore.
type Status struct {
	InSync bool
	// Since is when InSync became what it is.
	Since time.Time
	// Revision is the datastore's revision up to which the tables are complete.
	Revision int64
	// LastError is why the connection was last lost, nil if it never was.
	LastError   error
	LastErrorAt time.Time
	// Restarts counts the full reads after the first.
	Restarts int
	// Objects are in use, Quarantined are not.
	Objects, Quarantined int
}

// NewTables makes empty tables for a node: of other nodes' WorkloadEndpoints they keep only what policy and routes need, not
// what would be needed to write them. Everything is kept whole if node is empty.
func NewTables(log *zap.Logger, node string) *Tables {
	t := &Tables{log: log, now: time.Now, work: newWorkingState()}
	t.work.reducer.node = node
	t.current.Store(newSnapshot())
	t.status.Since = t.now()
	return t
}

// batch bounds how many queued events become one snapshot, so that readers see progress in a long burst.
const batch = 4096

// Run fills the tables from a watch of the given kinds. It returns ctx's error, or another one if the store was closed.
// Events that wait in the watch together become one snapshot.
func (t *Tables) Run(ctx context.Context, store Store, kinds ...model.Kind) error {
	// The watch ends with Run even if ctx does not.
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	events := store.Watch(watch, kinds...)
	for first := range events {
		t.Apply(waiting(first, events)...)
	}
	return cmp.Or(ctx.Err(), errors.New("the watch ended: the store was closed"))
}

// waiting takes what is there, and waits for the rest of a transaction.
func waiting(first Event, events <-chan Event) []Event {
	list := []Event{first}
	for more := first.More; more || len(list) < batch; {
		e, ok := next(events, more)
		if !ok {
			break
		}
		list, more = append(list, e), e.More
	}
	return list
}

func next(events <-chan Event, wait bool) (e Event, ok bool) {
	if wait {
		e, ok = <-events
		return e, ok
	}
	select {
	case e, ok = <-events:
	default:
	}
	return e, ok
}

// Apply takes events as one step. Run calls it; tests may, too.
//
// In sync, events of one key may come in any order: the highest revision wins. A version that is invalid goes to the
// quarantine, and readers keep the last valid one: a slip of the pen must not take away what works.
func (t *Tables) Apply(events ...Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wasSync := t.status.InSync
	for _, e := range events {
		switch e.Type {
		case EventUpdate, EventDelete:
			t.work.take(e, t.status.InSync, t.now)
		case EventInSync:
			t.inSync(e)
		case EventLost:
			t.lost(e)
		}
	}
	if t.status.InSync || wasSync {
		t.publish()
	}
}

func (t *Tables) inSync(e Event) {
	if !t.status.InSync {
		t.status.InSync, t.status.Since = true, t.now()
	}
	if t.status.Revision != 0 {
		t.status.Restarts++
	}
	t.work.synced(e.Revision)
	t.status.Revision = e.Revision
}

func (t *Tables) lost(e Event) {
	// What came before the loss is complete up to its revision. What comes now is not, until the next EventInSync.
	if t.status.InSync {
		t.publish()
		t.status.InSync, t.status.Since = false, t.now()
		t.log.Warn("datastore connection lost, keeping the last state", zap.Int64("revision", t.work.revision), zap.Error(e.Err))
	}
	t.status.LastError, t.status.LastErrorAt = e.Err, t.now()
}

// publish makes the working state the current snapshot, if it differs. Out of sync only the flag changes.
func (t *Tables) publish() {
	old := t.current.Load()
	s := &Snapshot{
		objects: old.objects, quarantined: old.quarantined, revision: old.revision, inSync: t.status.InSync,
		later: make(chan struct{}), log: new(logEntry),
	}
	if t.status.InSync {
		s.objects, s.quarantined = t.work.objects.clone(), t.work.quarantined.clone()
		s.revision, s.log.changed = t.work.revision, t.work.changed
		t.work.changed = nil
	}
	if s.inSync == old.inSync && s.revision == old.revision && len(s.log.changed) == 0 {
		return
	}
	t.status.Objects, t.status.Quarantined = s.objects.Len(), s.quarantined.Len()
	t.status.Revision = max(t.status.Revision, s.revision)
	if s.inSync && !old.inSync {
		t.log.Info("datastore in sync", zap.Int64("revision", s.revision),
			zap.Int("objects", t.status.Objects), zap.Int("quarantined", t.status.Quarantined))
	}
	old.log.next.Store(s.log)
	t.current.Store(s)
	close(old.later)
}

// Snapshot returns the newest state: empty and not InSync before the first full read is complete. Never nil.
func (t *Tables) Snapshot() *Snapshot { return t.current.Load() }

// Changed returns a channel that is closed as soon as there is a newer snapshot than the current one.
func (t *Tables) Changed() <-chan struct{} { return t.current.Load().later }

// Wait returns the newest snapshot as soon as it is another one than after. after may be nil: then it returns at once.
func (t *Tables) Wait(ctx context.Context, after *Snapshot) (*Snapshot, error) {
	if after == nil {
		return t.Snapshot(), nil
	}
	select {
	case <-after.later:
		return t.Snapshot(), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// WaitInSync returns the newest snapshot as soon as one is in sync.
func (t *Tables) WaitInSync(ctx context.Context) (*Snapshot, error) {
	s := t.Snapshot()
	for !s.InSync() {
		var err error
		if s, err = t.Wait(ctx, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Status tells how the tables stand to the datastore.
func (t *Tables) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status
}

// workingState is what the next snapshot will be made of.
type workingState struct {
	objects     tree[*model.Object]
	quarantined tree[Quarantined]
	reducer     reducer
	revision    int64
	changed     []model.Key
	// deleted keeps the revision of recent deletions, so that an older update that comes late does not undo them.
	deleted map[model.Key]int64
}

func newWorkingState() *workingState {
	return &workingState{
		objects:     newObjects(),
		quarantined: newQuarantine(),
		deleted:     map[model.Key]int64{},
	}
}

// take enters one event. What becomes of a key depends on the newest valid version, the newest invalid one and the newest
// deletion, in whatever order they come: a valid version that was not deleted since is in use, and stays so while a newer
// one is invalid.
func (w *workingState) take(e Event, inSync bool, now func() time.Time) {
	good, _ := w.objects.get(e.Key)
	bad, wasBad := w.quarantined.get(e.Key)
	if !inSync {
		// A full read replaces whatever is there, even by older revisions: the datastore may have been put back to an
		// earlier state.
		delete(w.deleted, e.Key)
		if e.Type == EventUpdate && e.Object.Err != nil && e.Revision < revisionOf(good) {
			w.objects.remove(e.Key)
			good = nil
		}
	}
	goodAt, badAt, goneAt := revisionOf(good), revisionOf(bad.Object), w.deleted[e.Key]
	newer := func(revisions ...int64) bool { return !inSync || e.Revision >= slices.Max(revisions) }
	valid := e.Type == EventUpdate && e.Object.Err == nil
	switch {
	case valid && newer(goodAt, goneAt):
		w.objects.set(w.reducer.reduce(e.Object))
	case e.Type == EventUpdate && !valid && newer(goodAt, badAt, goneAt):
		q := Quarantined{Object: e.Object, Since: now()}
		if wasBad {
			q.Since = bad.Since
		}
		w.quarantined.set(q)
	case e.Type == EventDelete && newer(goneAt):
		if good != nil && newer(goodAt) {
			w.objects.remove(e.Key)
		}
		if inSync {
			w.remember(e)
		}
	default:
		return // late
	}
	if wasBad && newer(badAt) && (valid || e.Type == EventDelete) {
		w.quarantined.remove(e.Key)
	}
	w.changed = append(w.changed, e.Key)
	w.settleSpelling(e.Key, now)
	w.revision = max(w.revision, e.Revision)
}

func revisionOf(o *model.Object) int64 {
	if o == nil {
		return 0
	}
	return o.Revision
}

// remembered bounds deleted; lateness bounds how many revisions late an update can be.
const remembered, lateness = 4096, 1024

func (w *workingState) remember(e Event) {
	w.deleted[e.Key] = e.Revision
	if len(w.deleted) <= remembered {
		return
	}
	for k, revision := range w.deleted {
		if revision < w.revision-lateness {
			delete(w.deleted, k)
		}
	}
}

// synced ends a full read.
func (w *workingState) synced(revision int64) {
	w.revision = revision
	clear(w.deleted)
}
