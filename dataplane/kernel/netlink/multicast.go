package netlink

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// longestBurst bounds how many datagrams are read before their messages are handed on.
const longestBurst = 1000

// Follow reads messages from s until ctx ends; then s is closed. It calls each for each message, lost when some did not
// fit into the queue, and end after each burst.
//
// It waits in a thread of its own. The runtime's poller would wake up for each datagram, also while end pauses.
func (s *Socket) Follow(ctx context.Context, each func(Message), lost, end func()) error {
	defer s.Close()
	var stop [2]int // a pipe, whose writing end is closed when ctx ends
	if err := unix.Pipe2(stop[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer unix.Close(stop[0])
	cancel := context.AfterFunc(ctx, func() { _ = unix.Close(stop[1]) })
	defer func() {
		if cancel() {
			_ = unix.Close(stop[1])
		}
	}()
	ready := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(stop[0])}}
	for {
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for messages: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		some, err := s.drain(each, lost)
		if err != nil {
			return err
		}
		if some {
			end()
		}
	}
}

// drain reads all waiting messages and reports whether there were any.
func (s *Socket) drain(each func(Message), lost func()) (some bool, err error) {
	for range longestBurst {
		data, err := s.Receive(unix.MSG_DONTWAIT)
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
		for m, rest, ok := NextMessage(data); ok; m, rest, ok = NextMessage(rest) {
			each(m)
		}
	}
	return some, nil
}

// Join subscribes to a multicast group, such as unix.RTNLGRP_LINK.
func (s *Socket) Join(group int) error {
	return unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
}

// Ignore lets the kernel drop the events that the requests of another socket, by its port, caused; of these kinds of
// messages alone, if any are named. So a burst of changes does not wake a watcher for each of them. All messages of a
// datagram have the same port.
func (s *Socket) Ignore(port uint32, kinds ...uint16) error {
	return s.attach(ignore(port, kinds))
}

// OnlyNeighboursOf lets the kernel drop the messages about neighbours and FDB entries of other interfaces, so that a
// flood of those does not wake a watcher.
func (s *Socket) OnlyNeighboursOf(link int) error {
	return s.attach([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: neighbourLinkAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: bigEndian32(uint32(link)), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0}})
}

func (s *Socket) attach(program []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))})
}

// Offsets in struct nlmsghdr, and in the struct ndmsg behind it.
const (
	kindAt          = 4
	portAt          = 12
	neighbourLinkAt = headerLen + 4
)

func ignore(port uint32, kinds []uint16) []unix.SockFilter {
	var program []unix.SockFilter
	if len(kinds) > 0 {
		program = append(program, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: kindAt})
		for i, kind := range kinds {
			left := uint8(len(kinds) - 1 - i)
			jump := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(bigEndian16(kind)),
				Jt: left}
			if left == 0 {
				jump.Jf = 2 // keep
			}
			program = append(program, jump)
		}
	}
	return append(program,
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: portAt},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: bigEndian32(port), Jt: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0})
}

// Socket filters load big-endian; netlink headers are native.
func bigEndian16(v uint16) uint16 {
	if native.Uint16([]byte{0, 1}) == 1 {
		return v
	}
	return bits.ReverseBytes16(v)
}

func bigEndian32(v uint32) uint32 {
	if native.Uint16([]byte{0, 1}) == 1 {
		return v
	}
	return bits.ReverseBytes32(v)
}
