package reconcile

import (
	"fmt"
	"iter"
	"time"

	"github.com/manxnet/manx/retry"
)

// DefaultBackoff suits the kernel: quick enough for races, slow enough to wait for an administrator.
var DefaultBackoff = retry.Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second}

// Table has the desired and the actual state of the objects of one target, and the steps between them. The cost of each
// method is proportional to the change, except for Resync, Prune and All, which read everything. Not safe for
// concurrent use.
type Table[K comparable, V any] struct {
	applier Applier[K, V]
	equal   func(a, b V) bool
	now     func() time.Time

	entries  map[K]*entry[K, V]
	dirty    []*entry[K, V]
	removals []*entry[K, V] // of the flush that is under way
	failed   *retry.Failures[K]
	revision uint64
	prune    bool
	compared bool // with all that the target has, at least once
	steps    []Step[K, V]
	stepped  []*entry[K, V]

	repairs RepairLog
}

// entry is one object. There may be a million of them.
type entry[K comparable, V any] struct {
	key        K
	want, have V
	revision   uint64
	since      int64 // nanoseconds since 1970; 0 until the next flush
	wanted     bool
	present    bool
	adopted    bool // present since before anyone wanted it
	dirty      bool
	drifted    bool // others made it differ
}

// NewTable makes a table for a target whose values equal compares. now is the clock.
func NewTable[K comparable, V any](
	applier Applier[K, V], equal func(a, b V) bool, now func() time.Time, backoff retry.Backoff,
) *Table[K, V] {
	return &Table[K, V]{
		applier: applier, equal: equal, now: now,
		entries: map[K]*entry[K, V]{}, failed: retry.NewFailures[K](backoff),
	}
}

// Set makes v the desired state of k.
func (t *Table[K, V]) Set(k K, v V) {
	e := t.entry(k)
	if e.wanted && t.equal(e.want, v) {
		return
	}
	e.want, e.wanted, e.adopted = v, true, false
	t.changed(e)
}

// Unset makes the absence of k the desired state.
func (t *Table[K, V]) Unset(k K) {
	e := t.entries[k]
	if e == nil || !e.wanted {
		return
	}
	var none V
	e.want, e.wanted = none, false
	t.changed(e)
}

func (t *Table[K, V]) changed(e *entry[K, V]) {
	t.revision++
	e.revision, e.since, e.drifted = t.revision, 0, false
	t.failed.Forgive(e.key)
	t.touch(e)
}

// Observe records that the target has v at k, whichever program put it there.
func (t *Table[K, V]) Observe(k K, v V) {
	e := t.entry(k)
	if !e.wanted && !e.present {
		e.adopted = true
	}
	t.drift(e, true, v)
	e.have, e.present = v, true
	t.touch(e)
}

// ObserveGone records that the target has no object at k any more.
func (t *Table[K, V]) ObserveGone(k K) {
	e := t.entries[k]
	if e == nil || !e.present {
		return
	}
	var none V
	t.drift(e, false, none)
	e.have, e.present = none, false
	t.touch(e)
}

// Retry makes the next Flush try k again, if it failed.
func (t *Table[K, V]) Retry(k K) {
	if t.failed.Of(k) != nil {
		t.retry(k)
	}
}

// retryAll makes the next Flush try everything that failed, without waiting for its time; how long later attempts wait
// starts again from the shortest time.
func (t *Table[K, V]) retryAll() { t.failed.All(t.retry) }

func (t *Table[K, V]) retry(k K) { t.touch(t.entries[k]) }

// Prune sets whether unwanted objects of earlier runs may be removed.
func (t *Table[K, V]) Prune(allowed bool) {
	if allowed && !t.prune {
		for _, e := range t.entries {
			if e.adopted {
				t.touch(e)
			}
		}
	}
	t.prune = allowed
}

// Resync compares with all that the target has. After an error nothing is changed.
func (t *Table[K, V]) Resync() error {
	actual, err := t.applier.List()
	if err != nil {
		return err
	}
	for k, e := range t.entries {
		if _, ok := actual[k]; !ok && e.present {
			t.ObserveGone(k)
		}
	}
	for k, v := range actual {
		if e := t.entries[k]; e == nil || !e.present || !t.equal(e.have, v) {
			t.Observe(k, v)
		}
	}
	t.compared = true
	return nil
}

func (t *Table[K, V]) entry(k K) *entry[K, V] {
	e := t.entries[k]
	if e == nil {
		e = &entry[K, V]{key: k}
		t.entries[k] = e
	}
	return e
}

func (t *Table[K, V]) touch(e *entry[K, V]) {
	if !e.dirty {
		e.dirty = true
		t.dirty = append(t.dirty, e)
	}
}

// Get returns the desired and the actual value of k, each nil if there is none.
func (t *Table[K, V]) Get(k K) (want, have *V) {
	e := t.entries[k]
	if e == nil {
		return nil, nil
	}
	if e.wanted {
		want = &e.want
	}
	if e.present {
		have = &e.have
	}
	return want, have
}

// Status returns the state of k; its Phase is empty if k is neither wanted nor there.
func (t *Table[K, V]) Status(k K) Status {
	if e := t.entries[k]; e != nil {
		return t.status(e)
	}
	return Status{}
}

func (t *Table[K, V]) status(e *entry[K, V]) Status {
	s := Status{Since: time.Unix(0, e.since), Revision: e.revision}
	if e.since == 0 {
		s.Since = t.now()
	}
	f := Facts{Wanted: e.wanted, Present: e.present, Adopted: e.adopted, Failure: t.failed.Of(e.key)}
	f.AsWanted = e.wanted && e.present && t.equal(e.want, e.have)
	s.Phase, s.Reason = f.Phase()
	return s
}

// All visits every object that is wanted or there.
func (t *Table[K, V]) All() iter.Seq2[K, Status] {
	return func(yield func(K, Status) bool) {
		for k, e := range t.entries {
			if !yield(k, t.status(e)) {
				return
			}
		}
	}
}

// Len is the number of objects that are wanted or there.
func (t *Table[K, V]) Len() int { return len(t.entries) }

// Failures is the number of objects whose last attempt failed.
func (t *Table[K, V]) Failures() int { return t.failed.Len() }

// problem returns how many objects failed, with the reason of one of them, the same one as long as it fails; nil if
// none did.
func (t *Table[K, V]) problem() error {
	return t.failed.Problem(func(k K) string { return fmt.Sprint(k) })
}
