package safefile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// longestSocketPath is the kernel's limit for a socket's path in bytes, without the final zero (unix(7)).
const longestSocketPath = 107

// Socket is the place of a unix socket in the file system. A listener binds to Address, which is in a folder that no
// other user can enter; Publish then sets the socket's mode and moves it to its path, so that it never has a wider
// mode.
type Socket struct {
	path, name      string
	dir             *Dir
	hidden          string // name of the hidden folder in dir
	private         *Dir
	mu              sync.Mutex
	placed, removed bool
	inode           unix.Stat_t
}

// NewSocket creates the folder of the path if it is missing (mode 0755) and the hidden folder in it.
func NewSocket(path string) (*Socket, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if len(path) > longestSocketPath {
		return nil, fmt.Errorf("the path has %d bytes, want at most %d: choose a shorter one", len(path),
			longestSocketPath)
	}
	s := &Socket{path: path, name: filepath.Base(path), hidden: fresh + rand.Text()}
	if s.dir, err = Make(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := s.dir.replaceable(s.name); err != nil {
		return nil, errors.Join(err, s.dir.Close())
	}
	if s.private, err = s.dir.makePrivate(s.hidden); err != nil {
		return nil, errors.Join(err, s.dir.Close())
	}
	return s, nil
}

// makePrivate creates a folder that no other user can enter.
func (d *Dir) makePrivate(name string) (*Dir, error) {
	path := filepath.Join(d.path, name)
	if err := unix.Mkdirat(d.fd(), name, 0o700); err != nil {
		return nil, &fs.PathError{Op: "make a folder in", Path: d.path, Err: err}
	}
	w := walk{rest: []string{name}}
	defer w.close()
	fd, err := unix.Openat(d.fd(), ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: d.path, Err: err}
	}
	if err := w.enter(fd, d.path); err != nil {
		return nil, err
	}
	if err := w.step(); err != nil {
		return nil, err
	}
	if last := w.last(); last.path != path || last.writers != "" {
		return nil, fmt.Errorf("another process has exchanged the folder %s", path)
	}
	return w.reopen()
}

// Address returns the path to bind to.
func (s *Socket) Address() string { return fmt.Sprintf("/proc/self/fd/%d/s", s.private.fd()) }

// Publish moves the socket to its path. An existing entry is replaced only if it is a socket of root or this process's
// user without a listener.
func (s *Socket) Publish(mode fs.FileMode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := unix.Fchmodat(s.private.fd(), "s", uint32(mode.Perm()), 0); err != nil {
		return &fs.PathError{Op: "chmod", Path: s.path, Err: err}
	}
	if err := s.private.lstat("s", &s.inode); err != nil {
		return &fs.PathError{Op: "stat", Path: s.path, Err: err}
	}
	if err := s.move(); err != nil {
		return err
	}
	s.placed = true
	s.dropHidden()
	return nil
}

// move moves the socket to its path. The kernel exchanges the two entries, so that an entry created after the check is
// not lost.
func (s *Socket) move() error {
	var old unix.Stat_t
	switch err := s.dir.lstat(s.name, &old); {
	case errors.Is(err, unix.ENOENT):
		err = unix.Renameat2(s.private.fd(), "s", s.dir.fd(), s.name, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s was made by another process just now", s.path)
		}
		return s.renamed(err)
	case err != nil:
		return &fs.PathError{Op: "stat", Path: s.path, Err: err}
	}
	if err := s.dir.replaceable(s.name); err != nil {
		return err
	}
	if err := unix.Renameat2(s.private.fd(), "s", s.dir.fd(), s.name, unix.RENAME_EXCHANGE); err != nil {
		return s.renamed(err)
	}
	var found unix.Stat_t
	if err := s.private.lstat("s", &found); err != nil || !sameInode(&found, &old) {
		err = unix.Renameat2(s.private.fd(), "s", s.dir.fd(), s.name, unix.RENAME_EXCHANGE)
		return errors.Join(fmt.Errorf("%s was made by another process just now", s.path), err)
	}
	return nil
}

// renamed falls back to a plain rename on file systems without exchange.
func (s *Socket) renamed(err error) error {
	if unsupported(err) {
		err = unix.Renameat(s.private.fd(), "s", s.dir.fd(), s.name)
	}
	if err != nil {
		return &fs.PathError{Op: "rename to", Path: s.path, Err: err}
	}
	return nil
}

func sameInode(a, b *unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }

// dropHidden removes the hidden folder, with the replaced socket. Its descriptor stays open: a listener may remove
// Address when it ends.
func (s *Socket) dropHidden() {
	_ = unix.Unlinkat(s.private.fd(), "s", 0)
	_ = unix.Unlinkat(s.dir.fd(), s.hidden, unix.AT_REMOVEDIR)
}

// Remove removes the socket, but no entry that has replaced it meanwhile. Call it after the listener is closed; it may
// be called again.
func (s *Socket) Remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return nil
	}
	s.removed = true
	var now unix.Stat_t
	var err error
	switch {
	case !s.placed:
		s.dropHidden()
	case s.dir.lstat(s.name, &now) == nil && sameInode(&now, &s.inode):
		if err = unix.Unlinkat(s.dir.fd(), s.name, 0); err != nil {
			err = &fs.PathError{Op: "remove", Path: s.path, Err: err}
		}
	}
	return errors.Join(err, s.private.Close(), s.dir.Close())
}

// replaceable returns the reason why a socket must not replace the entry of that name, nil if it may or there is none.
func (d *Dir) replaceable(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	path := filepath.Join(d.path, name)
	var st unix.Stat_t
	switch err := d.lstat(name, &st); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("%s exists and is no socket but a %s of user %d: remove it or choose another path", path,
			kindOf(&st), st.Uid)
	case !trusted(st.Uid):
		return fmt.Errorf("%s is a socket of user %d: remove it or choose another path", path, st.Uid)
	}
	c, err := net.DialTimeout("unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.fd(), name), time.Second)
	switch {
	case err == nil:
		_ = c.Close()
		return fmt.Errorf("%s: another process listens on it", path)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT): // left over
		return nil
	}
	return fmt.Errorf("%s: another process seems to use it: %w", path, err)
}

// Listen opens a unix socket of this mode at a path. It creates a missing folder. It replaces the socket of a dead
// process; any other entry at the path is an error. Close removes the socket.
func Listen(path string, mode fs.FileMode) (net.Listener, error) {
	s, err := NewSocket(path)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.Address(), Net: "unix"})
	if err != nil {
		return nil, errors.Join(err, s.Remove())
	}
	l.SetUnlinkOnClose(false)
	if err := s.Publish(mode); err != nil {
		return nil, errors.Join(err, l.Close(), s.Remove())
	}
	return &listener{UnixListener: l, socket: s}, nil
}

// listener removes its socket when it is closed.
type listener struct {
	*net.UnixListener
	socket *Socket
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.socket.path, Net: "unix"} }

// Close implements net.Listener.
func (l *listener) Close() error { return errors.Join(l.UnixListener.Close(), l.socket.Remove()) }
