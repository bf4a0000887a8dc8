package netnslock

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// owner is who has a listening unix socket with an abstract name.
type owner struct {
	name  string // begins with "@"
	inode uint64
	uid   int // -1: not known
	pid   int // 0: not known
}

// sock_diag(7), linux/unix_diag.h
const (
	sockDiagByFamily  = 20
	showName, showUID = 1, 0x40
	attrName, attrUID = 0, 7
)

// diagRequest is a struct unix_diag_req: family, protocol, padding, states, inode, show, cookie.
func diagRequest() []byte {
	b := make([]byte, 24)
	b[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(b[4:], ^uint32(0)) // in every state
	binary.NativeEndian.PutUint32(b[12:], showName|showUID)
	return b
}

// diagAnswerSize is the size of a struct unix_diag_msg: family, type, state, padding, inode, cookie.
const diagAnswerSize = 16

// sockets lists the unix sockets with abstract names in the network namespace of this process.
func sockets() ([]owner, error) {
	list, err := diagSockets()
	if err != nil { // a kernel without sock_diag for unix sockets
		return procSockets("/proc/net/unix")
	}
	return list, nil
}

func diagSockets() ([]owner, error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // only read
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump},
		Data:   diagRequest(),
	})
	if err != nil {
		return nil, err
	}
	var list []owner
	for _, m := range answers {
		o, err := parse(m.Data)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(o.name, "@") {
			list = append(list, o)
		}
	}
	return list, nil
}

func parse(data []byte) (owner, error) {
	o := owner{uid: -1}
	if len(data) < diagAnswerSize {
		return o, fmt.Errorf("sock_diag: an answer has %d bytes, want at least %d", len(data), diagAnswerSize)
	}
	o.inode = uint64(binary.NativeEndian.Uint32(data[4:]))
	d, err := netlink.NewAttributeDecoder(data[diagAnswerSize:])
	if err != nil {
		return o, err
	}
	for d.Next() {
		switch d.Type() {
		case attrName:
			if b := d.Bytes(); len(b) > 0 && b[0] == 0 {
				o.name = "@" + string(b[1:])
			}
		case attrUID:
			o.uid = int(d.Uint32())
		}
	}
	return o, d.Err()
}

// procSockets reads /proc/net/unix, which does not list users.
func procSockets(path string) ([]owner, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	var list []owner
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || !strings.HasPrefix(fields[7], "@") {
			continue
		}
		inode, err := strconv.ParseUint(fields[6], 10, 64)
		if err == nil {
			list = append(list, owner{name: fields[7], inode: inode, uid: -1})
		}
	}
	return list, nil
}

// identify determines the process, by a connection: the kernel reports the listener (SO_PEERCRED, unix(7)).
func (o *owner) identify() {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if unix.Connect(fd, &unix.SockaddrUnix{Name: o.name}) != nil {
		return // perhaps too many others connect
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return
	}
	o.pid = int(peer.Pid)
	if o.uid < 0 {
		o.uid = int(peer.Uid)
	}
}

// rightful reports whether the owner may act upon the network namespace.
func (o *owner) rightful() bool {
	if o.uid == 0 || o.uid == os.Geteuid() {
		return true
	}
	return o.pid > 0 && sameUserNamespace(o.pid) && administers(o.pid, o.uid)
}

// sameUserNamespace is needed since everybody has all capabilities in a user namespace of their own.
func sameUserNamespace(pid int) bool {
	own, err := os.Readlink("/proc/self/ns/user")
	its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	return err == nil && err2 == nil && own == its
}

// administers reports whether a process runs as this user and has CAP_NET_ADMIN.
func administers(pid, uid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	sameUser, capable := false, false
	for line := range strings.Lines(string(status)) {
		field, value, _ := strings.Cut(line, ":")
		switch values := strings.Fields(value); {
		case len(values) == 0:
		case field == "Uid":
			sameUser = len(values) > 1 && values[1] == strconv.Itoa(uid) // the effective one
		case field == "CapEff":
			caps, err := strconv.ParseUint(values[0], 16, 64)
			capable = err == nil && caps&(1<<unix.CAP_NET_ADMIN) != 0
		}
	}
	return sameUser && capable
}
