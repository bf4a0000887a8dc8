package safefile

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// dead leaves a socket without a listener.
func dead(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
}

// busy leaves a socket with a full queue, whose owner runs but does not accept: connecting to it fails.
func busy(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	must(t, unix.Listen(fd, 0))
	for range 3 {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { _ = unix.Close(c) })
		if err := unix.Connect(c, &unix.SockaddrUnix{Name: path}); err != nil {
			return
		}
	}
	t.Fatal("the queue does not fill")
}

func TestListenReplacesNothingButASocketOfOursThatNobodyServes(t *testing.T) {
	for _, x := range []struct {
		name string
		make func(path string) error
		want string // "": it is replaced
	}{
		{"nothing", func(string) error { return nil }, ""},
		{"a dead process's socket", func(path string) error { dead(t, path); return nil }, ""},
		{"a file", func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
			"is no socket but a regular file"},
		{"a folder", func(path string) error { return os.Mkdir(path, 0o755) }, "is no socket but a folder"},
		{"an empty pipe", func(path string) error { return unix.Mkfifo(path, 0o600) }, "is no socket but a named pipe"},
		{"a link to a dead process's socket",
			func(path string) error { dead(t, path+"-real"); return os.Symlink(path+"-real", path) },
			"is no socket but a symbolic link"},
		{"a dangling link", func(path string) error { return os.Symlink(path+"-missing", path) },
			"is no socket but a symbolic link"},
		{"a live process's socket", func(path string) error {
			l, err := net.Listen("unix", path)
			t.Cleanup(func() { l.Close() })
			return err
		}, "another process listens on it"},
		{"a busy process's socket", func(path string) error { busy(t, path); return nil },
			"another process seems to use it"},
		{"a live process's socket for datagrams", func(path string) error {
			c, err := net.ListenPacket("unixgram", path)
			t.Cleanup(func() { c.Close() })
			return err
		}, "another process seems to use it"},
		{"another user's dead socket", func(path string) error { dead(t, path); return os.Chown(path, nobody, nobody) },
			"is a socket of user 65534"},
	} {
		t.Run(x.name, func(t *testing.T) {
			needRoot(t)
			path := filepath.Join(open0711(t), "s")
			must(t, x.make(path))
			before, _ := os.Lstat(path)
			l, err := Listen(path, 0o600)
			if x.want == "" {
				must(t, err)
				serves(t, l, path)
				return
			}
			if err == nil {
				l.Close()
			}
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("error is %v, want %q", err, x.want)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it was removed or replaced: %v", err)
			}
			if list, _ := filepath.Glob(filepath.Join(filepath.Dir(path), fresh+"*")); len(list) > 0 {
				t.Errorf("left behind: %v", list)
			}
		})
	}
}

func serves(t *testing.T, l net.Listener, path string) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info, err)
	}
	if got := l.Addr().String(); got != path {
		t.Errorf("its address is %s", got)
	}
	c, err := net.Dial("unix", path)
	must(t, err)
	_ = c.Close()
	if list, _ := filepath.Glob(filepath.Join(filepath.Dir(path), fresh+"*")); len(list) > 0 {
		t.Errorf("left behind: %v", list)
	}
	must(t, l.Close())
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there after Close: %v", err)
	}
}

// The socket of another process that came to the path meanwhile stays.
func TestCloseRemovesOnlyTheOwnSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o600)
	must(t, err)
	must(t, os.Remove(path))
	other, err := net.Listen("unix", path)
	must(t, err)
	defer other.Close()
	must(t, l.Close())
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the other process's socket is gone: %v", err)
	}
	c.Close()
}

// A socket never has a wider mode than configured, and no other user can connect before its publication.
func TestASocketIsNeverOpenToOthers(t *testing.T) {
	needRoot(t)
	defer unix.Umask(unix.Umask(0))
	dir := open0711(t)
	ended := make(chan struct{})
	seen := make(chan string, 1)
	go func() {
		defer close(seen)
		for {
			select {
			case <-ended:
				return
			default:
			}
			list, _ := os.ReadDir(dir)
			for _, e := range list {
				info, err := e.Info()
				if err != nil || info.Mode().Perm()&0o077 == 0 {
					continue
				}
				select {
				case seen <- fmt.Sprintf("%s has mode %v", e.Name(), info.Mode()):
				default:
				}
			}
		}
	}()
	for range 300 {
		l, err := Listen(filepath.Join(dir, "s"), 0o600)
		must(t, err)
		must(t, l.Close())
	}
	close(ended)
	for text := range seen {
		t.Error(text)
	}
}

// The user nobody replaces the folder of the socket, and the hidden folder in it, by links to a folder of root while
// sockets are made there.
func TestSocketsStayInTheirFolder(t *testing.T) {
	dir, precious := scene(t)
	roots := filepath.Dir(precious)
	stop, ok := startPlanting(t, "symlink", dir, "s", precious)
	if !ok {
		t.Skip("nobody may not make a symlink here")
	}
	defer stop()
	for range 300 {
		if l, err := Listen(filepath.Join(dir, "s"), 0o600); err == nil {
			_ = l.Close()
		}
		isPrecious(t, precious)
	}
	list, err := os.ReadDir(roots)
	must(t, err)
	for _, e := range list {
		if info, err := e.Info(); err == nil && info.Mode().Type() == os.ModeSocket {
			t.Errorf("a socket %s of user %d was made in root's folder", e.Name(), info.Sys().(*syscall.Stat_t).Uid)
		}
	}
}
