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
// The first snapshot is published when all watched kinds are in sync for the first time. While a kind is lost its last
// good state stays, the others continue, and its next full read is published as a whole. So each published snapshot
// has, for each kind, the datastore's state at one revision, and for kinds that are followed together, at the same
// revision. The same holds for each Part of a kind; a kind is in sync if both its parts are.
type Tables struct {
	log     *zap.Logger
	now     func() time.Time
	current atomic.Pointer[Snapshot]

	mu      sync.Mutex // guards the following fields: the unpublished state
	work    []*working // in the order of the kinds
	reducer reducer
	status  Status
	// others is set if kinds without events yet are in sync.
	others bool
	// revision is the newest of the shared clock, 0 while there are several clocks.
	revision int64
	oneClock bool
	// earlier is the revision that an earlier run has read, until the first full read; 0 if it is not known.
	earlier int64
	// fallback has the objects of the earlier run, until all kinds have been read; may be nil.
	fallback map[model.Key]*model.Object
	// logged is the reason of the current loss that was logged last, empty when all kinds are in sync.
	logged   string
	loggedAt time.Time
}

// Rollback is a change of the datastore's revision to an earlier one.
type Rollback struct {
	From, To int64
	At       time.Time
}

// Status is the state of the tables relative to the datastore.
type Status struct {
	// InSync is set if all watched kinds are in sync.
	InSync bool
	// Complete is set if all were at least once: then there is a last good state.
	Complete bool
	// Since is the time of InSync's last change.
	Since time.Time
	// Revision is the datastore's revision up to which the tables are complete, 0 if kinds have separate clocks.
	Revision int64
	// LastError is the reason of the last loss, nil if there was none. It is about a kind that is still lost, if there
	// is one.
	LastError   error
	LastErrorAt time.Time
	// Lost are the lost kinds while others are in sync: their last state is kept. nil if all are alike.
	Lost []model.Kind
	// Answered is the time of the last answer of the datastore, about any kind: a change, or that there is none. Zero
	// before the first one.
	Answered time.Time
	// Silent is set if that is more than one and a half heartbeats ago, whether or not a loss is known. A kind alone
	// may be silent for longer: an API server sends no bookmark about a kind of which it has seen no change.
	Silent bool
	// Restarts counts the full reads after the first, Rollbacks those that found an earlier revision than the one
	// before: the datastore was restored. Only kinds with one clock are compared. Rollback is the last one.
	Restarts, Rollbacks int
	Rollback            Rollback
	// Objects is the number of usable objects, Quarantined of unusable ones.
	Objects, Quarantined int
}

// silence is the time without an answer after which a datastore counts as silent: one heartbeat, which may be late.
const silence = Heartbeat + Heartbeat/2

// NewTables returns empty tables for a node: of other nodes' WorkloadEndpoints they keep only the fields for policy and
// routes, with which the endpoints cannot be written. If node is empty everything is kept whole.
func NewTables(log *zap.Logger, node string) *Tables {
	t := &Tables{log: log, now: time.Now, reducer: reducer{node: node, confirmed: confirmations{}}}
	t.current.Store(newSnapshot())
	t.status.Since = t.now()
	return t
}

// NewAddressTables returns empty tables for a cluster's controllers: of WorkloadEndpoints they keep the node, the pod
// and the addresses, but no labels and no fields for policy.
func NewAddressTables(log *zap.Logger) *Tables {
	t := NewTables(log, "-") // not a node's name, so that no endpoint is kept whole
	t.reducer.addressesOnly = true
	return t
}

// NewReducedTables returns empty tables that keep what reduce returns of each object: an object with the same key and
// revision, and with less of its value.
func NewReducedTables(log *zap.Logger, reduce func(*model.Object) *model.Object) *Tables {
	t := NewTables(log, "")
	t.reducer.other = reduce
	return t
}

// batch bounds the number of queued events in one snapshot, so that readers see progress in a long burst.
const batch = 4096

