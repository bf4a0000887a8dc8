package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	portSingleHop = 3784 // RFC 5881 section 4
	portMultihop  = 4784 // RFC 5883 section 5
	maxTTL        = 255

	firstSourcePort = 49152 // RFC 5881 section 4
	sourcePorts     = 65536 - firstSourcePort
)

// listenerKey identifies a socket that receives packets.
type listenerKey struct{ multihop, ipv4 bool }

func (k listenerKey) port() int {
	if k.multihop {
		return portMultihop
	}
	return portSingleHop
}

func (k listenerKey) network() string {
	if k.ipv4 {
		return "udp4"
	}
	return "udp6"
}

// listener receives the packets of all sessions of one kind.
type listener struct {
	conn *net.UDPConn
}

// listen opens the socket for a kind of session, if it is not open.
func (e *Engine) listen(multihop, v4 bool) error {
	k := listenerKey{multihop, v4}
	if e.listeners[k] != nil {
		return nil
	}
	conn, err := net.ListenUDP(k.network(), &net.UDPAddr{Port: k.port()})
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("UDP port %d is taken: another BFD daemon (BIRD, bfdd of FRR) runs on this host; stop it "+
			"or switch its BFD off", k.port())
	}
	if err != nil {
		return fmt.Errorf("listen on UDP port %d: %w", k.port(), err)
	}
	if err := k.prepare(conn); err != nil {
		_ = conn.Close()
		return fmt.Errorf("UDP port %d: %w", k.port(), err)
	}
	e.listeners[k] = &listener{conn}
	go e.read(k, conn)
	return nil
}

// receiveBuffer has room for bursts of many sessions, and for floods, until they are read.
const receiveBuffer = 4 << 20

// prepare sets the options of a socket that receives.
func (k listenerKey) prepare(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	level, option := unix.IPPROTO_IP, unix.IP_RECVTTL
	if !k.ipv4 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT
	}
	ctlErr := raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // up to net.core.rmem_max
		}
		err = unix.SetsockoptInt(int(fd), level, option, 1)
	})
	return errors.Join(ctlErr, err)
}

// read takes packets in until the socket is closed. It allocates nothing: packets may be forged, and many.
func (e *Engine) read(k listenerKey, conn *net.UDPConn) {
	prioritise(e.log)
	buffer, control := make([]byte, 128), make([]byte, 64)
	for {
		n, controls, _, from, err := conn.ReadMsgUDPAddrPort(buffer, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			e.arrived(buffer[:n], from, ttlOf(control[:controls]), k.multihop)
		}
	}
}

// ttlOf finds the TTL or hop limit of a packet in its control messages; 0 if it is missing.
func ttlOf(control []byte) int {
	for len(control) >= unix.SizeofCmsghdr {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return 0
		}
		ttl4 := header.Level == unix.IPPROTO_IP && header.Type == unix.IP_TTL
		ttl6 := header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_HOPLIMIT
		if (ttl4 || ttl6) && len(data) >= 4 {
			return int(binary.NativeEndian.Uint32(data))
		}
		control = rest
	}
	return 0
}

// closeIdleListeners closes the sockets that no session needs.
func (e *Engine) closeIdleListeners() {
	used := map[listenerKey]bool{}
	for _, s := range e.sessions {
		used[listenerKey{s.Multihop, s.Remote.Is4()}] = true
	}
	for k, l := range e.listeners {
		if !used[k] {
			_ = l.conn.Close()
			delete(e.listeners, k)
		}
	}
}

// socket sends the packets of one session.
type socket struct {
	conn *net.UDPConn
	raw  syscall.RawConn
	to   unix.Sockaddr
}

// openSocket binds to a source port that is the session's own.
func openSocket(s Session) (*socket, error) {
	k := listenerKey{s.Multihop, s.Remote.Is4()}
	local := s.Local
	if !local.IsValid() {
		local = netip.IPv6Unspecified()
		if k.ipv4 {
			local = netip.IPv4Unspecified()
		}
	}
	var conn *net.UDPConn
	var err error
	start := rand.IntN(sourcePorts)
	for i := range sourcePorts {
		at := netip.AddrPortFrom(local, uint16(firstSourcePort+(start+i)%sourcePorts))
		if conn, err = net.ListenUDP(k.network(), net.UDPAddrFromAddrPort(at)); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil, fmt.Errorf("source address %s is not an address of this host", local)
	}
	if err != nil {
		return nil, err
	}
	if k.ipv4 {
		err = ipv4.NewConn(conn).SetTTL(maxTTL)
		_ = ipv4.NewConn(conn).SetTOS(trafficClass)
	} else {
		err = ipv6.NewConn(conn).SetHopLimit(maxTTL)
		_ = ipv6.NewConn(conn).SetTrafficClass(trafficClass)
	}
	sock := &socket{conn: conn}
	if err == nil {
		sock.raw, err = conn.SyscallConn()
	}
	if err == nil {
		sock.to, err = destination(s.Remote, k.port())
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return sock, nil
}

// destination converts an address for system calls.
func destination(addr netip.Addr, port int) (unix.Sockaddr, error) {
	if addr.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: addr.As4()}, nil
	}
	to := &unix.SockaddrInet6{Port: port, Addr: addr.As16()}
	if zone := addr.Zone(); zone != "" {
		dev, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, fmt.Errorf("interface %s of address %s: %w", zone, addr, err)
		}
		to.ZoneId = uint32(dev.Index)
	}
	return to, nil
}

// trafficClass is DSCP CS6, for network control.
const trafficClass = 48 << 2

// send never waits for room in the socket: one neighbour that cannot be resolved must not hold up all sessions.
func (s *socket) send(b []byte) error {
	var sent error
	if err := s.raw.Write(func(fd uintptr) bool {
		sent = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT, s.to)
		return true
	}); err != nil {
		return err
	}
	return sent
}

func (s *socket) close() { _ = s.conn.Close() }
