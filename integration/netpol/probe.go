package main

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/lab"
)

// target is one port of one pod.
type target struct {
	protocol string
	address  netip.AddrPort
}

// probes are one round: a new connection from one pod to each target, all at once.
type probes struct {
	source  netip.Addr
	port    uint16 // source of all; never used before, so that every connection is new
	targets []target
	reached []bool

	polled   []unix.PollFd
	handlers []func() // called when polled[i] is ready
	open     int      // targets that have not answered and still may
	fds      []int
}

// probe opens the connections in the namespace of the calling thread and returns which targets have answered within the
// time.
func probe(source netip.Addr, port uint16, targets []target, wait time.Duration) ([]bool, error) {
	p := &probes{source: source, port: port, targets: targets, reached: make([]bool, len(targets)), open: len(targets)}
	defer p.close()
	start := map[string]func() error{"TCP": p.startTCP, "UDP": p.startUDP, "SCTP": p.startSCTP}
	for _, protocol := range []string{"TCP", "UDP", "SCTP"} {
		if err := start[protocol](); err != nil {
			return nil, err
		}
	}
	return p.reached, p.wait(time.Now().Add(wait))
}

func (p *probes) close() {
	for _, fd := range p.fds {
		_ = unix.Close(fd)
	}
}

func (p *probes) wait(deadline time.Time) error {
	for p.open > 0 {
		left := time.Until(deadline)
		if left <= 0 {
			return nil
		}
		n, err := unix.Poll(p.polled, int(left.Milliseconds())+1)
		if err != nil && err != unix.EINTR {
			return err
		}
		for i := 0; n > 0 && i < len(p.polled); i++ {
			if p.polled[i].Revents != 0 {
				p.polled[i].Revents = 0
				p.handlers[i]()
			}
		}
	}
	return nil
}

// of visits the targets of one protocol.
func (p *probes) of(protocol string, f func(i int, t target) error) error {
	for i, t := range p.targets {
		if t.protocol == protocol {
			if err := f(i, t); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *probes) markReached(i int) {
	if !p.reached[i] {
		p.reached[i] = true
		p.open--
	}
}

// socket opens a non-blocking socket.
func (p *probes) socket(kind, protocol int) (int, error) {
	family := unix.AF_INET
	if p.source.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err == nil {
		p.fds = append(p.fds, fd)
	}
	return fd, err
}

func (p *probes) poll(fd int, events int16, handler func()) {
	p.polled = append(p.polled, unix.PollFd{Fd: int32(fd), Events: events})
	p.handlers = append(p.handlers, handler)
}

func (p *probes) startTCP() error {
	return p.of("TCP", func(i int, t target) error {
		fd, err := p.socket(unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		// One source port for all connections, and no connection that stays: it ends with a reset.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(p.source, p.port))); err != nil {
			return err
		}
		if err := unix.Connect(fd, sockaddr(t.address)); err != nil && err != unix.EINPROGRESS {
			p.open-- // refused or unreachable
			return nil
		}
		at := len(p.polled)
		p.poll(fd, unix.POLLOUT, func() {
			if failure, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && failure == 0 {
				p.markReached(i)
			} else {
				p.open--
			}
			p.polled[at].Fd = -1
		})
		return nil
	})
}

func (p *probes) startUDP() error {
	fd, err := p.socket(unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(p.source, p.port))); err != nil {
		return err
	}
	index := map[netip.AddrPort]int{}
	p.poll(fd, unix.POLLIN, func() {
		p.receive(fd, func(_ []byte, from netip.AddrPort) {
			if i, ok := index[from]; ok {
				p.markReached(i)
			}
		})
	})
	return p.of("UDP", func(i int, t target) error {
		index[t.address] = i
		return send(fd, []byte("probe"), t.address)
	})
}

func (p *probes) startSCTP() error {
	fd, err := p.socket(unix.SOCK_RAW, unix.IPPROTO_SCTP)
	if err != nil {
		return err
	}
	index := map[netip.AddrPort]int{}
	p.poll(fd, unix.POLLIN, func() {
		p.receive(fd, func(b []byte, from netip.AddrPort) {
			if p.source.Is4() && len(b) > 0 {
				b = b[min(len(b), int(b[0]&0xf)*4):] // raw sockets of IPv4 return the header, too
			}
			packet, ok := lab.DecodeSCTP(b)
			// A kernel with SCTP does not know the server and refuses: that is a reply from there, too.
			if !ok || packet.Destination != p.port || packet.Chunk != lab.SCTPInitAck && packet.Chunk != lab.SCTPAbort {
				return
			}
			if i, ok := index[netip.AddrPortFrom(from.Addr(), packet.Source)]; ok {
				p.markReached(i)
			}
		})
	})
	return p.of("SCTP", func(i int, t target) error {
		index[t.address] = i
		b := lab.SCTPPacket{Source: p.port, Destination: t.address.Port(), Chunk: lab.SCTPInit,
			Initiate: uint32(p.port)<<8 | 1}.Encode()
		return send(fd, b, netip.AddrPortFrom(t.address.Addr(), 0))
	})
}

// send ignores network errors: an address that cannot be sent to is not reached.
func send(fd int, b []byte, to netip.AddrPort) error {
	switch err := unix.Sendto(fd, b, 0, sockaddr(to)); err {
	case nil, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ECONNREFUSED, unix.EPERM:
		return nil
	default:
		return err
	}
}

// receive reads all waiting packets.
func (p *probes) receive(fd int, f func(b []byte, from netip.AddrPort)) {
	buf := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		f(buf[:n], addrPort(from))
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func addrPort(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	}
	return netip.AddrPort{}
}