// Run fills the tables from a watch of the given kinds. It returns ctx's error, or another one if the store was closed.
// Events that are queued together become one snapshot.
func (t *Tables) Run(ctx context.Context, store Store, kinds ...model.Kind) error {
	// The watch ends with Run even if ctx does not.
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	t.expect(kinds)
	events := store.Watch(watch, kinds...)
	for first := range events {
		t.Apply(waiting(first, events)...)
	}
	return cmp.Or(ctx.Err(), errors.New("the watch ended: the store was closed"))
}

// waiting takes the queued events, and waits for the rest of a transaction.
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

// expect makes the gate wait for these kinds, even without an event of one.
func (t *Tables) expect(kinds []model.Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, kind := range kinds {
		t.of(kind)
	}
}

// of returns the unpublished state of a kind.
func (t *Tables) of(kind model.Kind) *working {
	i, ok := slices.BinarySearchFunc(t.work, kind, func(w *working, k model.Kind) int { return cmp.Compare(w.kind, k) })
	if !ok {
		t.work = slices.Insert(t.work, i, newWorking(kind, &t.reducer, t.others, t.now()))
	}
	return t.work[i]
}

// concerned returns the states of an event's kinds.
func (t *Tables) concerned(e Event) []*working {
	if len(e.Kinds) == 0 {
		return t.work
	}
	var list []*working
	for _, kind := range e.Kinds {
		list = append(list, t.of(kind))
	}
	return list
}

// Apply applies events as one step. It is for Run, and for tests.
//
// In sync, events of one key may come in any order: the highest revision wins. An invalid version is quarantined, and
// readers keep the last valid one: a typing error must not disable working configuration.
func (t *Tables) Apply(events ...Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range events {
		switch e.Type {
		case EventUpdate, EventDelete:
			w := t.of(e.Key.Kind)
			t.answered(w)
			delete(w.parts[e.Part].early, e.Key) // from now on the watch reports its deletion
			w.fallBack(e, t.fallback)
			if w.take(e, t.now) {
				w.advance(e.Part, e.Revision)
				if t.oneClock {
					t.revision = max(t.revision, e.Revision)
				}
			}
		case EventInSync:
			t.answered(t.concerned(e)...)
			t.inSync(e)
		case EventAlive:
			t.answered(t.concerned(e)...)
			for _, w := range t.concerned(e) { // which is not news for readers
				w.advance(e.Part, e.Revision)
			}
		case EventLost:
			t.lost(e)
		}
	}
	t.publish()
}

// answered records that the datastore has answered about kinds.
func (t *Tables) answered(list ...*working) {
	t.status.Answered = t.now()
	for _, w := range list {
		w.answered = t.status.Answered
	}
}

func (t *Tables) inSync(e Event) {
	again := false
	for _, w := range t.concerned(e) {
		again = again || w.parts[e.Part].read
		w.synced(e, t.now)
	}
	t.oneClock, t.revision = len(e.Kinds) == 0, 0
	if t.oneClock {
		again = again || t.status.Complete
		t.others, t.revision = true, e.Revision
	}
	if again {
		t.status.Restarts++
	}
	before := max(t.status.Revision, t.earlier)
	if t.earlier = 0; t.oneClock && t.revision < before {
		t.status.Rollbacks++
		t.status.Rollback = Rollback{before, t.revision, t.now()}
		t.log.Error("the datastore is in an earlier state than before: it was restored", zap.Int64("revision", before),
			zap.Int64("now", t.revision))
	}
	t.status.Revision = t.revision
	t.settle()
}

func (t *Tables) lost(e Event) {
	// Events before the loss are complete up to its revision. Later ones are not, until the next EventInSync.
	t.publish()
	wasSync, at := len(e.Kinds) == 0 && t.others, t.now()
	for _, w := range t.concerned(e) {
		if w.inSync() {
			w.since = at
		}
		p := &w.parts[e.Part]
		wasSync = wasSync || p.inSync
		p.inSync, p.lost, p.lostAt = false, e.Err, at
	}
	if len(e.Kinds) == 0 {
		t.others = false
	}
	t.status.LastError, t.status.LastErrorAt = e.Err, at
	t.settle()
	if t.status.Complete && t.isNews(e, wasSync, at) {
		if e.Err != nil {
			t.logged, t.loggedAt = e.Err.Error(), at
		}
		fields := []zap.Field{zap.Int64("revision", t.revision), zap.Error(e.Err)}
		if len(e.Kinds) > 0 {
			fields = append(fields, zap.Any("kinds", e.Kinds))
		}
		t.log.Warn("datastore connection lost, keeping the last state", fields...)
	}
}

