package safefile_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/safefile"
)

// The error of a file that a user cannot read names the user, and what the file or the folder above it allows.
func TestRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user's rights need root")
	}
	dir := t.TempDir()
	closed, open := filepath.Join(dir, "closed"), filepath.Join(dir, "open")
	for path, mode := range map[string]os.FileMode{closed: 0o700, open: 0o755} {
		if err := os.Mkdir(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "key"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path := dir; path != "/"; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err == nil && info.Mode()&0o055 != 0o055 { // /tmp stays as it is
			err = os.Chmod(path, info.Mode()|0o055)
		}
		if err != nil && path == dir {
			t.Fatal(err)
		}
		if path == os.TempDir() {
			break
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { checkRefused(t, open, closed) })
	wg.Wait()
}

func checkRefused(t *testing.T, open, closed string) {
	runtime.LockOSThread() // and never unlocked: the thread ends with its goroutine
	if err := unix.Setfsuid(65534); err != nil {
		t.Error(err)
		return
	}
	for path, want := range map[string]string{
		filepath.Join(open, "key"):        "permission denied for user root: the file belongs to root:root, mode 0600",
		filepath.Join(closed, "key"):      "for user root: the folder " + closed + " belongs to root:root, mode 0700",
		filepath.Join(closed, "a", "key"): "the folder " + closed + " belongs to root:root, mode 0700",
	} {
		_, err := os.ReadFile(path)
		if got := safefile.Refused(err); !errors.Is(got, os.ErrPermission) || !strings.HasSuffix(got.Error(), want) {
			t.Errorf("%s: %v", path, got)
		}
	}
	_, err := os.ReadFile(filepath.Join(open, "absent"))
	if got := safefile.Refused(err); !errors.Is(err, os.ErrNotExist) || got != err {
		t.Errorf("%v, %v", err, got)
	}
}
