package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/safefile"
)

// Listen opens the control socket at path, which only its owner may use (mode 0600). The folder is made if it is
// missing. A socket that a dead process left is replaced; one that a live process has is an error that names it.
func Listen(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if len(dir) > longestDir {
		return nil, fmt.Errorf("control socket %s: the path of its folder has %d bytes, want at most %d: choose a "+
			"shorter one", path, len(dir), longestDir)
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	l, err := safefile.Listen(path, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), lock.Close())
	}
	return &ownedListener{Listener: l, lock: lock}, nil
}

// longestDir leaves room for the names of the sockets in the folder: the kernel takes 107 bytes.
const longestDir = 107 - len("/.manxd-0123456789/s")

// lockFile holds the lock until the file is closed, at the latest when the process dies. The file stays: removing it
// would let two processes hold the lock of one path on different files.
func lockFile(path string) (*os.File, error) {
	f, err := safefile.OpenOwn(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		owner, _ := io.ReadAll(io.LimitReader(f, 20))
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

// ownedListener removes the socket and gives up the lock when it is closed.
type ownedListener struct {
	net.Listener
	lock *os.File
	once sync.Once
	err  error
}

// Close implements net.Listener.
func (l *ownedListener) Close() error {
	l.once.Do(func() { l.err = errors.Join(l.Listener.Close(), l.lock.Close()) })
	return l.err
}