// reasonInterval is the least time between two different reasons of one loss in the log.
const reasonInterval = 30 * time.Second

// isNews reports whether a loss is logged: it is new, or its reason has changed. All kinds that are lost
// together are logged once.
func (t *Tables) isNews(e Event, wasSync bool, at time.Time) bool {
	if e.Err == nil {
		return wasSync
	}
	return e.Err.Error() != t.logged && (wasSync || at.Sub(t.loggedAt) >= reasonInterval)
}

// settle determines whether all kinds are in sync, and if not, why.
func (t *Tables) settle() {
	inSync := t.others || len(t.work) > 0
	var why *progress
	var lost []model.Kind
	for _, w := range t.work {
		inSync = inSync && w.inSync()
		p := w.whyLost()
		if p == nil {
			continue
		}
		lost = append(lost, w.kind)
		if why == nil || p.lostAt.After(why.lostAt) {
			why = p
		}
	}
	if t.status.Lost = lost; len(lost) == len(t.work) {
		t.status.Lost = nil
	}
	if why != nil {
		t.status.LastError, t.status.LastErrorAt = why.lost, why.lostAt
	}
	if inSync != t.status.InSync {
		t.status.InSync, t.status.Since = inSync, t.now()
	}
	if t.status.Complete = t.status.Complete || inSync; t.status.Complete {
		t.fallback = nil
	}
	if inSync {
		t.logged = ""
	}
}

// publish publishes the working state if it differs from the current snapshot. For lost kinds and parts only the flag
// changes.
func (t *Tables) publish() {
	if !t.status.Complete {
		return
	}
	old := t.current.Load()
	s := &Snapshot{revision: old.revision, inSync: t.status.InSync, later: make(chan struct{}), log: new(logEntry)}
	if t.status.InSync || !t.oneClock {
		s.revision = t.revision
	}
	var changed []model.Key
	var replaced []*view
	moved := s.inSync != old.inSync || s.revision != old.revision
	for _, w := range t.work {
		if w.moved() {
			moved = true
			replaced = append(replaced, w.shown)
			changed = append(changed, w.freeze()...)
		}
	}
	if !moved {
		return
	}
	t.status.Objects, t.status.Quarantined = 0, 0
	s.views = make([]*view, len(t.work))
	for i, w := range t.work {
		s.views[i] = w.shown
		t.status.Objects += w.shown.objects.Len()
		t.status.Quarantined += w.shown.quarantined.Len()
	}
	t.status.Revision = s.revision
	if s.inSync && !old.inSync {
		t.log.Info("datastore in sync", zap.Int64("revision", s.revision),
			zap.Int("objects", t.status.Objects), zap.Int("quarantined", t.status.Quarantined))
	}
	old.log.next.Store(&difference{changed, s.log})
	t.current.Store(s)
	close(old.later)
	for _, v := range replaced {
		close(v.later)
	}
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

// After sets the revision that an earlier run of the daemon has read, and valid objects of that state. It precedes Run:
// if the first full read finds an earlier state, that counts as a Rollback. If it finds a newer version of an object
// that is invalid, the earlier run's version stays in use.
func (t *Tables) After(revision int64, objects []*model.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.earlier, t.fallback = revision, make(map[model.Key]*model.Object, len(objects))
	for _, o := range objects {
		t.fallback[o.Key] = o
	}
}

// Status returns the state of the tables relative to the datastore.
func (t *Tables) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.status
	s.Silent = !s.Answered.IsZero() && t.now().Sub(s.Answered) > silence
	return s
}
