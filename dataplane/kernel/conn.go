package kernel

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/device"
	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Conn is the kernel of one network namespace. It is safe for concurrent use.
type Conn struct {
	namespace *netlink.Namespace
	device    device.Handle // for requests that come once for a device or an address
	sysctls   procSysNet

	mu     sync.Mutex // guards the fields below: one request at a time
	sock   *netlink.Socket
	out    netlink.Builder
	listed int // routes, the last time
}

var _ Kernel = (*Conn)(nil)

// New connects to the network namespace of the process. sysctls is the folder of the variables of the network; empty:
// DefaultProcSysNet.
func New(sysctls string) (*Conn, error) { return connect(nil, procSysNet(sysctls)) }

// Open connects to the network namespace at path, such as /run/netns/x or /proc/1/ns/net.
func Open(path string) (*Conn, error) {
	namespace, err := netlink.OpenNamespace(path)
	if err != nil {
		return nil, err
	}
	c, err := connect(namespace, "")
	if err != nil {
		_ = namespace.Close()
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return c, nil
}

func connect(namespace *netlink.Namespace, sysctls procSysNet) (*Conn, error) {
	c := &Conn{namespace: namespace, sysctls: sysctls}
	err := namespace.Do(func() (err error) { c.device, err = device.Open(); return err })
	if err != nil {
		return nil, err
	}
	if c.sock, err = namespace.Open(unix.NETLINK_ROUTE, netlink.RequestQueue); err != nil {
		c.device.Close()
		return nil, err
	}
	return c, nil
}

// Namespace is the one that c is connected to, which is closed with c.
func (c *Conn) Namespace() *netlink.Namespace { return c.namespace }

// Device makes requests about single devices in the namespace of c. Call it, and use the result, only within With: the
// library would serve a request after Close in the namespace of the calling thread.
func (c *Conn) Device() device.Handle { return c.device }

// onDevice runs f with exclusive use of c.
func (c *Conn) onDevice(f func(device.Handle) error) error {
	return c.With(func(*netlink.Socket) error { return f(c.device) })
}

// Close releases the connection. Nothing that was made in the kernel goes away.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return nil
	}
	c.sock.Close()
	c.sock = nil
	c.device.Close()
	return c.namespace.Close()
}

// With runs f with exclusive use of the socket for requests of rtnetlink. After an error that leaves answers unread the
// socket is replaced. f must not call other methods of c.
func (c *Conn) With(f func(*netlink.Socket) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return os.ErrClosed
	}
	err := f(c.sock)
	c.renew(err)
	return err
}

func (c *Conn) renew(err error) {
	if !errors.Is(err, netlink.ErrTransport) {
		return
	}
	if fresh, err := c.namespace.Open(unix.NETLINK_ROUTE, netlink.RequestQueue); err == nil {
		// The watcher recognises our own changes by the old port; a few needless events are the worst that follows.
		c.sock.Close()
		c.sock = fresh
	}
}
