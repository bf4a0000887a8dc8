package password

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t *testing.T, text string, path ...string) string {
	t.Helper()
	p := filepath.Join(path...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o700), os.WriteFile(p, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestReadsOnlyInsideTheFolder(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "passwords")
	write(t, "s3cret \n", dir, "tor", "key")
	write(t, "no", root, "outside")
	for link, to := range map[string]string{"relative": "../../outside", "absolute": filepath.Join(root, "outside"),
		"inside": "key"} {
		if err := os.Symlink(to, filepath.Join(dir, "tor", link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ secret, key, want string }{
		{"tor", "key", "s3cret "},
		{"tor", "inside", "s3cret "},
		{"tor", "other", ""}, {"tor", "relative", ""}, {"tor", "absolute", ""},
		{"..", "outside", ""}, {"tor/..", "outside", ""}, {"tor", "../../outside", ""}, {"", "", ""},
		{"tor", "k\x00", ""},
	} {
		got, err := NewFolder(dir).Password(c.secret, c.key)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q %q: %q, %v; want %q", c.secret, c.key, got, err, c.want)
		}
	}
	if got, err := NewFolder("").Password("tor", "key"); got != "" || err == nil {
		t.Errorf("no folder: %q, %v", got, err)
	}
}

// After any failure of a file, the last good password stays, with the reason. A name without a good password has none.
func TestTheLastGoodPasswordStays(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		spoil        func(t *testing.T, path string)
	}{
		{"removed", "no such file", func(t *testing.T, p string) { must(t, os.Remove(p)) }},
		{"folder removed", "no such file", func(t *testing.T,
			p string) {
			must(t, os.RemoveAll(filepath.Dir(filepath.Dir(p))))
		}},
		{"truncated", "is empty", func(t *testing.T, p string) { must(t, os.Truncate(p, 0)) }},
		{"blank", "is empty", func(t *testing.T, p string) { write(t, " \t\n\n", p) }},
		{"too long", "takes at most 80", func(t *testing.T, p string) { write(t, strings.Repeat("x", 81), p) }},
		{"huge", "is larger than", func(t *testing.T, p string) { write(t, strings.Repeat("x", 1<<20), p) }},
		{"a directory", "no regular file", func(t *testing.T,
			p string) {
			must(t, errors.Join(os.Remove(p), os.Mkdir(p, 0o700)))
		}},
		{"a pipe", "no regular file", func(t *testing.T,
			p string) {
			must(t, errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)))
		}},
		{"open for writing", "being written", func(t *testing.T, p string) {
			f, err := os.OpenFile(p, os.O_WRONLY|os.O_TRUNC, 0)
			must(t, err)
			_, err = f.WriteString("hal")
			must(t, err)
			t.Cleanup(func() { f.Close() })
		}},
		{"no descriptors", "too many open files", exhaust},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := write(t, "good\n", t.TempDir(), "pw", "tor", "key")
			f, fresh := NewFolder(filepath.Dir(filepath.Dir(path))), NewFolder(filepath.Dir(filepath.Dir(path)))
			if got, err := f.Password("tor", "key"); got != "good" || err != nil {
				t.Fatalf("%q, %v", got, err)
			}
			c.spoil(t, path)
			if got, err := f.Password("tor", "key"); got != "good" || err == nil ||
				!strings.Contains(err.Error(), c.reason) {
				t.Errorf("after it was read: %q, %v; want the last one and %q", got, err, c.reason)
			}
			if got, err := fresh.Password("tor", "key"); got != "" || err == nil ||
				!strings.Contains(err.Error(), c.reason) {
				t.Errorf("never read: %q, %v; want none and %q", got, err, c.reason)
			}
		})
	}
}

// A file that is truncated and written again in pieces is read when its writer has closed it, never before.
func TestAChangingFileIsReadWhenItIsComplete(t *testing.T) {
	dir := t.TempDir()
	path := write(t, "old", dir, "tor", "key")
	f := NewFolder(dir)
	expect := func(want string, writing bool) {
		t.Helper()
		soon := period
		if writing {
			soon = writingPeriod
		}
		got, _ := f.Password("tor", "key")
		if every := f.EndDecision(); got != want || every != soon || writing && !f.Outdated() {
			t.Fatalf("%q, to be checked every %v; want %q, %v", got, every, want, soon)
		}
	}
	expect("old", false)
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	expect("old", true)
	_, err = w.WriteString("ne")
	must(t, err)
	expect("old", true)
	_, err = w.WriteString("w")
	must(t, errors.Join(err, w.Close()))
	expect("new", false)
}

// Without leases a file counts once it has been the same for a while, by its own time or by two checks.
func TestFilesSettleWhereThereAreNoLeases(t *testing.T) {
	path := write(t, "x", t.TempDir(), "key")
	now := time.Now()
	f := NewFolder("")
	f.now = func() time.Time { return now }
	look := func(changed time.Time, content string) error {
		t.Helper()
		must(t, os.Chtimes(path, changed, changed))
		info, err := os.Stat(path)
		must(t, err)
		return f.settled(name{"s", "k"}, info, content)
	}
	if err := look(now.Add(-time.Minute), "old"); err != nil {
		t.Error(err)
	}
	future := now.Add(time.Hour) // a clock that was set back
	if look(future, "new") == nil {
		t.Error("a file of this moment counts as complete")
	}
	now = now.Add(settleTime / 2)
	if look(future, "new") == nil {
		t.Error("settled too early")
	}
	now = now.Add(settleTime)
	if err := look(future, "new"); err != nil {
		t.Error(err)
	}
	if look(future, "newer") == nil {
		t.Error("another content counts as seen before")
	}
}

// exhaust leaves the process without free descriptors until the test ends.
func exhaust(t *testing.T, _ string) {
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	f, err := os.Open("/dev/null")
	must(t, err)
	defer f.Close()
	low := limit
	low.Cur = uint64(f.Fd())
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low))
	t.Cleanup(func() { must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
