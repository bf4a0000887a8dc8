package echo

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// ErrNotPermitted is the error of a process whose group may not open sockets for ICMP echo.
var ErrNotPermitted = errors.New("the group of this process may not open sockets for ICMP echo " +
	"(net.ipv4.ping_group_range)")

// Conn probes one host. It is a datagram socket of ICMP, which needs no capability: the kernel chooses the identifier,
// and passes on nothing but echo replies with it, from any host. The socket is not connected: the kernel would report
// ICMP errors on it, which anybody can forge, in the place of answers. Not safe for concurrent use.
type Conn struct {
	conn *net.UDPConn // Go's type for all datagram sockets of these families
	to   netip.Addr
	v6   bool
	seq  uint16
	buf  []byte
}

// Open opens a Conn from an address of this host to another host of the same IP version. The error may be
// ErrNotPermitted. The packets have a mark, 0 for none.
func Open(from, to netip.Addr, mark uint32) (*Conn, error) {
	c := &Conn{to: to, v6: to.Is6(), buf: make([]byte, 1<<16)}
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if c.v6 {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	switch {
	case errors.Is(err, unix.EACCES):
		return nil, ErrNotPermitted
	case err != nil:
		return nil, fmt.Errorf("open a socket for ICMP echo: %w", err)
	}
	file := os.NewFile(uintptr(fd), "icmp")
	defer file.Close() //nolint:errcheck // FilePacketConn has a descriptor of its own
	if mark != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	}
	if err = errors.Join(err, c.prepare(fd, from)); err != nil {
		return nil, fmt.Errorf("ICMP echo from %s to %s: %w", from, to, err)
	}
	conn, err := net.FilePacketConn(file)
	if err != nil {
		return nil, err
	}
	var ok bool
	if c.conn, ok = conn.(*net.UDPConn); !ok {
		return nil, errors.Join(fmt.Errorf("a socket for ICMP echo is a %T", conn), conn.Close())
	}
	return c, nil
}

// prepare has the kernel send packets with DF, up to the MTU of the interface whatever it has heard of smaller ones.
func (c *Conn) prepare(fd int, from netip.Addr) error {
	if c.v6 {
		return errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1),
			unix.Bind(fd, &unix.SockaddrInet6{Addr: from.As16()}))
	}
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}))
}

// Close closes the socket.
func (c *Conn) Close() error { return c.conn.Close() }

const nonceSize = 16

// Probe sends an echo request as an IP packet of size bytes, and reports whether the answer comes within a time. Only
// an answer from the other host with the random content of the request counts. An error is about this host: it could
// not send or receive.
func (c *Conn) Probe(ctx context.Context, size int, timeout time.Duration) (bool, error) {
	request, err := c.request(size)
	if err != nil {
		return false, err
	}
	if err := c.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = c.conn.WriteToUDPAddrPort(request, netip.AddrPortFrom(c.to, 0))
	switch {
	case errors.Is(err, unix.EMSGSIZE):
		return false, nil // it does not fit the interface
	case err != nil:
		return false, fmt.Errorf("send an ICMP echo request to %s: %w", c.to, withoutConn(err))
	}
	for {
		n, from, err := c.conn.ReadFromUDPAddrPort(c.buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, ctx.Err()
		case err != nil:
			return false, fmt.Errorf("receive ICMP echo replies of %s: %w", c.to, withoutConn(err))
		case from.Addr().Unmap() == c.to && c.answers(c.buf[:n], request):
			return true, nil
		}
	}
}

// withoutConn returns the kernel's error of one of package net, whose text has UDP in it.
func withoutConn(err error) error {
	if no := unix.Errno(0); errors.As(err, &no) {
		return no
	}
	return err
}

// request makes the message of a packet.
func (c *Conn) request(size int) ([]byte, error) {
	headers, kind := ipv4.HeaderLen+8, icmp.Type(ipv4.ICMPTypeEcho)
	if c.v6 {
		headers, kind = ipv6.HeaderLen+8, ipv6.ICMPTypeEchoRequest
	}
	if size < headers+nonceSize || size > len(c.buf)-1 {
		return nil, fmt.Errorf("an echo request has no %d bytes", size)
	}
	data := make([]byte, size-headers)
	if _, err := rand.Read(data[:nonceSize]); err != nil {
		return nil, err
	}
	c.seq++
	m := icmp.Message{Type: kind, Body: &icmp.Echo{Seq: int(c.seq), Data: data}}
	return m.Marshal(nil) // the kernel adds the identifier and the checksum
}

// answers reports whether a message is the answer to a request: the same but for the type, the checksum and the
// identifier.
func (c *Conn) answers(message, request []byte) bool {
	const sequence = 6 // where it begins
	reply := byte(ipv4.ICMPTypeEchoReply)
	if c.v6 {
		reply = byte(ipv6.ICMPTypeEchoReply)
	}
	return len(message) == len(request) && message[0] == reply && bytes.Equal(message[sequence:], request[sequence:])
}
