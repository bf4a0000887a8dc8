package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

var native = binary.NativeEndian

const headerLen = unix.SizeofNlMsghdr

// message is one netlink message as received. Data points into the receive buffer.
type message struct {
	kind  uint16
	flags uint16
	seq   uint32
	data  []byte
}

// nextMessage cuts the first message off a receive buffer.
func nextMessage(b []byte) (m message, rest []byte, ok bool) {
	if len(b) < headerLen {
		return message{}, nil, false
	}
	n := int(native.Uint32(b))
	if n < headerLen || n > len(b) {
		return message{}, nil, false
	}
	m = message{kind: native.Uint16(b[4:]), flags: native.Uint16(b[6:]), seq: native.Uint32(b[8:]),
		data: b[headerLen:n]}
	return m, b[min(align(n), len(b)):], true
}

// nextAttr cuts the first attribute off a list of attributes.
func nextAttr(b []byte) (kind uint16, value, rest []byte, ok bool) {
	if len(b) < unix.SizeofRtAttr {
		return 0, nil, nil, false
	}
	n := int(native.Uint16(b))
	if n < unix.SizeofRtAttr || n > len(b) {
		return 0, nil, nil, false
	}
	kind = native.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	return kind, b[unix.SizeofRtAttr:n], b[min(align(n), len(b)):], true
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// messageError is what an NLMSG_ERROR or NLMSG_DONE message says; nil for an acknowledgement.
func messageError(m message) error {
	if len(m.data) < 4 {
		return nil
	}
	code := int32(native.Uint32(m.data))
	if code == 0 {
		return nil
	}
	errno := unix.Errno(-code)
	if m.kind != unix.NLMSG_ERROR || m.flags&unix.NLM_F_ACK_TLVS == 0 || len(m.data) < 4+headerLen {
		return errno
	}
	skip := 4 + headerLen
	if m.flags&unix.NLM_F_CAPPED == 0 {
		skip = 4 + align(int(native.Uint32(m.data[4:])))
	}
	if skip > len(m.data) {
		return errno
	}
	for kind, value, rest, ok := nextAttr(m.data[skip:]); ok; kind, value, rest, ok = nextAttr(rest) {
		if kind == unix.NLMSGERR_ATTR_MSG && len(value) > 1 {
			return fmt.Errorf("%w (%s)", errno, value[:len(value)-1])
		}
	}
	return errno
}

// builder appends netlink messages to a buffer.
type builder struct {
	buf   []byte
	start int
}

func (b *builder) begin(kind uint16, flags int, seq uint32) {
	b.start = len(b.buf)
	b.buf = native.AppendUint32(b.buf, 0)
	b.buf = native.AppendUint16(b.buf, kind)
	b.buf = native.AppendUint16(b.buf, uint16(flags)|unix.NLM_F_REQUEST)
	b.buf = native.AppendUint32(b.buf, seq)
	b.buf = native.AppendUint32(b.buf, 0)
}

func (b *builder) end() { native.PutUint32(b.buf[b.start:], uint32(len(b.buf)-b.start)) }

func (b *builder) attr(kind uint16, value []byte) {
	b.buf = native.AppendUint16(b.buf, uint16(unix.SizeofRtAttr+len(value)))
	b.buf = native.AppendUint16(b.buf, kind)
	b.buf = append(b.buf, value...)
	for len(b.buf)%unix.NLMSG_ALIGNTO != 0 {
		b.buf = append(b.buf, 0)
	}
}

func (b *builder) attr32(kind uint16, v uint32) {
	b.buf = native.AppendUint16(b.buf, unix.SizeofRtAttr+4)
	b.buf = native.AppendUint16(b.buf, kind)
	b.buf = native.AppendUint32(b.buf, v)
}

func (b *builder) attrAddr(kind uint16, a netip.Addr) {
	if a.Is4() {
		v := a.As4()
		b.attr(kind, v[:])
		return
	}
	v := a.As16()
	b.attr(kind, v[:])
}

// nest begins an attribute that holds others; the result goes to endNest.
func (b *builder) nest(kind uint16) int {
	at := len(b.buf)
	b.buf = native.AppendUint16(b.buf, 0)
	b.buf = native.AppendUint16(b.buf, kind)
	return at
}

func (b *builder) endNest(at int) { native.PutUint16(b.buf[at:], uint16(len(b.buf)-at)) }

// errTransport is in errors of the socket itself, after which answers may be lost; errors without it are the kernel's
// answer to a request.
var errTransport = errors.New("netlink")

// socket is one netlink socket.
type socket struct {
	fd   int
	port uint32
	seq  uint32
	buf  []byte
}

const receiveBuffer = 64 << 10

// openSocket opens an rtnetlink socket.
func openSocket(bufferSize int) (*socket, error) {
	return openNetlink(unix.NETLINK_ROUTE, "rtnetlink", bufferSize)
}

// openNetlink opens a socket in the namespace of the calling thread. bufferSize is that of the kernel's receive queue.
func openNetlink(protocol int, name string, bufferSize int) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open an %s socket: %w", name, err)
	}
	s := &socket{fd: fd, buf: make([]byte, receiveBuffer)}
	if err := s.setup(bufferSize); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("prepare an %s socket: %w", name, err)
	}
	return s, nil
}

