package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the path of manxd's socket. As a Backend it opens one connection for each request.
type Socket string

// answerTimeout is the time that manxd may take beyond the timeout of the call, which manxd enforces itself.
const answerTimeout = 10 * time.Second

// readTimeout is the time that manxd may take until it has read a request. It reads each at once, however long the
// answer takes.
const readTimeout = 10 * time.Second

// Call implements Backend.
func (s Socket) Call(ctx context.Context, q *Request) (*Response, error) {
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(callTimeout)
	}
	c, err := connect(string(s), end.Add(answerTimeout))
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	case err != nil:
		return nil, err
	}
	defer c.close()
	q.Early = q.Begin != nil
	text, err := q.text()
	if err != nil {
		return nil, err
	}
	written := writeText(c, text)
	if written == nil {
		if err := c.awaitReader(); err != nil {
			return nil, err
		}
	}
	r, err := readResponse(c, q.Begin)
	if err != nil { // a server that refuses a request answers before it has read it
		err = errors.Join(written, err)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, TryAgain("manxd took too long", err)
	case err != nil: // ended, or about to end
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	return r, nil
}

// readResponse reads the response to a request. It passes an early one to begin before the next is read.
func readResponse(c io.Reader, begin func(*Attachment)) (*Response, error) {
	r := &Response{}
	err := ReadFrame(c, r)
	if err == nil && r.Early != nil && begin != nil {
		begin(r.Early)
		r = &Response{}
		err = ReadFrame(c, r)
	}
	return r, err
}

// connection is a connection to a unix socket. It blocks its thread: a plugin has nothing else to do, and the poller of
// package net would cost it more than the calls themselves.
type connection struct {
	fd    int
	until time.Time
}

// connect opens a connection whose calls fail with os.ErrDeadlineExceeded if they begin after the given time. Each
// waits at most as long as there was until then.
func connect(path string, until time.Time) (*connection, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	c := &connection{fd, until}
	// Without SOCK_NONBLOCK a server that accepts no connection any more would be waited for.
	if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		err = unix.SetNonblock(fd, false)
	}
	wait := unix.NsecToTimeval(max(time.Until(until), time.Millisecond).Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err == nil {
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &wait)
		}
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return c, nil
}

// awaitReader waits until the other end has read what was written, or has answered. It returns an error if that takes
// too long: the process does not run, or hangs. Another one must not do its work: it could wake up in the middle.
func (c *connection) awaitReader() error {
	for began := time.Now(); ; {
		ready := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 500)
		unread, outqErr := unix.IoctlGetInt(c.fd, unix.SIOCOUTQ)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n > 0 || outqErr != nil || unread == 0:
			return nil
		case time.Since(began) > readTimeout:
			return TryAgain("manxd does not read requests: it is stopped, as by SIGSTOP, or hangs; restart it",
				fmt.Errorf("not read for %s", readTimeout))
		}
	}
}

func (c *connection) close() { _ = unix.Close(c.fd) }

// Read implements io.Reader.
func (c *connection) Read(b []byte) (int, error) {
	n, err := c.do(func() (int, error) { return unix.Read(c.fd, b) })
	if err == nil && n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}

// Write implements io.Writer.
func (c *connection) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = c.do(func() (int, error) { return unix.SendmsgN(c.fd, b[n:], nil, nil, unix.MSG_NOSIGNAL) })
		n += more
	}
	return n, err
}

func (c *connection) do(call func() (int, error)) (int, error) {
	for time.Now().Before(c.until) {
		n, err := call()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return 0, os.ErrDeadlineExceeded
		}
		return max(n, 0), err
	}
	return 0, os.ErrDeadlineExceeded
}
