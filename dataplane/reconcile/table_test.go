package reconcile_test

import (
	"maps"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/reconcile/reconciletest"
)

// applier is a Store as a Table sees it.
type applier struct{ *reconciletest.Store }

func (a applier) List() (map[string]int, error) { return maps.Clone(a.Have), a.ListError }

func (a applier) Apply(steps []reconcile.Step[string, int]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		errs[i] = a.Store.Apply(s.Action, s.Key, s.New)
	}
	return errs
}

type table struct{ *reconcile.Table[string, int] }

func (t table) Phases() map[string]reconcile.Phase {
	phases := map[string]reconcile.Phase{}
	for k, s := range t.All() {
		phases[k] = s.Phase
	}
	return phases
}

func TestTableKeepsTheContract(t *testing.T) {
	reconciletest.Run(t, func(s *reconciletest.Store, now func() time.Time) reconciletest.Table {
		equal := func(a, b int) bool { return a == b }
		return table{reconcile.NewTable(applier{s}, equal, now, reconciletest.Backoff)}
	})
}
