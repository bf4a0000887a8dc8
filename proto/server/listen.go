package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Listen opens the control socket at path, which only its owner may use (mode 0600). The folder is made if it is
// missing. A socket that a dead process left is replaced; one that a live process has is an error that names it.
func Listen(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if len(dir) > longestDir {
		return nil, fmt.Errorf("control socket %s: the path of its folder has %d bytes, want at most %d: choose a shorter one", path, len(dir), longestDir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	l, err := listenLocked(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control socket %s: %w", path, err), lock.Close())
	}
	return &ownedListener{Listener: l, path: path, lock: lock}, nil
}

// longestDir leaves room for the hidden name that the socket has at first: the kernel takes 107 bytes.
const longestDir = 107 - len("/.manxd-0123456789/s")

// lockFile holds the lock until the file is closed, at the latest when the process dies. The file stays: removing it
// would let two processes hold the lock of one path on different files.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(path)
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another manxd is running (process %s holds %s)", owner, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprint(os.Getpid()))); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// listenLocked makes the socket in a folder that nobody else can enter and moves it into place, so that there is no
// moment at which it has a wider mode.
func listenLocked(path string) (net.Listener, error) {
	if err := replaceable(path); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), ".manxd-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // empty by then, or the listener failed
	hidden := filepath.Join(tmp, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(hidden, 0o600), os.Rename(hidden, path)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// replaceable refuses to put the socket in the place of something else, or of a socket on which somebody listens.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("the path exists and is no socket (%s): remove it or choose another", info.Mode())
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return nil // nobody listens: left over
	}
	defer c.Close() //nolint:errcheck // nothing was written
	return errors.New("another process listens on it")
}

// ownedListener removes the socket and gives up the lock when it is closed.
type ownedListener struct {
	net.Listener
	path string
	lock *os.File
	once sync.Once
	err  error
}

// Close implements net.Listener.
func (l *ownedListener) Close() error {
	l.once.Do(func() {
		err := os.Remove(l.path) // while we hold the lock, it is ours
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		l.err = errors.Join(l.Listener.Close(), err, l.lock.Close())
	})
	return l.err
}
