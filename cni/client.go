package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the path of manxd's socket. As a Backend it opens one connection for each request.
type Socket string

// answerTimeout is the time that manxd may take beyond the timeout of the call, which manxd enforces itself.
const answerTimeout = 10 * time.Second

// Ask implements Backend.
func (s Socket) Ask(ctx context.Context, q *Request) (*Response, error) {
	c, err := net.Dial("unix", string(s))
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	case err != nil:
		return nil, err
	}
	defer c.Close() //nolint:errcheck // nothing is written any more
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(callTimeout)
	}
	if err := c.SetDeadline(end.Add(answerTimeout)); err != nil {
		return nil, err
	}
	q.Early = q.Begin != nil
	written := WriteFrame(c, q)
	r, err := readResponse(c, q.Begin)
	if err != nil { // a server that refuses a request answers before it has read it
		err = errors.Join(written, err)
	}
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
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
