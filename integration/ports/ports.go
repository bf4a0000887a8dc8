// Package ports finds TCP ports for tests that have to name one before a server listens on it, or again later.
package ports

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// The ports are below the range that Linux uses for outgoing connections (net.ipv4.ip_local_port_range), which other
// tests open all the time. A client of an unused port of this range may even get connected to itself.
const first, count = 12000, 20000

var last atomic.Uint32

// Free returns an unused port of an address, such as 127.0.0.1 or ::1, which it has not returned before. Processes
// begin at ports of their own.
func Free(t testing.TB, address string) uint16 {
	t.Helper()
	start := uint32(os.Getpid()) * 97
	for range count {
		port := uint16(first + (start+last.Add(1))%count)
		l, err := net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(port)))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatalf("%s has no free port", address)
	return 0
}
