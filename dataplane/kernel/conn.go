package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Conn is the kernel of one network namespace. It is safe for concurrent use.
type Conn struct {
	// ProcSysNet is the folder of the variables of the network; empty: DefaultProcSysNet. Set it before the first use.
	ProcSysNet string

	namespace *os.File // nil: that of the process

	mu     sync.Mutex // guards what follows: one request at a time
	sock   *socket
	out    builder
	listed int // routes, the last time
}

var _ Kernel = (*Conn)(nil)

// Requests get all their answers at once: an error for each route of a batch must fit.
const requestQueue = 1 << 20

// New connects to the network namespace of the process.
func New() (*Conn, error) { return open(nil) }

// Open connects to the network namespace at path, such as /run/netns/x or /proc/1/ns/net.
func Open(path string) (*Conn, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	c, err := open(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return c, nil
}

func open(namespace *os.File) (*Conn, error) {
	c := &Conn{namespace: namespace}
	err := c.inside(func() (err error) {
		c.sock, err = openSocket(requestQueue)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Close releases the connection. Nothing that was made in the kernel goes away.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return nil
	}
	c.sock.close()
	c.sock = nil
	if c.namespace != nil {
		return c.namespace.Close()
	}
	return nil
}

// inside runs f on a thread in the connection's namespace. That thread ends with f, so that no other code runs there.
func (c *Conn) inside(f func() error) error {
	if c.namespace == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := enter(c.namespace); err != nil {
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// enter moves this thread into a namespace. It fails if the file is closed, also meanwhile: its number may be another's
// then.
func enter(namespace *os.File) error {
	conn, err := namespace.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { failed = unix.Setns(int(fd), unix.CLONE_NEWNET) })
	return errors.Join(err, failed)
}

// with runs f with the request socket. After an error that leaves answers unread the socket is replaced.
func (c *Conn) with(f func(*socket) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return os.ErrClosed
	}
	err := f(c.sock)
	c.renew(err)
	return err
}

func (c *Conn) renew(err error) {
	if !errors.Is(err, errTransport) {
		return
	}
	var fresh *socket
	if c.inside(func() (err error) { fresh, err = openSocket(requestQueue); return err }) == nil {
		// The watcher recognises our own changes by the old port; a few needless events are the worst that follows.
		c.sock.close()
		c.sock = fresh
	}
}
