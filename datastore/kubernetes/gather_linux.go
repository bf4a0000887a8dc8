package kubernetes

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
)

const (
	// gatherFor bounds the delay of a change while others follow in close succession. A wakeup costs a process several
	// times as much as an event; a change after a quiet time is not delayed.
	gatherFor = 200 * time.Millisecond
	// gatherUpTo is the number of bytes that may wait; a longer stream is read as it arrives. Ten pods a second that
	// come and go are 90 KB in gatherFor.
	gatherUpTo = 256 << 10
)

// gathered returns config with separate connections that read in batches: for watches, whose events come one by one for
// as long as the cluster lives.
func gathered(config *rest.Config) *rest.Config {
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	config = rest.CopyConfig(config)
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			if raw, err := tcp.SyscallConn(); err == nil {
				return &gathering{TCPConn: tcp, raw: raw, longest: gatherFor}, nil
			}
		}
		return conn, nil
	}
	return config
}

// gathering is a connection that reads in batches while data come in small pieces. It has one reader, which sets no
// deadlines.
type gathering struct {
	*net.TCPConn
	raw     syscall.RawConn
	longest time.Duration

	buffer  []byte    // for a batch: TLS reads piece by piece, which would be two system calls for each event
	arrived []byte    // the rest of it
	began   time.Time // the last batch
	drained bool      // the last batch had all available data

	mu    sync.Mutex // guards the following fields
	busy  bool       // data come in close succession
	held  []byte     // short writes since
	since time.Time  // the first of them
}

// Read implements net.Conn.
func (c *gathering) Read(b []byte) (int, error) {
	if len(c.arrived) == 0 {
		if c.buffer == nil {
			c.buffer = make([]byte, gatherUpTo)
		}
		n, err := c.batch(c.buffer)
		if err != nil {
			return 0, err
		}
		c.arrived = c.buffer[:n]
	}
	n := copy(b, c.arrived)
	c.arrived = c.arrived[n:]
	return n, nil
}

// batch reads from the connection. Sooner than longest after the last batch it waits until that time is over, or much
// has arrived. Meanwhile the kernel does not wake this process: SO_RCVLOWAT of socket(7).
func (c *gathering) batch(b []byte) (int, error) {
	if until := c.began.Add(c.longest); c.drained && time.Now().Before(until) {
		c.wait(until)
	} else {
		c.release()
	}
	n, err := c.TCPConn.Read(b)
	if c.began, c.drained = time.Now(), n < len(b); !c.drained || err != nil {
		c.release()
	}
	return n, err
}

// wait waits until much can be read, the connection has ended, or the given time.
func (c *gathering) wait(until time.Time) {
	if c.SetReadDeadline(until) != nil {
		return // it was closed, which the next Read reports
	}
	c.hold()
	waiting := false
	_ = c.raw.Read(func(fd uintptr) bool { // an error is the end of the time
		if waiting {
			return readable(fd) // not yet, if data had arrived before SO_RCVLOWAT was set
		}
		waiting = true
		return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, gatherUpTo) != nil
	})
	more := false
	_ = c.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
		more = readable(fd)
	})
	_ = c.SetReadDeadline(time.Time{})
	if !more || c.overdue() {
		c.release()
	}
}

// readable reports whether a socket has as much data as SO_RCVLOWAT demands, or has come to its end.
func readable(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n != 0 || err != nil
}

const (
	// shortWrite is the size of a write that may wait: a few control frames of HTTP/2 in a record of TLS. A client of
	// HTTP/2 acknowledges each 4 KB that it has read, although the server may send megabytes more.
	shortWrite = 64
	// holdFor bounds the time that it waits. Peers expect acknowledgements within several seconds.
	holdFor = time.Second
)

// Write implements net.Conn. While data come in close succession, short writes wait and leave together: with a longer
// write, after holdFor, or when no more data, or much data, have come.
func (c *gathering) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy && len(b) <= shortWrite && len(c.held) < gatherUpTo {
		if len(c.held) == 0 {
			c.since = time.Now()
		}
		c.held = append(c.held, b...)
		return len(b), nil
	}
	if len(c.held) > 0 {
		_, err := c.TCPConn.Write(c.held)
		if c.held = c.held[:0]; err != nil {
			return 0, err
		}
	}
	return c.TCPConn.Write(b)
}

// hold begins a time in which short writes wait.
func (c *gathering) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = true
}

// overdue reports whether a write has waited long enough.
func (c *gathering) overdue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held) > 0 && time.Since(c.since) >= holdFor
}

// release ends the time in which short writes wait, and sends them.
func (c *gathering) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy = false; len(c.held) > 0 {
		_, _ = c.TCPConn.Write(c.held) // the next Read reports the end of the connection
		c.held = c.held[:0]
	}
}
