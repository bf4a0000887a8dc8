package netlink

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrTransport is in errors of the socket itself, after which answers may be lost; errors without it are the kernel's
// answer to a request.
var ErrTransport = errors.New("netlink")

// Socket is one netlink socket. It is not safe for concurrent use.
type Socket struct {
	Port uint32 // names the socket in the messages of the kernel
	Seq  uint32 // of the last message that was sent
	fd   int
	buf  []byte
}

const receiveBuffer = 64 << 10

// RequestQueue is the receive queue of a socket for requests, in bytes. They get all their answers at once: an error
// for each message of a batch must fit.
const RequestQueue = 1 << 20

var protocols = map[int]string{unix.NETLINK_ROUTE: "rtnetlink", unix.NETLINK_NETFILTER: "nfnetlink",
	unix.NETLINK_INET_DIAG: "sock_diag"}

// open opens a socket in the namespace of the calling thread.
func open(protocol, queue int) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open an %s socket: %w", protocols[protocol], err)
	}
	s := &Socket{fd: fd, buf: make([]byte, receiveBuffer)}
	if err := s.setup(queue); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("prepare an %s socket: %w", protocols[protocol], err)
	}
	return s, nil
}

func (s *Socket) setup(queue int) error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	s.Port = name.(*unix.SockaddrNetlink).Pid
	// Beyond the system's limit only with CAP_NET_ADMIN; a smaller queue costs a resync, no more.
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queue) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, queue)
	}
	// Kernels before 4.20 have no strict checking: their dumps are filtered here, after the fact.
	for _, option := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK, unix.NETLINK_GET_STRICT_CHK} {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1)
	}
	return nil
}

// Close closes the socket.
func (s *Socket) Close() { _ = unix.Close(s.fd) }

// Send sends messages in one datagram.
func (s *Socket) Send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: send: %w", ErrTransport, err)
		}
		return nil
	}
}

// Receive reads one datagram. The result is valid until the next call.
func (s *Socket) Receive(flags int) ([]byte, error) {
	for {
		n, from, err := unix.Recvfrom(s.fd, s.buf, flags|unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: receive: %w", ErrTransport, err)
		}
		if n > len(s.buf) {
			return nil, fmt.Errorf("%w: a datagram of %d bytes does not fit: %w", ErrTransport, n, unix.ENOBUFS)
		}
		if a, ok := from.(*unix.SockaddrNetlink); ok && a.Pid != 0 {
			continue // not from the kernel
		}
		return s.buf[:n], nil
	}
}

// Request sends one message and waits for its acknowledgement.
func (s *Socket) Request(kind uint16, flags int, body func(*Builder)) error {
	return s.Query(kind, flags, body, func(Message) {})
}

// Query sends a request that is answered with more than an acknowledgement; each is called with the messages before
// that.
func (s *Socket) Query(kind uint16, flags int, body func(*Builder), each func(Message)) error {
	s.Seq++
	var b Builder
	b.Begin(kind, flags|unix.NLM_F_ACK, s.Seq)
	body(&b)
	b.End()
	if err := s.Send(b.Buf); err != nil {
		return err
	}
	for {
		data, err := s.Receive(0)
		if err != nil {
			return err
		}
		for m, rest, ok := NextMessage(data); ok; m, rest, ok = NextMessage(rest) {
			switch {
			case m.Seq != s.Seq:
			case m.Kind == unix.NLMSG_ERROR:
				return m.Err()
			default:
				each(m)
			}
		}
	}
}

const dumpAttempts = 8

// Dump sends a dump request and calls each for each message of the answer. The kernel marks an answer during which an
// object changed; begin is called before each attempt.
func (s *Socket) Dump(kind uint16, begin func(), body func(*Builder), each func(Message)) error {
	for range dumpAttempts {
		begin()
		interrupted, err := s.DumpOnce(kind, body, each)
		if err != nil || !interrupted {
			return err
		}
	}
	return fmt.Errorf("the answer changed while it was read, %d times: %w", dumpAttempts, unix.EINTR)
}

// DumpOnce is one attempt of Dump. It reports whether something changed while the answer was read.
func (s *Socket) DumpOnce(kind uint16, body func(*Builder), each func(Message)) (interrupted bool, err error) {
	s.Seq++
	var b Builder
	b.Begin(kind, unix.NLM_F_DUMP, s.Seq)
	body(&b)
	b.End()
	if err := s.Send(b.Buf); err != nil {
		return false, err
	}
	for {
		data, err := s.Receive(0)
		if err != nil {
			return false, err
		}
		for m, rest, ok := NextMessage(data); ok; m, rest, ok = NextMessage(rest) {
			if m.Seq != s.Seq {
				continue
			}
			interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Kind {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return interrupted, m.Err()
			default:
				each(m)
			}
		}
	}
}

// EnlargeSendBuffer makes room for datagrams of this many bytes, as far as that is allowed: it requires CAP_NET_ADMIN.
// If the room is too small, Send fails with unix.EMSGSIZE.
func (s *Socket) EnlargeSendBuffer(bytes int) {
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bytes)
}
