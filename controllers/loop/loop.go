// Package loop runs controllers that follow from what two datastores hold: what changes is decided anew, and everything
// is from time to time.
package loop

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// State is what a decision rests on. Source is empty where there is none.
type State struct{ Source, Store model.Reader }

// Controller decides without I/O what objects of the store are to be. It is called by one goroutine. It may keep
// indexes of what it was shown by Touched.
type Controller interface {
	Name() string
	// Kinds returns those that it reads.
	Kinds() (store, source []model.Kind)
	// Touched names the units that have to be decided anew after a change, in the source or in the store. A unit is
	// whatever the controller decides at once, by a key.
	Touched(ch datastore.Change, source bool) []model.Key
	// All names every unit, also those of which only something to be deleted is left.
	All(State) []model.Key
	// Decide tells how the store has to change for a unit.
	Decide(State, model.Key) []change.Change
}

// Runner runs a Controller on a store.
type Runner struct {
	Controller
	Store datastore.Store
	Log   *zap.Logger
	// Period is the time between two looks at everything; default five minutes. Retry is when a failure is first tried
	// again; default one second, with each failure twice as long up to a minute.
	Period, Retry time.Duration
	// Counts, if set, counts the writes.
	Counts *Counts

	dirty    map[model.Key]struct{}
	failures map[model.Key]failure
}

// failure is a unit that could not be brought to what was decided.
type failure struct {
	text  string
	times int
	next  time.Time
}

const longestRetry = time.Minute

// Run works until ctx ends.
func (r *Runner) Run(ctx context.Context, store, source *datastore.Tables) error {
	r.dirty, r.failures = map[model.Key]struct{}{}, map[model.Key]failure{}
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
		}
		r.wait(ctx, now, nowSource, r.earliest(wake))
	}
	return ctx.Err()
}

func (r *Runner) period() time.Duration {
	if r.Period <= 0 {
		return 5 * time.Minute
	}
	return r.Period
}

// take learns what has changed.
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

// pass decides what is dirty, and what failed and is due.
func (r *Runner) pass(ctx context.Context, state State) {
	now := time.Now()
	for unit, f := range r.failures {
		if !now.Before(f.next) {
			r.dirty[unit] = struct{}{}
		}
	}
	units := r.dirty
	r.dirty = map[model.Key]struct{}{}
	for unit := range maps.Keys(units) {
		if ctx.Err() != nil {
			return
		}
		r.note(unit, r.settle(ctx, state, unit))
	}
}

// settle brings the store to what is decided for a unit. One object that fails does not keep the others.
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

// note remembers a failure, and says it once.
func (r *Runner) note(unit model.Key, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		delete(r.failures, unit)
		return
	}
	f := r.failures[unit]
	if f.text != err.Error() {
		r.Log.Warn("an object cannot be brought up to date, trying again", zap.Stringer("unit", unit), zap.Error(err))
	}
	first := r.Retry
	if first <= 0 {
		first = time.Second
	}
	f.next = time.Now().Add(min(first<<min(f.times, 6), longestRetry))
	f.text, f.times = err.Error(), f.times+1
	r.failures[unit] = f
}

// earliest returns the next moment at which there is something to do without a change; zero: none.
func (r *Runner) earliest(wake time.Time) time.Time {
	for _, f := range r.failures {
		if wake.IsZero() || f.next.Before(wake) {
			wake = f.next
		}
	}
	return wake
}

// wait returns when there is a newer snapshot than one of these, or at a moment.
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

// Counts counts what controllers have done, by controller, verb and outcome. A nil one counts nothing.
type Counts struct {
	mu sync.Mutex
	n  map[Write]float64
}

// Write is a counted write. Outcome is done, overtaken (another writer was faster, or the reason is gone) or failed.
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
