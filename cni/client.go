package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the path of manxd's socket. As a Backend it opens one connection for each request.
type Socket string

// answerTimeout is the time that manxd may take beyond the timeout of the call, which manxd enforces itself.
const answerTimeout = 10 * time.Second

// Call implements Backend.
func (s Socket) Call(ctx context.Context, q *Request) (*Response, error) {
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
	r, written := &Response{}, WriteFrame(c, q)
	// A server that refuses a request answers before it has read it.
	if err = ReadFrame(c, r); err != nil {
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
