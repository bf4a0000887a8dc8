// Package policynames renames policies that are stored under the names of releases before Calico 3.32 ("default.x") to
// today's ("x"), once every agent finds them there.
package policynames

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/controllers/nodename"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Kinds returns the kinds that the tables must have.
func Kinds() []model.Kind { return append(renamed(), model.KindNode) }

// renamed returns the kinds that had other names.
func renamed() []model.Kind {
	return []model.Kind{model.KindNetworkPolicy, model.KindGlobalNetworkPolicy, model.KindStagedNetworkPolicy,
		model.KindStagedGlobalNetworkPolicy}
}

// Migrator renames policies.
type Migrator struct {
	// Ready names the agents that may not know today's names, empty for none.
	Ready func(context.Context) (string, error)
	Store datastore.Store
	Log   *zap.Logger
	// CheckInterval is the interval between calls of Ready while policies wait; default one minute.
	CheckInterval time.Duration

	logged string
}

// listPeriod is the interval between complete reads without changes: for a policy stored under both names, after an
// interruption, the tables have only the new one.
const listPeriod = 10 * time.Minute

// Run renames until ctx ends.
func (m *Migrator) Run(ctx context.Context, tables *datastore.Tables) error {
	m.logged = ""
	if m.CheckInterval == 0 {
		m.CheckInterval = time.Minute
	}
	var was *datastore.Snapshot
	var next time.Time
	for ctx.Err() == nil {
		now := tables.Snapshot()
		for ch := range now.Changes(was) {
			if ch.New != nil && oldName(ch.New) && next.After(time.Now().Add(m.CheckInterval)) {
				next = time.Time{}
			}
		}
		was = now
		if now.InSync() && !time.Now().Before(next) {
			next = time.Now().Add(listPeriod)
			if err := m.pass(ctx, now); err != nil {
				m.logChange("policies keep their old names: " + err.Error())
				next = time.Now().Add(m.CheckInterval)
			}
		}
		limited, cancel := context.WithTimeout(ctx, max(time.Until(next), time.Millisecond))
		_, _ = tables.Wait(limited, now)
		cancel()
	}
	return ctx.Err()
}

// oldName reports whether a policy is stored under its old name.
func oldName(o *model.Object) bool {
	current, ok := model.NewPolicyKey(o.Key)
	meta := o.Metadata()
	return ok && meta != nil && meta.GetName() == current.Name
}

// pass renames all policies if every agent will find them.
func (m *Migrator) pass(ctx context.Context, r model.Reader) error {
	var old []*model.Object
	for _, kind := range renamed() {
		list, _, err := m.Store.List(ctx, kind, "")
		if err != nil {
			return err
		}
		for _, o := range list {
			if o.Err == nil && oldName(o) {
				old = append(old, o)
			}
		}
	}
	if len(old) == 0 {
		return nil
	}
	for key, n := range model.All[model.Node](r, model.KindNode) {
		if nodename.Of(n) == "" {
			return fmt.Errorf("node %s is not Kubernetes', so nobody knows whether its agent reads the new ones",
				key.Name)
		}
	}
	reason, err := m.Ready(ctx)
	if err != nil {
		return err
	}
	if reason != "" {
		return errors.New(reason)
	}
	var errs []error
	for _, o := range old {
		errs = append(errs, m.rename(ctx, o))
	}
	return errors.Join(errs...)
}

func (m *Migrator) logChange(text string) {
	if m.logged != text {
		m.logged = text
		m.Log.Info(text)
	}
}

// rename stores a policy under its new name, and then deletes the old one. An interruption leaves both, with equal
// content.
func (m *Migrator) rename(ctx context.Context, o *model.Object) error {
	next := o.Clone()
	next.Key, _ = model.NewPolicyKey(o.Key)
	if _, err := (change.Change{New: next}).Apply(ctx, m.Store); err != nil {
		return err
	}
	done, err := change.Change{Old: o}.Apply(ctx, m.Store)
	if done {
		m.Log.Info("policy was renamed", zap.Stringer("from", o.Key), zap.Stringer("to", next.Key))
	}
	return err
}
