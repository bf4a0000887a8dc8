package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// host is a network namespace.
type host struct {
	t    *testing.T
	name string
}

func (h *host) ip(args string) string {
	h.t.Helper()
	return nettest.Run(h.t, append([]string{"ip", "-n", h.name}, strings.Fields(args)...)...)
}

// follow returns the kernel's events.
func follow(t *testing.T, c *kernel.Conn) <-chan []kernel.Event {
	t.Helper()
	events := make(chan []kernel.Event, 10000)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Watch(ctx, func(list []kernel.Event) { events <- list }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return events
}

// Two devices of the real kernel are created and kept beside each other, with their own MTU and addresses. A third
// device is unavailable on a kernel without IPIP.
func TestTwoDevicesAreKept(t *testing.T) {
	h := &host{t, nettest.Namespace(t)}
	c, err := kernel.Open(nettest.Path(h.name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	device := func(name string, mtu int, addresses ...string) overlay.Device {
		return overlay.Device{Name: name, Kind: "bridge", MTU: mtu, Addresses: prefixes(addresses...)}
	}
	target := newTestTarget(c)
	list := []overlay.Device{
		device("first.test", 1400, "10.244.1.1/32"), device("second.test", 1350, "10.245.1.1/32", "fd10::1/128"),
		ipip("10.246.1.1")}
	target.configure(list...)
	events := follow(t, c)
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
			select {
			case e := <-events:
				target.Handle(e)
			case <-time.After(5 * time.Millisecond):
			}
			if _, _, _ = target.Flush(); ok() {
				return
			}
		}
		t.Fatalf("waited in vain for %s", what)
	}
	shows := func(dev string, mtu int, addresses ...string) func() bool {
		return func() bool {
			out := h.showDevice(dev)
			for _, a := range addresses {
				if !strings.Contains(out, " "+a+" ") {
					return false
				}
			}
			n := strings.Count(out, " inet ") + strings.Count(out, " inet6 ") - strings.Count(out, " inet6 fe80")
			return n == len(addresses) && strings.Contains(out, fmt.Sprintf("mtu %d ", mtu)) &&
				strings.Contains(out, ",UP")
		}
	}
	first, second := shows("first.test", 1400, "10.244.1.1/32"),
		shows("second.test", 1350, "10.245.1.1/32", "fd10::1/128")
	h.ip("link add first.test type bridge") // left by an earlier run, with an address
	h.ip("addr add 192.0.2.1/24 dev first.test")
	until("the first device", first)
	until("the second device", second)
	h.ip("addr add 192.0.2.2/24 dev second.test")
	h.ip("addr add fd99::2/64 dev second.test nodad")
	h.ip("addr add 10.244.1.1/32 dev second.test") // it belongs to the first one
	h.ip("addr add 192.0.2.3/24 dev e0")
	h.ip("addr del 10.244.1.1/32 dev first.test")
	h.ip("link set second.test mtu 1200")
	h.ip("link set first.test down")
	until("the second device to be repaired", second)
	until("the first device to be repaired", first)
	if out := h.showDevice("e0"); !strings.Contains(out, "192.0.2.3/24") || !strings.Contains(out, "10.1.0.5/24") {
		t.Errorf("addresses of a device that is not ours:\n%s", out)
	}
	h.ip("link del second.test")
	until("the second device to be made again", second)
	if _, err := c.EnsureDevice(kernel.Device{Name: model.DeviceIPIP, Kind: "ipip"}); errors.Is(err,
		kernel.ErrNoIPIP) {
		if missing := target.Missing(); len(missing) != 1 || !errors.Is(missing[model.DeviceIPIP], kernel.ErrNoIPIP) {
			t.Errorf("missing: %v", missing)
		}
		for _, s := range target.Rows() {
			if (s.Phase == reconcile.Applied) == (s.Key == "device tunl0") {
				t.Errorf("%s is %s: %s", s.Key, s.Phase, s.Reason)
			}
		}
	}
	target.configure(list[0])
	until("the second device to lose its addresses", shows("second.test", 1350))
	until("the first device to stay", first)
}

// showDevice returns the output of ip(8) about a device, a line for the device and one for each address; empty if it
// does not exist.
func (h *host) showDevice(dev string) (lines string) {
	h.t.Helper()
	for line := range strings.Lines(h.ip("-o link show") + h.ip("-o addr show")) {
		if f := strings.Fields(line); len(f) > 1 && strings.TrimSuffix(f[1], ":") == dev {
			lines += line
		}
	}
	return lines
}
