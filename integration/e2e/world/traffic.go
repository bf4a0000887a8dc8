package world

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// ListenTCP delivers connections to a port in a namespace, until the test ends.
func ListenTCP(t *testing.T, ns string, port int, handle func(net.Conn)) {
	t.Helper()
	var l net.Listener
	var err error
	Must(t, namespace.Inside(ns, func() { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)) }))
	Must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			handle(c)
		}
	}()
}

// ConnectsTCP reports whether a TCP connection comes about. Silence shows a drop; an expected connection is tried
// again, in case the machine was slow.
func ConnectsTCP(t *testing.T, ns string, to netip.Addr, port int, again bool) bool {
	t.Helper()
	try := func() (err error) {
		Must(t, namespace.Inside(ns, func() {
			var c net.Conn
			if c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, uint16(port)).String(), time.Second); err == nil {
				c.Close()
			}
		}))
		return err
	}
	if again {
		return lab.Eventually(Limit, try) == nil
	}
	return try() == nil
}
