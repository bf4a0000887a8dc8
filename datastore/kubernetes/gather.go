package kubernetes

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
)

const (
	// gatherFor bounds how long a change waits for others while they come in close succession. To wake up costs a
	// process several times what an event does; a change after a quiet time waits for nothing.
	gatherFor = 100 * time.Millisecond
	// gatherUpTo is how many bytes wait at most: what comes in a stream is read as it comes.
	gatherUpTo = 64 << 10
)

// dialer makes a connection. It is what rest.Config.Dial holds.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// gathered is config with connections of its own, from which data are read in batches: for watches, whose events come
// one by one for as long as the cluster lives.
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

// gathering is a connection whose data are read in batches while they come in small pieces. It has one reader, which
// sets no deadlines.
type gathering struct {
	*net.TCPConn
	raw     syscall.RawConn
	longest time.Duration

	began   time.Time // the last batch
	drained bool      // whether the last Read took all that was there
}

// Read implements net.Conn. What comes sooner than longest after the last batch waits until that time is over, or much
// has come. Meanwhile the kernel does not even wake this process up: SO_RCVLOWAT of socket(7).
func (c *gathering) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if err != nil || !c.drained {
		c.drained = n < len(b)
		return n, err
	}
	if until := c.began.Add(c.longest); n < len(b) && time.Now().Before(until) {
		c.wait(until)
		n += c.rest(b[n:])
	}
	c.began, c.drained = time.Now(), n < len(b)
	return n, nil
}

// wait waits until much can be read, the connection has ended, or a time.
func (c *gathering) wait(until time.Time) {
	if c.SetReadDeadline(until) != nil {
		return // it was closed, which the next Read says
	}
	asked := false
	_ = c.raw.Read(func(fd uintptr) bool { // an error is that the time is over
		if asked {
			return true
		}
		asked = true
		return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, gatherUpTo) != nil
	})
	_ = c.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
	})
	_ = c.SetReadDeadline(time.Time{})
}

// rest reads what is there, if anything is. An end of the connection is left to the next Read.
func (c *gathering) rest(b []byte) (n int) {
	_ = c.raw.Read(func(fd uintptr) bool {
		n, _ = unix.Read(int(fd), b)
		return true
	})
	return max(n, 0)
}
