package netnslock

import (
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// socketName is that of the abstract unix socket (unix(7)) whose owner may act upon the network namespace. Such names
// belong to a network namespace, whatever folders and processes are visible, and the kernel releases them with the
// process. But every user may bind one: a socket counts only if its owner, as reported by the kernel, is root, this
// process's user or a process with CAP_NET_ADMIN. If another user holds the name, an unguessable one is used,
// socketName with a suffix; later processes search for all of them.
const socketName = "@manxd.network-namespace"

// HeldError is the error if another process has the lock.
type HeldError struct {
	PID int // 0 if it is in a process namespace that cannot be seen from here
}

// Error implements error.
func (e *HeldError) Error() string {
	const rest = " already runs in this network namespace"
	if e.PID == 0 {
		return "manxd" + rest + ", in a container whose processes cannot be seen from here"
	}
	return fmt.Sprintf("manxd with pid %d%s", e.PID, rest)
}

// Lock is held until Release, or until the process ends.
type Lock struct {
	listener *net.UnixListener
	answered chan struct{} // closed when no connection is accepted any more
	// Squatter is the user that holds the usual name without the right to, -1 for none.
	Squatter int
}

const (
	attempts = 20
	// answerEvery bounds how many connections are accepted a second: every user may connect.
	answerEvery = 10 * time.Millisecond
)

// Acquire takes the lock of the network namespace of this process. The error is a *HeldError if another process has it.
func Acquire() (*Lock, error) { return acquire(socketName) }

// Check returns a *HeldError if another process has the lock of the network namespace of this one. It does not take it.
func Check() error { return held(socketName, 0) }

func acquire(name string) (*Lock, error) {
	for range attempts {
		if err := held(name, 0); err != nil {
			return nil, err
		}
		l, err := take(name)
		if err != nil {
			return nil, err
		}
		if err = held(name, l.inode()); err == nil {
			go l.answer()
			return l, nil
		}
		// Another process has come at the same moment, and has perhaps seen this one. Who comes back first gets it.
		_ = l.listener.Close()
		var other *HeldError
		if !errors.As(err, &other) {
			return nil, err
		}
		time.Sleep(time.Duration(mathrand.IntN(100)) * time.Millisecond)
	}
	return nil, errors.New("other processes take the lock of this network namespace all the time")
}

// take binds the name, or another one where it is taken.
func take(name string) (*Lock, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	squatter := -1
	if errors.Is(err, unix.EADDRINUSE) {
		if o, err := owners(name); err == nil && len(o) > 0 {
			squatter = o[0].uid
		}
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: name + "." + rand.Text(), Net: "unix"})
	}
	if err != nil {
		return nil, fmt.Errorf("lock of this network namespace: %w", err)
	}
	return &Lock{listener: l, answered: make(chan struct{}), Squatter: squatter}, nil
}

// answer lets others find out by their connection whose the socket is.
func (l *Lock) answer() {
	defer close(l.answered)
	for {
		c, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_ = c.Close()
		}
		time.Sleep(answerEvery)
	}
}

// inode identifies the socket.
func (l *Lock) inode() uint64 {
	var st unix.Stat_t
	if raw, err := l.listener.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Fstat(int(fd), &st) })
	}
	return st.Ino
}

// Release releases the lock. An accepted connection has the name of the socket, too: Release waits for its end.
func (l *Lock) Release() error {
	err := l.listener.Close()
	<-l.answered
	return err
}

// held returns a HeldError if a process that may have the lock has it, other than by the socket own.
func held(name string, own uint64) error {
	list, err := owners(name)
	if err != nil {
		return fmt.Errorf("lock of this network namespace: %w", err)
	}
	for _, o := range list {
		if o.inode != own && o.rightful() {
			return &HeldError{PID: o.pid}
		}
	}
	return nil
}

// owners are the processes that have the name, or it with a suffix.
func owners(name string) ([]owner, error) {
	list, err := sockets()
	if err != nil {
		return nil, err
	}
	var found []owner
	for _, o := range list {
		if o.name == name || strings.HasPrefix(o.name, name+".") {
			o.identify()
			found = append(found, o)
		}
	}
	return found, nil
}
