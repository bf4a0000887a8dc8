package echo

import (
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/manxnet/manx/integration/namespace"
)

func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// within runs f in a network namespace.
func within(t *testing.T, name string, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		ns, err := netns.GetFromName(name)
		if err == nil {
			err = netns.Set(ns)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// path makes host a, a router and host b, with an MTU of 1400 between the router and b. Nobody is told about it.
func path(t *testing.T) (a, b string) {
	a, b = namespace.New(t, "mxecho"), namespace.New(t, "mxecho")
	router := namespace.New(t, "mxecho")
	run := func(args ...string) {
		if out, err := exec.Command("ip", append([]string{"netns", "exec"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	for _, ns := range []string{a, b, router} {
		run(ns, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
	}
	for i, host := range []string{a, b} {
		side := string(rune('1' + i))
		ip(t, "-n "+host+" link add eth0 type veth peer name down"+side+" netns "+router)
		ip(t, "-n "+host+" link set eth0 up")
		ip(t, "-n "+host+" link set lo up")
		ip(t, "-n "+router+" link set down"+side+" up")
		for _, network := range [][2]string{{"10.9." + side + ".", "/24"}, {"fd09:" + side + "::", "/64"}} {
			ip(t, "-n "+host+" addr add "+network[0]+"2"+network[1]+" dev eth0")
			ip(t, "-n "+router+" addr add "+network[0]+"1"+network[1]+" dev down"+side)
			ip(t, "-n "+host+" route add default via "+network[0]+"1")
		}
	}
	run(router, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	run(a, "sysctl", "-qw", "net.ipv4.ping_group_range=0 0")
	ip(t, "-n "+router+" link set down2 mtu 1400")
	ip(t, "-n "+b+" link set eth0 mtu 1400")
	return a, b
}

// Packets that fit the path are answered, and larger ones are not, whatever the kernel has heard before.
func TestPathOfTwoLinks(t *testing.T) {
	a, _ := path(t)
	within(t, a, func() {
		for from, to := range map[string]string{"10.9.1.2": "10.9.2.2", "fd09:1::2": "fd09:2::2"} {
			c, err := Open(netip.MustParseAddr(from), netip.MustParseAddr(to), 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for _, size := range []int{1280, 1401, 1400, 1500, 1400, 1280} {
				ok, err := c.Ask(t.Context(), size, time.Second)
				if ok != (size <= 1400) || err != nil {
					t.Errorf("%s, %d bytes: %t %v", to, size, ok, err)
				}
			}
			if ok, err := c.Ask(t.Context(), 2000, time.Second); ok || err != nil {
				t.Errorf("%s: larger than the interface: %t %v", to, ok, err)
			}
		}
		if _, err := Open(netip.MustParseAddr("10.9.1.3"), netip.MustParseAddr("10.9.2.2"), 0); err == nil {
			t.Error("asks from an address of another host")
		}
	})
}

// Answers that another host forges count for nothing: neither the content nor the source is right.
func TestForgedAnswers(t *testing.T) {
	a, b := path(t)
	ip(t, "-n "+b+" addr add 10.9.2.3/24 dev eth0")
	if out, err := exec.Command("ip", "netns", "exec", b, "sysctl", "-qw",
		"net.ipv4.icmp_echo_ignore_all=1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	var forged int
	go func() {
		defer close(ended)
		within(t, b, func() { forged = forge(t, stop) })
	}()
	within(t, a, func() {
		c, err := Open(netip.MustParseAddr("10.9.1.2"), netip.MustParseAddr("10.9.2.2"), 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		for range 3 {
			if ok, err := c.Ask(t.Context(), 1280, 300*time.Millisecond); ok || err != nil {
				t.Errorf("a forged answer counts: %t %v", ok, err)
			}
		}
	})
	close(stop)
	<-ended
	if forged == 0 {
		t.Error("no answer was forged")
	}
}

// forge answers each echo request twice: with the right source and another content, and from another address.
func forge(t *testing.T, stop chan struct{}) (forged int) {
	listen := func(address string) net.PacketConn {
		c, err := net.ListenPacket("ip4:icmp", address)
		if err != nil {
			t.Error(err)
		}
		return c
	}
	right, wrong := listen("10.9.2.2"), listen("10.9.2.3")
	if right == nil || wrong == nil {
		return 0
	}
	defer right.Close()
	defer wrong.Close()
	buf := make([]byte, 2000)
	for {
		select {
		case <-stop:
			return forged
		default:
		}
		_ = right.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		n, from, err := right.ReadFrom(buf)
		if err != nil {
			continue
		}
		m, err := icmp.ParseMessage(1, buf[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEcho {
			continue
		}
		m.Type = ipv4.ICMPTypeEchoReply
		same, _ := m.Marshal(nil)
		m.Body.(*icmp.Echo).Data[0]++
		other, _ := m.Marshal(nil)
		_, err1 := right.WriteTo(other, from)
		_, err2 := wrong.WriteTo(same, from)
		if err1 == nil && err2 == nil {
			forged++
		}
	}
}

// A group that may not open such sockets gets an error that says so.
func TestNotPermitted(t *testing.T) {
	name := namespace.New(t, "mxecho")
	ip(t, "-n "+name+" link set lo up")
	within(t, name, func() {
		if _, err := Open(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.1"), 0); err == nil ||
			!strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%v", err)
		}
	})
}
