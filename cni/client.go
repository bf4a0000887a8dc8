package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: string(s), Net: "unix"})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	case err != nil:
		return nil, err
	}
	defer c.Close() //nolint:errcheck // everything was read
	if err := c.SetDeadline(end.Add(answerTimeout)); err != nil {
		return nil, err
	}
	q.Early = q.Begin != nil
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	written := WriteFrame(c, json.RawMessage(text))
	if written == nil {
		if err := awaitReader(c); err != nil {
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

// awaitReader waits until the other end has read what was written, or has answered. It returns an error if that takes
// too long: the process does not run, or hangs. Another one must not do its work: it could wake up in the middle.
func awaitReader(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = untilRead(int(fd)) })
	return cmp.Or(err, failed)
}

func untilRead(fd int) error {
	for began := time.Now(); ; {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 500)
		unread, outqErr := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
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
