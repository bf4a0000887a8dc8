package device

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	kernelnetlink "github.com/manxnet/manx/dataplane/kernel/netlink"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

// The traps of the library that the wrapper and its users depend on: each case failed at some version, or on a socket
// of another kind.

// in returns a Handle and Neighbours in a new network namespace, opened on a thread that was moved there.
func in(t *testing.T) (name string, h Handle, n Neighbours) {
	t.Helper()
	name = nettest.Namespace(t)
	ns, err := kernelnetlink.OpenNamespace(nettest.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	err = ns.Do(func() (err error) {
		if h, err = Open(); err == nil {
			n, err = OpenNeighbours()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(); n.Close() })
	return name, h, n
}

func TestHandleStaysInItsNamespace(t *testing.T) {
	_, h, _ := in(t)
	if _, err := h.LinkByName("e0"); err != nil {
		t.Errorf("e0 in the namespace of the Handle: %v", err)
	}
	own, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := own.LinkByName("e0"); !Missing(err) {
		t.Errorf("e0 in the namespace of the test: %v", err)
	}
	if h.IsOpen() == (Handle{}).IsOpen() {
		t.Error("a Handle that was not opened looks open")
	}
	Handle{}.Close()
	Neighbours{}.Close()
}

func TestMissingInterfaces(t *testing.T) {
	_, h, _ := in(t)
	_, byName := h.LinkByName("none")
	_, byIndex := h.LinkByIndex(4711)
	for what, err := range map[string]error{"by name": byName, "by index": byIndex, "deletion": h.LinkDel(At(4711)),
		"change": h.LinkSetUp(At(4711))} {
		if !Missing(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if Missing(nil) || Missing(unix.EPERM) {
		t.Error("other results are about missing interfaces")
	}
}

func TestAddressOfAnInterface(t *testing.T) {
	name, h, _ := in(t)
	for _, x := range []struct {
		command []string
		has     bool
	}{
		{[]string{"link", "add", "d0", "type", "veth", "peer", "name", "d1"}, false},
		{[]string{"addr", "add", "fe80::1/64", "dev", "d0"}, false},
		{[]string{"addr", "add", "10.9.0.1/32", "dev", "d0"}, true},
	} {
		if out, err := exec.Command("ip", append([]string{"-n", name}, x.command...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v %s", x.command, err, out)
		}
		if has, err := h.HasAddress("d0"); has != x.has || err != nil {
			t.Errorf("after %v: %t, %v", x.command, has, err)
		}
	}
	if has, err := h.HasAddress("none"); has || err != nil {
		t.Errorf("without an interface: %t, %v", has, err)
	}
}

// A lookup of IPv6 fails on a strict socket.
func TestRouteTo(t *testing.T) {
	name, h, _ := in(t)
	for _, r := range []string{"10.3.0.0/16 via 10.1.0.9", "10.4.0.1 dev e0", "blackhole 10.5.0.0/16",
		"unreachable 10.6.0.0/16", "prohibit 10.7.0.0/16", "fd03::/64 via fd01::9", "blackhole fd05::/64"} {
		nettest.Run(t, append([]string{"ip", "-n", name, "route", "add"}, strings.Fields(r)...)...)
	}
	exact := &netlink.RouteGetOptions{FIBMatch: true}
	for _, c := range []struct {
		to      string
		options *netlink.RouteGetOptions
		link    string // empty: no route
		dst     string // of the route in the table
		gateway string
	}{
		{"10.1.0.7", nil, "e0", "10.1.0.7/32", ""},
		{"10.1.0.7", exact, "e0", "10.1.0.0/24", ""},
		{"10.3.0.7", exact, "e0", "10.3.0.0/16", "10.1.0.9"},
		{"10.4.0.1", exact, "e0", "10.4.0.1/32", ""},
		{"10.5.0.1", exact, "", "", ""},
		{"10.5.0.1", nil, "", "", ""},
		{"10.6.0.1", nil, "", "", ""},
		{"10.7.0.1", nil, "", "", ""},
		{"10.9.0.1", nil, "", "", ""},
		{"fd01::7", nil, "e0", "fd01::7/128", ""},
		{"fd03::7", exact, "e0", "fd03::/64", "fd01::9"},
		{"fd05::7", nil, "", "", ""},
		{"fd09::7", exact, "", "", ""},
	} {
		r, err := h.RouteTo(netip.MustParseAddr(c.to), c.options)
		if err != nil || r == nil {
			if err != nil || c.link != "" {
				t.Errorf("%s: %v, %v", c.to, r, err)
			}
			continue
		}
		l, err := h.LinkByIndex(r.LinkIndex)
		if err != nil {
			t.Fatal(err)
		}
		gateway, _ := netip.ParseAddr(c.gateway)
		if l.Attrs().Name != c.link || Prefix(r.Dst).String() != c.dst || Gateway(r) != gateway {
			t.Errorf("%s: by %s to %s via %s, want %+v", c.to, l.Attrs().Name, Prefix(r.Dst), Gateway(r), c)
		}
	}
}

// The library has the default route of IPv4 with an address of 16 bytes in some versions.
func TestPrefixes(t *testing.T) {
	for _, text := range []string{"0.0.0.0/0", "10.0.0.5/24", "10.0.0.5/32", "::/0", "fd00::5/64", "fd00::5/128"} {
		p := netip.MustParsePrefix(text)
		n := IPNet(p)
		long := &net.IPNet{IP: n.IP.To16(), Mask: n.Mask}
		if have := Prefix(n); have != p {
			t.Errorf("%s became %s", p, have)
		}
		if have := Prefix(long); have != p {
			t.Errorf("%s with a long address became %s", p, have)
		}
	}
	if p := Prefix(nil); p.IsValid() {
		t.Errorf("nothing became %s", p)
	}
}

// The library returns a part of a list, with this error.
func TestListsThatChangeAreReadAgain(t *testing.T) {
	for name, c := range map[string]struct {
		interrupted int
		fails       bool
	}{"never": {}, "nine times": {interrupted: listTries - 1}, "always": {interrupted: listTries, fails: true}} {
		calls := 0
		all, err := Whole(func() ([]int, error) {
			if calls++; calls <= c.interrupted {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, nil
		})
		if c.fails != errors.Is(err, netlink.ErrDumpInterrupted) || !c.fails && len(all) != 2 || c.fails && all != nil {
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
	if _, err := Whole(func() ([]int, error) { return nil, unix.EPERM }); !errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
}

// The entry replaces an unanswered one, and has its origin.
func TestNeighboursHaveAnOrigin(t *testing.T) {
	name, h, n := in(t)
	l, err := h.LinkByName("e0")
	if err != nil {
		t.Fatal(err)
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	nettest.Run(t, "ip", "-n", name, "neigh", "add", "10.1.0.7", "dev", "e0", "nud", "incomplete")
	for _, a := range []string{"10.1.0.7", "fd01::7"} {
		if err := n.Set(l.Attrs().Index, netip.MustParseAddr(a), mac, 80); err != nil {
			t.Fatal(err)
		}
		out := nettest.Run(t, "ip", "-n", name, "neigh", "show", a)
		for _, part := range []string{"dev e0", "lladdr 02:00:00:00:00:07", "PERMANENT", "proto 80"} {
			if !strings.Contains(out, part) {
				t.Errorf("%s: %q lacks %q", a, out, part)
			}
		}
	}
	if err := n.Set(4711, netip.MustParseAddr("10.1.0.8"), mac, 80); !Missing(err) {
		t.Errorf("on no interface: %v", err)
	}
}
