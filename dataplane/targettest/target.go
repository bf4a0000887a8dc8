// Package targettest has a small target, for tests of agents and as an example: it keeps a file that lists this host's
// workloads.
package targettest

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/safefile"
)

// Target keeps the file. It is not safe for concurrent use.
type Target struct {
	path  string
	now   func() time.Time
	table *reconcile.Table[string, string] // the file's content by its path
	stale bool                             // the file has to be read again
}

// New makes a Target for the file at a path; now is the clock.
func New(path string, now func() time.Time) *Target {
	t := &Target{path: path, now: now, stale: true}
	t.table = reconcile.NewTable(t, func(a, b string) bool { return a == b }, now, reconcile.DefaultBackoff)
	return t
}

// Name is the target's in logs.
func (t *Target) Name() string { return "roster" }

// SetState applies the workloads of a state.
func (t *Target) SetState(h *hoststate.Host) {
	if h.Concerned {
		t.table.Set(t.path, content(h))
	}
}

// content returns the desired content: a line for each workload, in order.
func content(h *hoststate.Host) string {
	var lines []string
	for k, e := range h.Usable() {
		lines = append(lines, k.Namespace+"/"+k.Name+" "+e.Spec.InterfaceName+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// Handle takes over kernel events: a process that changes interfaces may have changed the file.
func (t *Target) Handle(events []kernel.Event) {
	t.stale = t.stale || slices.ContainsFunc(events, kernel.Event.AboutLinks)
}

// Resync makes the next Flush read the file.
func (t *Target) Resync() { t.stale = true }

// Retry makes the next Flush retry failed steps, and read the file.
func (t *Target) Retry() {
	t.table.RetryAll()
	t.stale = true
}

// Flush writes the file if it is not as desired.
func (t *Target) Flush() (steps, failures int, err error) {
	if t.stale {
		if err := t.table.Resync(); err != nil {
			return 0, 0, err
		}
		t.stale = false
	}
	steps, failures = t.table.Flush()
	return steps, failures, nil
}

// checkEvery is the interval between reads of the file without an event.
const checkEvery = time.Hour

// Next returns how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	if at, ok := t.table.Next(); ok {
		return max(at.Sub(t.now()), time.Millisecond)
	}
	return checkEvery
}

// Health returns the health of the file.
func (t *Target) Health() reconcile.Health {
	return reconcile.Health{Part: "roster", Failures: t.table.Failures(), Problem: t.table.Problem()}
}

// Notices report why the file is not as desired.
func (t *Target) Notices() []reconcile.Notice {
	s := t.table.Status(t.path)
	if s.Phase != reconcile.Failed {
		return nil
	}
	return []reconcile.Notice{{Subject: t.path, Text: s.Reason, Since: s.Since}}
}

// Repairs lists the changes of other programs that Flush has undone since the last call, and how many more there were.
func (t *Target) Repairs() ([]reconcile.Repair, int) { return t.table.Repairs() }

// longest is the number of bytes of the file that are read at most.
const longest = 1 << 20

// List implements reconcile.Applier. An unreadable file counts as one with other content.
func (t *Target) List() (map[string]string, error) {
	data, err := safefile.Read(t.path, longest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return map[string]string{t.path: "unreadable: " + err.Error()}, nil
	}
	return map[string]string{t.path: string(data)}, nil
}

// Apply implements reconcile.Applier.
func (t *Target) Apply(steps []reconcile.Step[string, string]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		if err := safefile.Replace(s.Key, []byte(s.New), 0o644); err != nil {
			errs[i] = fmt.Errorf("write the roster: %w", err)
		}
	}
	return errs
}
