package ports_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/ports"
)

func TestFree(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Skip(err)
	}
	var lowest, highest uint16
	if _, err := fmt.Sscan(strings.TrimSpace(string(text)), &lowest, &highest); err != nil {
		t.Fatal(err)
	}
	seen := map[uint16]bool{}
	for range 100 {
		p := ports.Free(t, "127.0.0.1")
		if seen[p] || lowest == 32768 && p >= lowest {
			t.Errorf("port %d: was returned before, or is one for outgoing connections (%d to %d)", p, lowest, highest)
		}
		seen[p] = true
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}
