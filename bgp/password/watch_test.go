package password

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
)

// Passwords that come, change and go are seen at once, as plain files and as Kubernetes mounts secrets.
func TestPasswordsAreWatched(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "passwords")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p := NewFolder(dir)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Watch(ctx, zap.NewNop())
	}()
	defer func() {
		cancel()
		<-done
	}()
	<-p.changed // it watches now
	await := func(secret, key, want string) {
		t.Helper()
		limit := time.After(watchRetry * 9 / 10)
		for {
			if got, _ := NewFolder(dir).Password(secret, key); got == want {
				return
			}
			select {
			case <-p.changed:
			case <-limit:
				t.Fatalf("nobody said that %s/%s should be %q now", secret, key, want)
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(text string, path ...string) {
		t.Helper()
		path = append([]string{dir}, path...)
		must(os.MkdirAll(filepath.Join(path[:len(path)-1]...), 0o700))
		must(os.WriteFile(filepath.Join(path...), []byte(text), 0o600))
	}
	// later does something while the test waits, so that only a signal can end the wait.
	later := func(change func(), secret, key, want string) {
		t.Helper()
		for len(p.changed) > 0 {
			<-p.changed
		}
		change()
		select {
		case <-p.changed:
		case <-time.After(watchRetry * 9 / 10):
			t.Fatalf("no signal for %s/%s", secret, key)
		}
		await(secret, key, want)
	}
	later(func() { write("one\n", "tor", "pw") }, "tor", "pw", "one")
	later(func() { write("two\n", "tor", "pw") }, "tor", "pw", "two")
	later(func() { must(os.Remove(filepath.Join(dir, "tor", "pw"))) }, "tor", "pw", "")
	later(func() { write("three", "tor", "pw") }, "tor", "pw", "three")
	later(func() { must(os.RemoveAll(filepath.Join(dir, "tor"))) }, "tor", "pw", "")

	later(func() {
		write("a", "mesh", "..1", "pw")
		must(os.Symlink("..1", filepath.Join(dir, "mesh", "..data")))
		must(os.Symlink("..data/pw", filepath.Join(dir, "mesh", "pw")))
	}, "mesh", "pw", "a")
	later(func() {
		write("b", "mesh", "..2", "pw")
		must(os.Symlink("..2", filepath.Join(dir, "mesh", "..new")))
		must(os.Rename(filepath.Join(dir, "mesh", "..new"), filepath.Join(dir, "mesh", "..data")))
	}, "mesh", "pw", "b")
}
