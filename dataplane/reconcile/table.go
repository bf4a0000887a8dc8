package reconcile

import (
	"fmt"
	"iter"
	"time"
)

// Backoff is the time before a failed object is tried again: Min, doubled with each failure, up to Max.
type Backoff struct{ Min, Max time.Duration }

// DefaultBackoff suits the kernel: quick enough for races, slow enough to wait for an administrator.
var DefaultBackoff = Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second}

// After returns the pause after so many failures in a row.
func (b Backoff) After(failures int) time.Duration {
	d := b.Min
	for ; failures > 1 && d < b.Max; failures-- {
		d *= 2
	}
	return min(d, b.Max)
}

// Table knows the desired and the actual state of the objects of one target, and what is to be done. The cost of each
// method follows what changes, except for Resync, Prune and All, which look at everything. Not safe for concurrent use.
type Table[K comparable, V any] struct {
	applier Applier[K, V]
	equal   func(a, b V) bool
	now     func() time.Time
	backoff Backoff

	entries  map[K]*entry[K, V]
	dirty    []*entry[K, V]
	removals []*entry[K, V] // of the flush that is under way
	failed   map[K]*failure[K, V]
	example  K         // of failed, for messages
	retryAt  time.Time // the earliest of failed
	revision uint64
	prune    bool
	compared bool // with all that the target has, at least once
	steps    []Step[K, V]
	stepped  []*entry[K, V]

	repairs     []Repair
	moreRepairs int
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

// failure is what is known beyond that of an object whose last attempt failed.
type failure[K comparable, V any] struct {
	entry    *entry[K, V]
	err      error
	attempts int
	retryAt  time.Time
}

// NewTable makes a table for a target whose values equal compares. now is the clock.
func NewTable[K comparable, V any](applier Applier[K, V], equal func(a, b V) bool, now func() time.Time, backoff Backoff) *Table[K, V] {
	return &Table[K, V]{
		applier: applier, equal: equal, now: now, backoff: backoff,
		entries: map[K]*entry[K, V]{}, failed: map[K]*failure[K, V]{},
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
	t.forgive(e)
	t.touch(e)
}

// Observe tells that the target has v at k, whoever put it there.
func (t *Table[K, V]) Observe(k K, v V) {
	e := t.entry(k)
	if !e.wanted && !e.present {
		e.adopted = true
	}
	t.drift(e, true, v)
	e.have, e.present = v, true
	t.touch(e)
}

// ObserveGone tells that the target has nothing at k any more.
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
	if f := t.failed[k]; f != nil {
		t.touch(f.entry)
	}
}

// RetryAll makes the next Flush try everything that failed, without waiting for its time; how long later attempts wait
// starts again from the shortest time.
func (t *Table[K, V]) RetryAll() {
	for _, f := range t.failed {
		f.attempts = 0
		t.touch(f.entry)
	}
}

// Prune says whether what earlier runs left and nobody wants may be removed.
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
	f := t.failed[e.key]
	switch {
	case f != nil && e.wanted:
		s.Phase, s.Reason = Failed, f.err.Error()
	case f != nil:
		s.Phase, s.Reason = Removing, f.err.Error()
	case e.adopted && e.present:
		s.Phase, s.Reason = Leftover, "left by an earlier run; removed once datastore and BGP are in sync, if still nobody wants it"
	case e.wanted && e.present && t.equal(e.want, e.have):
		s.Phase = Applied
	case e.wanted:
		s.Phase = Pending
	case e.present:
		s.Phase = Removing
	}
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

// Idle reports whether there is nothing to do now: retries may wait for their time.
func (t *Table[K, V]) Idle() bool { return len(t.dirty) == 0 }

// Failures is the number of objects whose last attempt failed.
func (t *Table[K, V]) Failures() int { return len(t.failed) }

// Problem says how many objects failed, with the reason of one of them, the same one as long as it fails; nil if none did.
func (t *Table[K, V]) Problem() error {
	if len(t.failed) == 0 {
		return nil
	}
	f := t.failed[t.example]
	if f == nil {
		for t.example, f = range t.failed {
			break
		}
	}
	if len(t.failed) == 1 {
		return fmt.Errorf("%v: %w", t.example, f.err)
	}
	return fmt.Errorf("%d changes failed, for instance %v: %w", len(t.failed), t.example, f.err)
}
