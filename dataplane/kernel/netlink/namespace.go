package netlink

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace. A nil Namespace is the one of the process.
type Namespace struct{ file *os.File }

// OpenNamespace returns the namespace at path, such as /run/netns/x or /proc/1/ns/net.
func OpenNamespace(path string) (*Namespace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return &Namespace{f}, nil
}

// Close releases the file of the namespace. The namespace itself stays.
func (n *Namespace) Close() error {
	if n == nil {
		return nil
	}
	return n.file.Close()
}

// Do runs f on a thread in the namespace. That thread ends with f, so that no other code runs there.
func (n *Namespace) Do(f func() error) error {
	if n == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := n.enter(); err != nil {
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// enter moves this thread into the namespace. It fails if the file is closed, also meanwhile: its number may be
// another's then.
func (n *Namespace) enter() error {
	conn, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { failed = unix.Setns(int(fd), unix.CLONE_NEWNET) })
	return errors.Join(err, failed)
}

// Open opens a socket of a protocol, such as unix.NETLINK_ROUTE, in the namespace. queue is the size of the kernel's
// receive queue in bytes.
func (n *Namespace) Open(protocol, queue int) (s *Socket, err error) {
	err = n.Do(func() error {
		s, err = open(protocol, queue)
		return err
	})
	return s, err
}
