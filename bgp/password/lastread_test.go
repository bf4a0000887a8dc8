package password

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Only a changed file is read again: each change shows in the attributes of the file.
func TestFilesAreReadAgainWhenTheyChange(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, path string)
		want   bool
	}{
		{"nothing", func(*testing.T, string) {}, false},
		{"it is read", func(t *testing.T, p string) { _, err := os.ReadFile(p); must(t, err) }, false},
		{"another file of the folder", func(t *testing.T, p string) { write(t, "x", filepath.Dir(p), "other") }, false},
		{"the same length", func(t *testing.T, p string) { write(t, "dolg", p) }, true},
		{"the same length and time", func(t *testing.T, p string) {
			info, err := os.Stat(p)
			must(t, err)
			write(t, "dolg", p)
			must(t, os.Chtimes(p, info.ModTime(), info.ModTime()))
		}, true},
		{"replaced by a file as old", func(t *testing.T, p string) {
			info, err := os.Stat(p)
			must(t, err)
			write(t, "dolg", p+".new")
			must(t, os.Chtimes(p+".new", info.ModTime(), info.ModTime()))
			must(t, os.Rename(p+".new", p))
		}, true},
		{"removed", func(t *testing.T, p string) { must(t, os.Remove(p)) }, true},
		{"folder removed", func(t *testing.T, p string) { must(t, os.RemoveAll(filepath.Dir(filepath.Dir(p)))) }, true},
		{"the file behind a link, where no watch is", func(t *testing.T, p string) {
			write(t, "dolg", filepath.Dir(filepath.Dir(p)), "data", "deep", "key")
		}, true},
		{"no rights", func(t *testing.T, p string) { must(t, os.Chmod(p, 0)) }, true},
		{"a folder", func(t *testing.T, p string) { must(t, os.Remove(p)); must(t, os.Mkdir(p, 0o700)) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "pw", "tor", "key")
			if strings.Contains(c.name, "link") {
				write(t, "gold", filepath.Dir(filepath.Dir(path)), "data", "deep", "key")
				must(t, os.Mkdir(filepath.Dir(path), 0o700))
				must(t, os.Symlink("../data/deep/key", path))
			} else {
				write(t, "gold", path)
			}
			f := later(filepath.Dir(filepath.Dir(path)))
			if got, err := f.Password("tor", "key"); got != "gold" || err != nil || f.EndDecision() != period {
				t.Fatalf("%q, %v", got, err)
			}
			c.change(t, path)
			if got := f.Outdated(); got != c.want {
				t.Fatalf("outdated %t, want %t", got, c.want)
			}
			_, _ = f.Password("tor", "key")
			if f.EndDecision(); f.Outdated() {
				t.Error("outdated although it was read again")
			}
		})
	}
}

// later returns a folder with a clock an hour ahead: files that a test has just written are old.
func later(dir string) *Folder {
	f := NewFolder(dir)
	f.now = func() time.Time { return time.Now().Add(time.Hour) }
	return f
}

// Files that the last decision did not request are not checked, also after changes.
func TestFilesThatNobodyWantsAreNotLookedAt(t *testing.T) {
	path := write(t, "gold", t.TempDir(), "tor", "key")
	f := later(filepath.Dir(filepath.Dir(path)))
	if every := f.EndDecision(); every != 0 || f.Outdated() {
		t.Errorf("nothing was requested: check every %v", every)
	}
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	defer w.Close()
	_, _ = f.Password("tor", "key")
	if every := f.EndDecision(); every != writingPeriod || !f.Outdated() {
		t.Errorf("a file that is being written: look every %v", every)
	}
	if every := f.EndDecision(); every != 0 || f.Outdated() {
		t.Errorf("it is not requested any more, and is still being written: check every %v", every)
	}
}

// A file that changed a moment ago may change once more within one tick of the clock of the file system.
func TestFilesOfThisMomentAreReadOnceMore(t *testing.T) {
	path := write(t, "gold", t.TempDir(), "tor", "key")
	f := NewFolder(filepath.Dir(filepath.Dir(path)))
	_, _ = f.Password("tor", "key")
	if f.EndDecision(); !f.Outdated() {
		t.Error("a file of this moment is not read again")
	}
}

// The cause of a failed read may vanish without a trace in the file.
func TestWhatCouldNotBeReadIsTriedAgain(t *testing.T) {
	path := write(t, "gold", t.TempDir(), "tor", "key")
	dir := filepath.Dir(filepath.Dir(path))
	f := later(dir)
	t.Run("no descriptors", func(t *testing.T) {
		exhaust(t, "")
		if _, err := f.Password("tor", "key"); err == nil || !strings.Contains(err.Error(), "too many open files") {
			t.Fatal(err)
		}
	})
	if f.EndDecision(); !f.Outdated() {
		t.Error("the file is not tried again")
	}
	if got, err := f.Password("tor", "key"); got != "gold" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := f.Password("tor", "missing"); err == nil {
		t.Error("there is no such file")
	}
	if f.EndDecision(); f.Outdated() {
		t.Error("a file that is not there is tried again, although it did not come")
	}
	write(t, "silver", dir, "tor", "missing")
	if !f.Outdated() {
		t.Error("a file that came is not read")
	}
}
