package sockdiag

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

const dialVariable = "MANX_TEST_DIAL" // the address to which TestDialer's process connects

// TestDialer is the process at the other end of a connection.
func TestDialer(t *testing.T) {
	address := os.Getenv(dialVariable)
	if address == "" {
		t.Skip("runs as a part of other tests only")
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the other test ends
}

// dialAs connects to address from a process with these attributes, which it returns.
func dialAs(t *testing.T, address string, attr *syscall.SysProcAttr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestDialer$")
	cmd.Env = append(os.Environ(), dialVariable+"="+address)
	cmd.Dir = "/"
	cmd.SysProcAttr = attr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	return cmd
}

func listenOn(t *testing.T, address string) *net.TCPListener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

func accept(t *testing.T, l *net.TCPListener) *net.TCPConn {
	t.Helper()
	conn, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to start processes of other users")
	}
}

func TestPeerOwnerIsTheUserWhoConnected(t *testing.T) {
	needRoot(t)
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	// Root of a user namespace is not root.
	contained := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 12345, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 12345, Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true}}
	for _, x := range []struct {
		name, listen, dial string
		attr               *syscall.SysProcAttr
		want               uint32
	}{
		{"IPv4", "127.0.0.1:0", "127.0.0.1", nil, 0},
		{"IPv4, another user", "127.0.0.1:0", "127.0.0.1", nobody, 65534},
		{"IPv6", "[::1]:0", "::1", nil, 0},
		{"IPv6, another user", "[::1]:0", "::1", nobody, 65534},
		{"all addresses, over IPv4", "[::]:0", "127.0.0.1", nobody, 65534},
		{"root of a user namespace", "127.0.0.1:0", "127.0.0.1", contained, 12345},
	} {
		t.Run(x.name, func(t *testing.T) {
			l := listenOn(t, x.listen)
			cmd := dialAs(t, net.JoinHostPort(x.dial, fmt.Sprint(l.Addr().(*net.TCPAddr).Port)), x.attr)
			owner, err := PeerOwner(nil, accept(t, l))
			if err != nil || owner.UID != x.want || owner.Inode == 0 {
				t.Fatalf("owner %+v, %v; want user %d", owner, err, x.want)
			}
			if pid, name := ProcessOf(owner.Inode); pid != cmd.Process.Pid || name == "" {
				t.Errorf("process %d (%s), want %d", pid, name, cmd.Process.Pid)
			}
		})
	}
}

// An IPv6 socket may be connected over IPv4.
func TestPeerOwnerOfAMappedSocket(t *testing.T) {
	needRoot(t)
	l := listenOn(t, "127.0.0.1:0")
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, 4321, 0); err != nil {
		t.Fatal(err)
	}
	to := &unix.SockaddrInet6{Port: l.Addr().(*net.TCPAddr).Port, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}}
	if err := unix.Connect(fd, to); err != nil {
		t.Fatal(err)
	}
	if owner, err := PeerOwner(nil, accept(t, l)); err != nil || owner.UID != 4321 {
		t.Errorf("owner %+v, %v; want 4321", owner, err)
	}
}

func TestPeerOwnerFailsClosed(t *testing.T) {
	needRoot(t)
	dial := func(t *testing.T, l *net.TCPListener) *net.TCPConn {
		conn, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	refused := func(t *testing.T, conn *net.TCPConn) {
		t.Helper()
		if owner, err := PeerOwner(nil, conn); err == nil {
			t.Errorf("owner %+v, want an error", owner)
		}
	}
	t.Run("the other end has closed", func(t *testing.T) {
		l := listenOn(t, "127.0.0.1:0")
		client := dial(t, l)
		conn := accept(t, l)
		client.Close() // the rest of the socket belongs to user 0
		_, _ = conn.Read(make([]byte, 1))
		refused(t, conn)
	})
	t.Run("the other end only waits for the rest", func(t *testing.T) {
		l := listenOn(t, "127.0.0.1:0")
		client := dial(t, l)
		conn := accept(t, l)
		_ = client.CloseWrite()
		refused(t, conn)
	})
	t.Run("root has got the port since", func(t *testing.T) {
		l := listenOn(t, "127.0.0.1:0")
		client := dial(t, l)
		from := client.LocalAddr().(*net.TCPAddr)
		conn := accept(t, l)
		if _, err := io.WriteString(client, "a request"); err != nil {
			t.Fatal(err)
		}
		_ = client.SetLinger(0) // a reset frees the port at once; sent data can still be read
		client.Close()
		again, err := net.DialTCP("tcp", from, l.Addr().(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		fresh := accept(t, l)
		if fresh.RemoteAddr().String() != conn.RemoteAddr().String() {
			t.Fatalf("connections from %s and %s, want one address", conn.RemoteAddr(), fresh.RemoteAddr())
		}
		refused(t, conn)
		if _, err := PeerOwner(nil, fresh); err != nil {
			t.Errorf("the connection of root: %v", err)
		}
	})
	t.Run("another network namespace", func(t *testing.T) {
		other, err := netlink.OpenNamespace(nettest.Path(nettest.Namespace(t)))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close() //nolint:errcheck // nothing was written
		l := listenOn(t, "127.0.0.1:0")
		dial(t, l)
		if owner, err := PeerOwner(other, accept(t, l)); err == nil {
			t.Errorf("owner %+v, want an error", owner)
		}
	})
}
