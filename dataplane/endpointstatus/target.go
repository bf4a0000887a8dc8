package endpointstatus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/manxnet/manx/dataplane/reconcile"
)

// checkEvery is how often the folder is read again: others may have changed it.
const checkEvery = 10 * time.Second

// Target keeps the files of one folder. Not safe for concurrent use.
type Target struct {
	dir     string
	now     func() time.Time
	table   *reconcile.Table[string, string]
	wanted  map[string]string
	checkAt time.Time
	lastErr error
}

// New makes a Target for the folder dir, which is made when it is needed; now is the clock.
func New(dir string, now func() time.Time) *Target {
	t := &Target{dir: dir, now: now}
	equal := func(a, b string) bool { return a == b }
	t.table = reconcile.NewTable(t, equal, now, reconcile.DefaultBackoff)
	return t
}

// Set takes over which files should exist, as Decide returns them.
func (t *Target) Set(files map[string]string) {
	for name := range t.wanted {
		if _, still := files[name]; !still {
			t.table.Unset(name)
		}
	}
	for name, content := range files {
		t.table.Set(name, content)
	}
	t.wanted = files
}

// Synced says whether the datastore has told everything: then files that an earlier run left may go.
func (t *Target) Synced(yes bool) { t.table.Prune(yes) }

// Retry makes the next Flush try what failed, and read everything again.
func (t *Target) Retry() {
	t.table.RetryAll()
	t.Resync()
}

// Resync makes the next Flush read the folder again.
func (t *Target) Resync() { t.checkAt = time.Time{} }

// Flush brings the folder there. It returns how many files it tried to change and how many of them failed.
func (t *Target) Flush() (steps, failures int, err error) {
	if now := t.now(); !now.Before(t.checkAt) {
		t.checkAt = now.Add(checkEvery)
		if t.lastErr = t.table.Resync(); t.lastErr != nil {
			return 0, 0, t.lastErr
		}
	}
	steps, failures = t.table.Flush()
	return steps, failures, nil
}

// Next is how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	at := t.checkAt
	if retry, ok := t.table.Next(); ok && retry.Before(at) {
		at = retry
	}
	return max(at.Sub(t.now()), time.Millisecond)
}

// Failures is the number of files that could not be written or removed.
func (t *Target) Failures() int { return t.table.Failures() }

// Problem says what failed, nil if nothing did.
func (t *Target) Problem() error { return t.table.Problem() }

// Repairs tells what others had changed and Flush put right since the last call, and how many more there were.
func (t *Target) Repairs() ([]reconcile.Repair, int) { return t.table.Repairs() }

// List implements reconcile.Target.
func (t *Target) List() (map[string]string, error) {
	entries, err := os.ReadDir(t.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the endpoints' status files: %w", err)
	}
	files := map[string]string{}
	for _, e := range entries {
		if !e.Type().IsRegular() || !isFileName(e.Name()) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(t.dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the endpoints' status files: %w", err)
		}
		files[e.Name()] = string(content)
	}
	return files, nil
}

// Apply implements reconcile.Target.
func (t *Target) Apply(steps []reconcile.Step[string, string]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		if s.Action == reconcile.Remove {
			errs[i] = t.remove(s.Key)
		} else {
			errs[i] = t.write(s.Key, s.New)
		}
	}
	return errs
}

// write replaces a file as a whole: who waits for it never reads a part. The name of the new file is none that
// isFileName accepts.
func (t *Target) write(name, content string) error {
	fresh := filepath.Join(t.dir, ".new")
	err := os.MkdirAll(t.dir, 0o755)
	if err == nil {
		err = os.WriteFile(fresh, []byte(content), 0o644)
	}
	if err == nil {
		err = os.Rename(fresh, filepath.Join(t.dir, name))
	}
	if err != nil {
		return fmt.Errorf("write the endpoint's status file: %w", err)
	}
	return nil
}

func (t *Target) remove(name string) error {
	if err := os.Remove(filepath.Join(t.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the endpoint's status file: %w", err)
	}
	return nil
}

// Cleanup removes all files of a folder, and the folder if nothing else is in it. It returns how many files it removed.
func Cleanup(dir string) (removed int, err error) {
	t := New(dir, time.Now)
	files, err := t.List()
	errs := []error{err}
	for name := range files {
		if err := t.remove(name); err != nil {
			errs = append(errs, err)
			continue
		}
		removed++
	}
	_ = os.Remove(filepath.Join(dir, ".new"))
	_ = os.Remove(dir) // if it is not empty it is somebody else's, too
	return removed, errors.Join(errs...)
}
