package wire

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// md5Key is the argument of TCP_MD5SIG for packets of a peer; an empty password removes the key.
func md5Key(peer netip.Addr, password string) (*unix.TCPMD5Sig, error) {
	k := &unix.TCPMD5Sig{Keylen: uint16(len(password))}
	if copy(k.Key[:], password) < len(password) {
		return nil, fmt.Errorf("the MD5 password has %d bytes; at most %d are possible", len(password), len(k.Key))
	}
	peer = peer.Unmap()
	if peer.Is4() {
		k.Addr.Family = unix.AF_INET
		copy(k.Addr.Data[2:], peer.AsSlice()) // behind the port
	} else {
		k.Addr.Family = unix.AF_INET6
		copy(k.Addr.Data[6:], peer.AsSlice()) // behind port and flow label
	}
	return k, nil
}

// control runs f on a socket.
func control(c syscall.RawConn, f func(fd int) error) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}

func setMD5(c syscall.RawConn, peer netip.Addr, password string) error {
	key, err := md5Key(peer, password)
	if err != nil {
		return err
	}
	return control(c, func(fd int) error {
		return os.NewSyscallError("setsockopt TCP_MD5SIG",
			unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, key))
	})
}

// setTTL sets the TTL of sent packets, and the least one of received packets (RFC 5082); 0: the kernel's.
func setTTL(c syscall.RawConn, v6 bool, ttl, least uint8) error {
	level, sent, received := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL
	if v6 {
		level, sent, received = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT
	}
	return control(c, func(fd int) error {
		for option, value := range map[int]uint8{sent: ttl, received: least} {
			if value == 0 {
				continue
			}
			if err := unix.SetsockoptInt(fd, level, option, int(value)); err != nil {
				return os.NewSyscallError("setsockopt TTL", err)
			}
		}
		return nil
	})
}

// protect sets the options of a connection of the session, before or after it is made.
func (p Peer) protect(c syscall.RawConn) error {
	if p.Password != "" {
		if err := setMD5(c, p.Address, p.Password); err != nil {
			return err
		}
	}
	return setTTL(c, p.Address.Unmap().Is6(), p.TTL, p.MinTTL)
}

// portLater has the kernel choose the port of a connection when it knows the peer. A port that is chosen before must be
// free for all peers, and connections of others from the same address could use them up. A kernel without the option
// chooses before.
func portLater(c syscall.RawConn) {
	_ = control(c, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
}

// network is the name for package net of TCP over the family of an address.
func network(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "tcp4"
	}
	return "tcp6"
}

func tcpAddr(a netip.Addr, port uint16) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.Unmap(), port))
}

// acknowledged returns how many bytes the other end has acknowledged.
func acknowledged(tcp *net.TCPConn) (n uint64, err error) {
	c, err := tcp.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = control(c, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			n = info.Bytes_acked
		}
		return os.NewSyscallError("getsockopt TCP_INFO", err)
	})
	return n, err
}
