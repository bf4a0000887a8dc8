package kernel

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// longestBurst bounds how many datagrams are read before what they said is handed on.
const longestBurst = 1000

// follow reads what comes to s until ctx ends; then s is closed. Each message is handed over, lost is called where some
// did not fit into the queue, and end after each burst.
func (s *socket) follow(ctx context.Context, each func(message), lost, end func()) error {
	if err := unix.SetNonblock(s.fd, true); err != nil {
		s.close()
		return err
	}
	f := os.NewFile(uintptr(s.fd), "netlink") // waits in the runtime's poller, so that closing wakes it up
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer func() {
		if stop() {
			_ = f.Close()
		}
	}()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var failure error
		err := raw.Read(func(uintptr) bool {
			var some bool
			some, failure = s.drain(each, lost)
			return some || failure != nil
		})
		if ctx.Err() != nil {
			return nil
		}
		if err := errors.Join(err, failure); err != nil {
			return err
		}
		end()
	}
}

// drain reads what is there and tells whether there was anything.
func (s *socket) drain(each func(message), lost func()) (some bool, err error) {
	for range longestBurst {
		data, err := s.receive(unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return some, nil
		case errors.Is(err, unix.ENOBUFS):
			some = true
			lost()
			continue
		case err != nil:
			return some, err
		}
		some = true
		for m, rest, ok := nextMessage(data); ok; m, rest, ok = nextMessage(rest) {
			each(m)
		}
	}
	return some, nil
}
