package checksum

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/integration/namespace"
)

// host is one of two hosts with tunnels to each other.
type host struct {
	name   string
	kernel *kernel.Conn
}

var devices = []string{"vxlan.calico", "vxlan-v6.calico"}

// newHost gives a namespace the addresses of its number on eth0, and its tunnels.
func newHost(t *testing.T, name string, number int) host {
	for _, command := range []string{
		"addr add 10.1.0.%d/24 dev eth0", "addr add fd01::%d/64 dev eth0 nodad",
		"link add vxlan.calico type vxlan id 4096 dstport 4789 local 10.1.0.%d remote 10.1.0.%d",
		"addr add 10.9.0.%d/24 dev vxlan.calico",
		"link add vxlan-v6.calico type vxlan id 4096 dstport 4789 local fd01::%d remote fd01::%d udp6zerocsumrx",
		"addr add fd09::%d/64 dev vxlan-v6.calico nodad", "link set vxlan.calico up", "link set vxlan-v6.calico up",
	} {
		var numbers []any
		for i := range len(command) {
			if command[i] == '%' {
				numbers = append(numbers, []int{number, 3 - number}[len(numbers)])
			}
		}
		nettest.Run(t, append([]string{"ip", "-n", name}, strings.Fields(fmt.Sprintf(command, numbers...))...)...)
	}
	k, err := kernel.Open(nettest.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return host{name, k}
}

func (h host) ask(t *testing.T, from, to string, offload bool) (answered bool) {
	t.Helper()
	var failed error
	err := namespace.Inside(h.name, func() {
		answered, failed = Probe(t.Context(), netip.MustParseAddr(from), netip.MustParseAddr(to), offload, time.Second)
	})
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return answered
}

// A datagram whose checksum is left to network cards that do not compute it within tunnels has no answer, and one with
// the kernel's has. It has one, too, once the tunnel device leaves no checksums to them.
func TestBrokenOffload(t *testing.T) {
	a, b := nettest.Bare(t), nettest.Bare(t)
	nettest.BrokenOffload(t, a, b)
	one := newHost(t, a, 1)
	newHost(t, b, 2)
	for i, way := range [][2]string{{"10.9.0.1", "10.9.0.2"}, {"fd09::1", "fd09::2"}} {
		if !one.ask(t, way[0], way[1], false) {
			t.Errorf("%s: no answer to the kernel's checksum", way[1])
		}
		if one.ask(t, way[0], way[1], true) {
			t.Errorf("%s: an answer without a checksum", way[1])
		}
		for _, on := range []bool{false, true} {
			if err := one.kernel.SetTxChecksum(devices[i], on); err != nil {
				t.Fatal(err)
			}
			if have, err := one.kernel.TxChecksum(devices[i]); have != on || err != nil {
				t.Errorf("%s: %t %v, want %t", devices[i], have, err, on)
			}
			if one.ask(t, way[0], way[1], true) == on {
				t.Errorf("%s: answered with the offload of the device %t", way[1], on)
			}
		}
	}
	for _, way := range [][2]string{{"10.1.0.1", "10.1.0.2"}, {"fd01::1", "fd01::2"}} {
		if !one.ask(t, way[0], way[1], true) {
			t.Errorf("%s: no answer outside of a tunnel", way[1])
		}
	}
}

// Errors of this host are no lost packets.
func TestUnableToProbe(t *testing.T) {
	name := nettest.Namespace(t)
	ask := func(ctx context.Context, from, to string) (answered bool, err error) {
		if in := namespace.Inside(name, func() {
			answered, err = Probe(ctx, netip.MustParseAddr(from), netip.MustParseAddr(to), true, 5*time.Second)
		}); in != nil {
			t.Fatal(in)
		}
		return answered, err
	}
	if _, err := ask(t.Context(), "10.1.0.6", "10.1.0.7"); err == nil {
		t.Error("probed from an address of another host")
	}
	if _, err := ask(t.Context(), "10.1.0.5", "10.77.0.1"); err == nil {
		t.Error("probed without a route")
	}
	ended, end := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, end)
	begin := time.Now()
	answered, err := ask(ended, "10.1.0.5", "10.1.0.7")
	if d := time.Since(begin); answered || err == nil || d > 3*time.Second {
		t.Errorf("%t %v after %v", answered, err, d)
	}
}
