package checksum

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// port is that of the discard protocol (RFC 863), which nothing listens at: a host answers that it is closed. Where
// something does listen, it throws the packet away.
const port = 9

// Probe sends a datagram from an address of this host to another host, and reports whether the answer comes within a
// time that its port is closed (ICMP). A host gives it to packets with a right checksum alone, and the kernel always
// computes that of the answer. With offload the checksum is left to the hardware, as far as the interface of the route
// permits; otherwise the kernel computes it. An error is about this host: it could not send.
func Probe(ctx context.Context, from, to netip.Addr, offload bool, timeout time.Duration) (bool, error) {
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
	if err != nil {
		return false, err
	}
	defer conn.Close() //nolint:errcheck // the answer is there, or does not matter
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// The kernel leaves the checksum of no datagram to the hardware to which more may be added.
	if err := cork(conn, !offload); err != nil {
		return false, err
	}
	data := make([]byte, 64)
	if _, err := rand.Read(data); err != nil {
		return false, err
	}
	if _, err := conn.Write(data); err != nil {
		return false, err
	}
	if err := cork(conn, false); err != nil {
		return false, err
	}
	_, err = conn.Read(data)
	return err == nil || errors.Is(err, unix.ECONNREFUSED), ctx.Err()
}

// cork has the kernel keep what is written to the socket, as a part of one datagram, or send it.
func cork(conn *net.UDPConn, on bool) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	value := 0
	if on {
		value = 1
	}
	failed := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_CORK, value)
	})
	return errors.Join(failed, err)
}