func (s *socket) setup(bufferSize int) error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	s.port = name.(*unix.SockaddrNetlink).Pid
	// Beyond the system's limit only with CAP_NET_ADMIN; a smaller queue costs a resync, no more.
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize)
	}
	// Kernels before 4.20 have no strict checking: their dumps are filtered here, after the fact.
	for _, option := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK, unix.NETLINK_GET_STRICT_CHK} {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1)
	}
	return nil
}

func (s *socket) close() { _ = unix.Close(s.fd) }

func (s *socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: send: %w", errTransport, err)
		}
		return nil
	}
}

// receive reads one datagram. The result is valid until the next call.
func (s *socket) receive(flags int) ([]byte, error) {
	for {
		n, from, err := unix.Recvfrom(s.fd, s.buf, flags|unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: receive: %w", errTransport, err)
		}
		if n > len(s.buf) {
			return nil, fmt.Errorf("%w: a datagram of %d bytes does not fit: %w", errTransport, n, unix.ENOBUFS)
		}
		if a, ok := from.(*unix.SockaddrNetlink); ok && a.Pid != 0 {
			continue // not from the kernel
		}
		return s.buf[:n], nil
	}
}

// request sends one message and waits for its acknowledgement.
func (s *socket) request(kind uint16, flags int, body func(*builder)) error {
	return s.ask(kind, flags, body, func(message) {})
}

// ask is a request that is answered with more than an acknowledgement; each is given what comes before that.
func (s *socket) ask(kind uint16, flags int, body func(*builder), each func(message)) error {
	s.seq++
	var b builder
	b.begin(kind, flags|unix.NLM_F_ACK, s.seq)
	body(&b)
	b.end()
	if err := s.send(b.buf); err != nil {
		return err
	}
	for {
		data, err := s.receive(0)
		if err != nil {
			return err
		}
		for m, rest, ok := nextMessage(data); ok; m, rest, ok = nextMessage(rest) {
			switch {
			case m.seq != s.seq:
			case m.kind == unix.NLMSG_ERROR:
				return messageError(m)
			default:
				each(m)
			}
		}
	}
}

const dumpAttempts = 8

// dump sends a dump request and hands over each message of the answer. The kernel marks an answer during which
// something changed; begin is called before each attempt.
func (s *socket) dump(kind uint16, begin func(), body func(*builder), each func(message)) error {
	for range dumpAttempts {
		begin()
		interrupted, err := s.dumpOnce(kind, body, each)
		if err != nil || !interrupted {
			return err
		}
	}
	return fmt.Errorf("the answer changed while it was read, %d times: %w", dumpAttempts, unix.EINTR)
}

func (s *socket) dumpOnce(kind uint16, body func(*builder), each func(message)) (interrupted bool, err error) {
	s.seq++
	var b builder
	b.begin(kind, unix.NLM_F_DUMP, s.seq)
	body(&b)
	b.end()
	if err := s.send(b.buf); err != nil {
		return false, err
	}
	for {
		data, err := s.receive(0)
		if err != nil {
			return false, err
		}
		for m, rest, ok := nextMessage(data); ok; m, rest, ok = nextMessage(rest) {
			if m.seq != s.seq {
				continue
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch m.kind {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return interrupted, messageError(m)
			default:
				each(m)
			}
		}
	}
}
