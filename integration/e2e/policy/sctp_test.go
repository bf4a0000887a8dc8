package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/namespace"
)

// TestVMSCTP opens associations between pods with the SCTP of the kernel (RFC 9260), which few kernels have: with no
// policy, with one that denies, and with one that allows a port.
func TestVMSCTP(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it needs a kernel with SCTP; `make test-vm` runs it on one that has")
	}
	if _, err := os.Stat("/proc/modules"); err != nil {
		t.Skip("this kernel has no modules")
	}
	if out, err := exec.Command("modprobe", "sctp").CombinedOutput(); err != nil {
		t.Fatalf("modprobe sctp: %v: %s", err, out)
	}
	c := newPolicyLab(t, "v", map[string]string{"server": "n2", "far": "n1"})
	server, far := c.Pods["server"], c.Pods["far"]
	for _, port := range []int{7001, 7002} {
		must(t, namespace.Inside(server.Namespace, func() { serveAssociations(t, server.IP4(), port) }))
	}
	c.enforced(t, c.change(t, c.labelled(t, "server", map[string]string{"role": "server"})))
	expect := func(step string, want map[int]bool) {
		t.Helper()
		for port, open := range want {
			patience := 3 * time.Second // for an INIT that is sent again after a second
			if open {
				patience = time.Minute
			}
			err := openAssociation(far.Namespace, server.IP4(), port, patience)
			if open && err != nil || !open && !errors.Is(err, unix.ETIMEDOUT) {
				t.Errorf("%s: association to port %d: %v, want one: %v", step, port, err, open)
			}
		}
	}
	expect("without policy", map[int]bool{7001: true, 7002: true})
	deny := documents(t, world.GlobalPolicy("sctp", "selector: role == 'server', types: [Ingress], ingress: []"))
	c.enforced(t, c.change(t, deny...))
	expect("all is denied", map[int]bool{7001: false, 7002: false})
	allow := documents(t, world.GlobalPolicy("sctp", "selector: role == 'server', types: [Ingress], "+
		"ingress: [{action: Allow, protocol: SCTP, destination: {ports: [7001]}}]"))
	c.enforced(t, c.change(t, allow...))
	expect("port 7001 is allowed", map[int]bool{7001: true, 7002: false})
	other := documents(t, world.GlobalPolicy("sctp", "selector: role == 'server', types: [Ingress], "+
		"ingress: [{action: Allow, protocol: TCP, destination: {ports: [7001, 7002]}}]"))
	c.enforced(t, c.change(t, other...))
	expect("TCP alone is allowed", map[int]bool{7001: false, 7002: false})
	c.enforced(t, c.change(t, asDeleted(other)...))
	expect("the policy is gone", map[int]bool{7001: true, 7002: true})
}

// serveAssociations accepts associations, in the namespace of the calling thread, and sends one message to each.
func serveAssociations(t *testing.T, ip netip.Addr, port int) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: ip.As4()}), unix.Listen(fd, 16))
	}
	if err != nil {
		t.Errorf("SCTP server: %v", err)
		return
	}
	t.Cleanup(func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
	go func() {
		defer unix.Close(fd)
		for {
			conn, _, err := unix.Accept(fd)
			if err != nil {
				return
			}
			_, _ = unix.Write(conn, []byte("hello"))
			_ = unix.Close(conn)
		}
	}()
}

// openAssociation opens an association from that namespace and reads the server's message. It fails with ETIMEDOUT
// without a reply in time.
func openAssociation(ns string, to netip.Addr, port int, patience time.Duration) (err error) {
	inside := namespace.Inside(ns, func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP); err != nil {
			return
		}
		defer unix.Close(fd)
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: to.As4()})
		if !errors.Is(err, unix.EINPROGRESS) {
			return
		}
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		var n int
		for err = unix.EINTR; errors.Is(err, unix.EINTR); { // the runtime sends signals to its threads
			n, err = unix.Poll(ready, int(patience.Milliseconds()))
		}
		if err != nil || n == 0 {
			err = errors.Join(err, unix.ETIMEDOUT)
			return
		}
		buf := make([]byte, 16)
		if n, err = unix.Read(fd, buf); err == nil && string(buf[:max(n, 0)]) != "hello" {
			err = fmt.Errorf("the server sent %q", buf[:max(n, 0)])
		}
	})
	return errors.Join(inside, err)
}
