package endpointstatus

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/safefile"
)

// checkEvery is how often the folder is read again: others may have changed it.
const checkEvery = 10 * time.Second

// open opens the folder.
func (t *target) open(open func(string) (*safefile.Dir, error)) (*safefile.Dir, error) {
	d, err := open(t.dir)
	if err != nil || !t.owned {
		return d, err
	}
	if err := d.CheckOwned(); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

func makeFolder(path string) (*safefile.Dir, error) { return safefile.Make(path, 0o755) }

// target keeps the files of one folder. Not safe for concurrent use.
type target struct {
	reconcile.Checked[string, string]
	dir    string
	owned  bool
	now    func() time.Time
	wanted map[string]string
}

// newTarget makes a target for the folder dir, which is made when it is needed; now is the clock.
func newTarget(dir string, now func() time.Time) *target {
	t := &target{dir: dir, now: now}
	t.Checked = reconcile.NewChecked(t, "endpoints", checkEvery, now)
	return t
}

// RequireOwned makes the target write only while nobody but root and this process's user can change the path. It is for
// a path that does not come from this host's administrator. Call it before the first Flush.
func (t *target) RequireOwned() { t.owned = true }

// Set sets the desired files, as decide returns them.
func (t *target) Set(files map[string]string) {
	for name := range t.wanted {
		if _, still := files[name]; !still {
			t.Table.Unset(name)
		}
	}
	for name, content := range files {
		t.Table.Set(name, content)
	}
	t.wanted = files
}

// Synced sets whether the datastore has been read in full: then files of an earlier run may be removed.
func (t *target) Synced(yes bool) { t.Table.Prune(yes) }

// longestStatus bounds how much of a file is read, in bytes; those of this package are far shorter.
const longestStatus = 64 << 10

// List implements reconcile.Applier. It leaves out files of other users.
func (t *target) List() (map[string]string, error) {
	files := map[string]string{}
	d, err := t.open(safefile.Open)
	if errors.Is(err, fs.ErrNotExist) {
		return files, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the endpoints' status files: %w", err)
	}
	defer d.Close() //nolint:errcheck // only read
	d.RemoveLeftovers(t.now())
	names, err := d.Files()
	if err != nil {
		return nil, fmt.Errorf("read the endpoints' status files: %w", err)
	}
	for _, name := range names {
		if !isFileName(name) {
			continue
		}
		content, err := d.Read(name, longestStatus)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil { // it is none that this package has written, or no regular file any more: write it anew
			content = []byte("unreadable: " + err.Error())
		}
		files[name] = string(content)
	}
	return files, nil
}

// Apply implements reconcile.Applier.
func (t *target) Apply(steps []reconcile.Step[string, string]) []error {
	errs := make([]error, len(steps))
	d, err := t.open(makeFolder)
	if err != nil {
		for i := range errs {
			errs[i] = fmt.Errorf("write the endpoint's status file: %w", err)
		}
		return errs
	}
	defer d.Close() //nolint:errcheck // only read
	for i, s := range steps {
		if s.Action == reconcile.Remove {
			errs[i] = remove(d, s.Key)
		} else if err := d.Replace(s.Key, []byte(s.New), 0o644); err != nil { // who waits for it never reads a part
			errs[i] = fmt.Errorf("write the endpoint's status file: %w", err)
		}
	}
	return errs
}

func remove(d *safefile.Dir, name string) error {
	if err := d.Remove(name); err != nil {
		return fmt.Errorf("remove the endpoint's status file: %w", err)
	}
	return nil
}

// Cleanup removes all files of a folder, and the folder if nothing else is in it. It returns how many files it removed.
func Cleanup(dir string) (removed int, err error) {
	t := newTarget(dir, time.Now)
	files, err := t.List()
	errs := []error{err}
	if len(files) > 0 {
		d, err := t.open(safefile.Open)
		if err != nil {
			return 0, fmt.Errorf("remove the endpoints' status files: %w", err)
		}
		defer d.Close() //nolint:errcheck // only read
		for name := range files {
			if err := remove(d, name); err != nil {
				errs = append(errs, err)
				continue
			}
			removed++
		}
		_ = d.Remove(".new") // of versions that died while they wrote
	}
	if err == nil {
		safefile.RemoveDir(dir) // if it is not empty it has another user, too
	}
	return removed, errors.Join(errs...)
}
