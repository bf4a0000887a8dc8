package password

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
)

// Passwords that are created, changed and removed are reported at once, as plain files and as Kubernetes mounts
// secrets.
func TestPasswordsAreWatched(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "passwords")
	must(t, os.MkdirAll(dir, 0o700))
	f := NewFolder(dir)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Watch(ctx, zap.NewNop())
	}()
	defer func() {
		cancel()
		<-done
	}()
	<-f.Changed() // the watch has begun
	// await waits until a password has a value; each of its reads follows a signal.
	await := func(secret, key, want string) {
		t.Helper()
		limit := time.After(watchRetry * 9 / 10)
		for {
			if got, _ := NewFolder(dir).Password(secret, key); got == want {
				return
			}
			select {
			case <-f.Changed():
			case <-limit:
				t.Fatalf("no signal for %s/%s, which should be %q now", secret, key, want)
			}
		}
	}
	// expect makes a change while nothing but a signal can end the wait.
	expect := func(change func(), secret, key, want string) {
		t.Helper()
		for len(f.changed) > 0 {
			<-f.changed
		}
		change()
		select {
		case <-f.Changed():
		case <-time.After(watchRetry * 9 / 10):
			t.Fatalf("no signal for %s/%s", secret, key)
		}
		await(secret, key, want)
	}
	expect(func() { write(t, "one\n", dir, "tor", "pw") }, "tor", "pw", "one")
	expect(func() { write(t, "two\n", dir, "tor", "pw") }, "tor", "pw", "two")
	expect(func() { must(t, os.Remove(filepath.Join(dir, "tor", "pw"))) }, "tor", "pw", "")
	expect(func() { write(t, "three", dir, "tor", "pw") }, "tor", "pw", "three")
	expect(func() { must(t, os.RemoveAll(filepath.Join(dir, "tor"))) }, "tor", "pw", "")

	expect(func() {
		write(t, "a", dir, "mesh", "..1", "pw")
		must(t, os.Symlink("..1", filepath.Join(dir, "mesh", "..data")))
		must(t, os.Symlink("..data/pw", filepath.Join(dir, "mesh", "pw")))
	}, "mesh", "pw", "a")
	expect(func() {
		write(t, "b", dir, "mesh", "..2", "pw")
		must(t, os.Symlink("..2", filepath.Join(dir, "mesh", "..new")))
		must(t, os.Rename(filepath.Join(dir, "mesh", "..new"), filepath.Join(dir, "mesh", "..data")))
	}, "mesh", "pw", "b")
}
