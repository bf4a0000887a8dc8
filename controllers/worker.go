package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/controllers/mirror"
	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/retry"
)

// configKey is the key of the controllers' configuration.
var configKey = model.ResourceKey(model.KindKubeControllers, "default")

// worker is a leader at work.
type worker struct {
	*Manager
	source    datastore.Store // nil without a Kubernetes API
	ownSource bool
	// tables mirror the store, sourceTables the source. further have the kinds of the store that only reports need.
	tables, sourceTables, further *datastore.Tables

	running map[string]*running
}

// running is a running controller with its configuration.
type running struct {
	with   any
	cancel context.CancelFunc
	done   chan struct{}
}

// open opens the source.
func (w *worker) open(ctx context.Context) (err error) {
	switch {
	case w.InKubernetes:
		w.source = w.Store
	case w.Source != nil:
		w.source, err = w.Source(ctx)
		w.ownSource = true
	}
	return err
}

func (w *worker) close() {
	if w.ownSource && w.source != nil {
		_ = w.source.Close()
	}
}

// run maintains the tables and the configured controllers.
func (w *worker) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer w.stopAll()
	defer cancel(nil)
	kinds, sourceKinds := kindsOf(w.InKubernetes, w.NoIPAM)
	w.tables = w.newTables()
	w.sourceTables = w.tables
	w.further = datastore.NewTables(w.Log.Named("object-rules"), "")
	group.Go(func() { cancel(w.tables.Run(ctx, w.Store, kinds...)) })
	switch {
	case w.source == nil:
		w.sourceTables = emptyTables()
	case !w.InKubernetes:
		w.sourceTables = datastore.NewTables(w.Log.Named("kubernetes"), "")
		group.Go(func() { cancel(w.sourceTables.Run(ctx, w.source, sourceKinds...)) })
	}
	var s *datastore.Snapshot
	for {
		next, err := w.next(ctx, s)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s = next; err != nil || !s.InSync() {
			w.note(w.lost())
			continue
		}
		if problem := w.follow(ctx, s); problem != nil && ctx.Err() == nil {
			w.note(problem)
			retry.Sleep(ctx, time.Second)
			s = nil // again
			continue
		}
		w.note(w.lost())
	}
}

// next returns the newest snapshot after a change, or after some time.
func (w *worker) next(ctx context.Context, s *datastore.Snapshot) (*datastore.Snapshot, error) {
	limited, cancel := context.WithTimeout(ctx, w.CheckInterval)
	defer cancel()
	next, err := w.tables.Wait(limited, s)
	if err != nil {
		return s, err
	}
	return next, nil
}

// lost returns the reason why the tables are out of date, nil if they are not.
func (w *worker) lost() error {
	for _, t := range []*datastore.Tables{w.tables, w.sourceTables} {
		if st := t.Status(); !st.InSync && st.LastError != nil {
			return fmt.Errorf("not everything can be read: %w", st.LastError)
		}
	}
	return nil
}

// newTables returns the tables of the store. If no controller changes endpoints, which is with Kubernetes as the
// datastore, they keep few fields of them: there are as many endpoints as pods.
func (w *worker) newTables() *datastore.Tables {
	log := w.Log.Named("datastore")
	if w.InKubernetes {
		return datastore.NewAddressTables(log)
	}
	return datastore.NewTables(log, "")
}

// emptyTables returns the tables of a missing source.
func emptyTables() *datastore.Tables {
	t := datastore.NewTables(zap.NewNop(), "")
	t.Apply(datastore.Event{Type: datastore.EventInSync})
	return t
}

func (w *worker) note(problem error) {
	text := ""
	if problem != nil {
		text = problem.Error()
	}
	unread := ""
	if st := w.further.Status(); !st.InSync && st.LastError != nil {
		unread = st.LastError.Error()
	}
	if unread != "" && unread != w.State().Unread {
		w.Log.Warn("some objects that break a rule have no Events", zap.String("reason", unread))
	}
	w.set(func(s *State) {
		s.Problem, s.Unread, s.Controllers = text, unread, slices.Sorted(maps.Keys(w.running))
	})
}

// follow runs the configured controllers, and writes the running ones to the configuration's status. If there is no
// configuration it creates one.
func (w *worker) follow(ctx context.Context, s *datastore.Snapshot) error {
	if model.Locked(s) {
		w.apply(ctx, w.always())
		return errLocked
	}
	o := s.Get(configKey)
	if o == nil {
		return w.makeConfig(ctx)
	}
	c := o.Value.(*model.KubeControllersConfiguration)
	run, status := settings.Merge(w.Env, c.Spec, w.InKubernetes)
	jobs, err := w.jobs(run)
	if err != nil {
		return err
	}
	w.apply(ctx, jobs)
	if mirror.SameValue(c.Status, status) {
		return nil
	}
	next := o.Clone()
	next.Value.(*model.KubeControllersConfiguration).Status = status
	_, err = change.Change{Old: o, New: next}.Apply(ctx, w.Store)
	return err
}

// errLocked is the reason why no controller runs: what it writes might be lost.
var errLocked = errors.New("the datastore is locked (datastoreReady is false), as during a migration")

func (w *worker) makeConfig(ctx context.Context) error {
	o, err := w.Store.Get(ctx, configKey)
	switch {
	case errors.Is(err, datastore.ErrNotFound):
		_, err := change.Change{New: model.NewObject(configKey, settings.Default())}.Apply(ctx, w.Store)
		return err
	case err != nil:
		return err
	case o.Err != nil:
		return fmt.Errorf("nothing runs until %s is put right: %w", configKey, o.Err)
	}
	return nil // the watch delivers it
}

// job is a controller to run.
type job struct {
	with any                         // identifies the configuration
	run  func(context.Context) error // until the context ends
}

// apply starts, ends and restarts controllers, so that these run.
func (w *worker) apply(ctx context.Context, jobs map[string]job) {
	for name, r := range w.running {
		if j, ok := jobs[name]; !ok || !reflect.DeepEqual(j.with, r.with) {
			r.cancel()
			<-r.done
			delete(w.running, name)
			w.Log.Info("controller ended", zap.String("controller", name), zap.Bool("again", ok))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(jobs)) {
		if w.running[name] == nil {
			w.running[name] = w.start(ctx, name, jobs[name])
		}
	}
}

// backoff is the pause before a failed controller runs again.
var backoff = retry.Backoff{Min: 5 * time.Second, Max: time.Minute}

// start runs a controller until it is cancelled. It restarts a failed one.
func (w *worker) start(ctx context.Context, name string, j job) *running {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{with: j.with, cancel: cancel, done: make(chan struct{})}
	w.Log.Info("controller runs", zap.String("controller", name), zap.Any("configuration", j.with))
	go func() {
		defer close(r.done)
		_ = backoff.Repeat(ctx, j.run, func(err error) bool {
			w.Log.Warn("controller failed, it runs again", zap.String("controller", name), zap.Error(err))
			return true
		})
	}()
	return r
}

func (w *worker) stopAll() {
	for _, r := range w.running {
		r.cancel()
		<-r.done
	}
}
