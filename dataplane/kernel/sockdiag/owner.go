package sockdiag

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Owner is the owner of a TCP socket.
type Owner struct {
	UID   uint32 // as the user namespace of this process numbers it; 65534 if it has no number there
	Inode uint32 // of the socket, for ProcessOf
}

// Sizes of struct inet_diag_req_v2 and inet_diag_msg (linux/inet_diag.h), which end in the same identity of a socket.
const (
	diagRequestSize = 56
	diagMessageSize = 72
	diagNoCookie    = 0xffffffff

	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY of linux/sock_diag.h
)

var errNoOwner = errors.New("the other end is no established socket of this network namespace, " +
	"or the kernel has no tcp_diag")

// PeerOwner returns the owner of the socket at the other end of a connection within this host, as the kernel reports it
// (sock_diag). The connection must have been accepted in the network namespace n. A result without error is certain:
// the other end exists, and it is the socket that connected, not one that has got its port since.
func PeerOwner(n *netlink.Namespace, conn *net.TCPConn) (Owner, error) {
	local, err1 := netip.ParseAddrPort(conn.LocalAddr().String())
	remote, err2 := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err := errors.Join(err1, err2); err != nil {
		return Owner{}, fmt.Errorf("owner of a connection: %w", err)
	}
	owner, err := lookUp(n, unmapped(remote), unmapped(local))
	if err == nil {
		// A port can be used again only when the connection is over, and then our end is closed: checked last.
		err = established(conn)
	}
	if err != nil {
		return Owner{}, fmt.Errorf("owner of the connection from %s: %w", remote, err)
	}
	return owner, nil
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func established(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	ctlErr := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP,
			unix.TCP_INFO)
	})
	if err := errors.Join(ctlErr, err); err != nil {
		return err
	}
	if info.State != unix.BPF_TCP_ESTABLISHED {
		return errors.New("it is closed already")
	}
	return nil
}

// lookUp queries the one socket with both of its addresses.
func lookUp(n *netlink.Namespace, local, remote netip.AddrPort) (owner Owner, err error) {
	if local.Addr().Is4() != remote.Addr().Is4() {
		return owner, fmt.Errorf("%s and %s are of two families", local, remote)
	}
	s, err := n.Open(unix.NETLINK_INET_DIAG, netlink.RequestQueue)
	if err != nil {
		return owner, err
	}
	defer s.Close()
	var answers [][]byte
	// Not a dump: that compares ports alone.
	err = s.Query(sockDiagByFamily, 0, func(b *netlink.Builder) {
		b.Buf = append(b.Buf, diagRequest(local, remote)...)
	}, func(m netlink.Message) {
		if m.Kind == sockDiagByFamily {
			answers = append(answers, bytes.Clone(m.Data))
		}
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return owner, errNoOwner
	case err != nil:
		return owner, fmt.Errorf("sock_diag: %w", err)
	case len(answers) != 1 || len(answers[0]) < diagMessageSize:
		return owner, fmt.Errorf("sock_diag: %d answers, want one of %d octets", len(answers), diagMessageSize)
	}
	return diagOwner(answers[0], local, remote)
}

// diagRequest is an inet_diag_req_v2 for one socket.
func diagRequest(local, remote netip.AddrPort) []byte {
	b := make([]byte, diagRequestSize)
	b[0], b[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if local.Addr().Is4() {
		b[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(b[4:], 1<<unix.BPF_TCP_ESTABLISHED)
	putDiagID(b[8:], local, remote)
	return b
}

func putDiagID(b []byte, local, remote netip.AddrPort) {
	binary.BigEndian.PutUint16(b, local.Port())
	binary.BigEndian.PutUint16(b[2:], remote.Port())
	copy(b[4:20], local.Addr().AsSlice())
	copy(b[20:36], remote.Addr().AsSlice())
	binary.NativeEndian.PutUint32(b[40:], diagNoCookie)
	binary.NativeEndian.PutUint32(b[44:], diagNoCookie)
}

// diagOwner decodes an inet_diag_msg. For want of the socket itself the kernel answers with one that listens on its
// port, and it gives user 0 to a socket that no file refers to any more: neither is an owner.
func diagOwner(b []byte, local, remote netip.AddrPort) (Owner, error) {
	if b[1] != unix.BPF_TCP_ESTABLISHED || !bytes.Equal(b[4:8], diagPorts(local, remote)) ||
		diagAddr(b[0], b[8:24]) != local.Addr() || diagAddr(b[0], b[24:40]) != remote.Addr() {
		return Owner{}, errNoOwner
	}
	o := Owner{UID: binary.NativeEndian.Uint32(b[64:]), Inode: binary.NativeEndian.Uint32(b[68:])}
	if o.Inode == 0 {
		return Owner{}, errNoOwner
	}
	return o, nil
}

func diagPorts(local, remote netip.AddrPort) []byte {
	b := binary.BigEndian.AppendUint16(nil, local.Port())
	return binary.BigEndian.AppendUint16(b, remote.Port())
}

// diagAddr reads an address; an IPv6 socket may be connected over IPv4.
func diagAddr(family byte, b []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16([16]byte(b[:16])).Unmap()
}

// ProcessOf returns a process that has a socket open, and its name; 0 if none is found, for instance because it ended.
// It reads all processes.
func ProcessOf(inode uint32) (pid int, name string) {
	want := fmt.Sprintf("socket:[%d]", inode)
	processes, _ := os.ReadDir("/proc")
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", p.Name())
		files, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, f := range files {
			if link, _ := os.Readlink(filepath.Join(dir, "fd", f.Name())); link == want {
				comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
				return pid, strings.TrimSpace(string(comm))
			}
		}
	}
	return 0, ""
}
