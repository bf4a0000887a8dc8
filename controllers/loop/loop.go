// Package loop runs controllers whose decisions follow from the content of two datastores: each change leads to new
// decisions, and everything is decided again from time to time.
package loop

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/retry"
)

// State is the basis of a decision. Source is empty if there is none.
type State struct{ Source, Store model.Reader }

// Controller decides, without I/O, on the objects of the store. One goroutine calls it. It may keep indexes of the
// changes that Touched receives.
type Controller interface {
	Name() string
	// Kinds returns the kinds that it reads.
	Kinds() (store, source []model.Kind)
	// Touched returns the units to decide again after a change in the source or in the store. A unit is a set of
	// objects that is decided together, identified by a key.
	Touched(ch datastore.Change, source bool) []model.Key
	// All returns every unit, also those with only objects to delete.
	All(State) []model.Key
	// Decide returns the changes of the store for a unit.
	Decide(State, model.Key) []change.Change
}

// Runner runs a Controller on a store.
type Runner struct {
	Controller
	Store datastore.Store
	Log   *zap.Logger
	// Period is the interval between complete passes; default five minutes. Retry is the first pause after a failure;
	// default one second. It doubles with each failure, up to a minute.
	Period, Retry time.Duration
	// Counts, if set, counts the writes.
	Counts *Counts

	dirty    map[model.Key]struct{}
	failures *retry.Failures[model.Key] // units with a failed write
}

const longestRetry = time.Minute

// Run works until ctx ends.
func (r *Runner) Run(ctx context.Context, store, source *datastore.Tables) error {
	r.dirty = map[model.Key]struct{}{}
	r.failures = retry.NewFailures[model.Key](retry.Backoff{Min: cmp.Or(r.Retry, time.Second), Max: longestRetry})
	var was, wasSource *datastore.Snapshot
	var next time.Time
	for ctx.Err() == nil {
		now, nowSource := store.Snapshot(), source.Snapshot()
		r.take(now, was, nowSource, wasSource)
		was, wasSource = now, nowSource
		var wake time.Time
		if now.InSync() && nowSource.InSync() {
			state := State{Source: nowSource, Store: now}
			if !time.Now().Before(next) {
				r.touch(r.All(state)...)
				next = time.Now().Add(r.period())
			}
			r.pass(ctx, state)
			wake = next
			if again, ok := r.failures.Next(); ok && again.Before(next) {
				wake = again
			}
		}
		r.wait(ctx, now, nowSource, wake)
	}
	return ctx.Err()
}

func (r *Runner) period() time.Duration {
	if r.Period <= 0 {
		return 5 * time.Minute
	}
	return r.Period
}

// take collects the changes.
func (r *Runner) take(now, was, nowSource, wasSource *datastore.Snapshot) {
	kinds, sourceKinds := r.Kinds()
	for ch := range now.Changes(was) {
		if has(kinds, ch.Key.Kind) {
			r.touch(r.Touched(ch, false)...)
		}
	}
	for ch := range nowSource.Changes(wasSource) {
		if has(sourceKinds, ch.Key.Kind) {
			r.touch(r.Touched(ch, true)...)
		}
	}
}

func has(kinds []model.Kind, kind model.Kind) bool {
	for _, k := range kinds {
		if k == kind {
			return true
		}
	}
	return false
}

func (r *Runner) touch(keys ...model.Key) {
	for _, k := range keys {
		r.dirty[k] = struct{}{}
	}
}

// pass decides changed units, and failed units that are due.
func (r *Runner) pass(ctx context.Context, state State) {
	r.failures.Due(time.Now(), func(unit model.Key) { r.touch(unit) })
	units := r.dirty
	r.dirty = map[model.Key]struct{}{}
	for unit := range maps.Keys(units) {
		if ctx.Err() != nil {
			return
		}
		r.note(unit, r.settle(ctx, state, unit))
	}
}

// settle applies the decision for a unit. It continues after an error.
func (r *Runner) settle(ctx context.Context, state State, unit model.Key) error {
	var errs []error
	for _, c := range r.Decide(state, unit) {
		done, err := c.Apply(ctx, r.Store)
		errs = append(errs, err)
		r.Counts.add(r.Name(), c.Verb(), done, err)
		if done {
			r.Log.Info(c.Verb()+"d", zap.Stringer("key", c.Key()), zap.String("reason", c.Reason))
		}
	}
	return errors.Join(errs...)
}

// note records a failure, and logs it once.
func (r *Runner) note(unit model.Key, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		r.failures.Forgive(unit)
		return
	}
	if r.failures.Add(unit, err, time.Now()) {
		r.Log.Warn("an object cannot be brought up to date, trying again", zap.Stringer("unit", unit), zap.Error(err))
	}
}

// wait returns when there is a newer snapshot than one of these, or at the given time.
func (r *Runner) wait(ctx context.Context, store, source *datastore.Snapshot, wake time.Time) {
	var timer <-chan time.Time
	if !wake.IsZero() {
		t := time.NewTimer(max(time.Until(wake), time.Millisecond))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ctx.Done():
	case <-timer:
	case <-store.Replaced():
	case <-source.Replaced():
	}
}

// Counts counts the writes of controllers, by controller, verb and outcome. A nil Counts counts nothing.
type Counts struct {
	mu sync.Mutex
	n  map[Write]float64
}

// Write identifies a counted write. Outcome is done, overtaken (another writer was faster, or the reason no longer
// applies) or failed.
type Write struct{ Controller, Verb, Outcome string }

func (c *Counts) add(controller, verb string, done bool, err error) {
	if c == nil {
		return
	}
	outcome := "overtaken"
	switch {
	case err != nil:
		outcome = "failed"
	case done:
		outcome = "done"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[Write]float64{}
	}
	c.n[Write{controller, verb, outcome}]++
}

// All returns the counts.
func (c *Counts) All() map[Write]float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}
