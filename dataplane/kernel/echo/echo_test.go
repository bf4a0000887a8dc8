package echo

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
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
				ok, err := c.Probe(t.Context(), size, time.Second)
				if ok != (size <= 1400) || err != nil {
					t.Errorf("%s, %d bytes: %t %v", to, size, ok, err)
				}
			}
			if ok, err := c.Probe(t.Context(), 2000, time.Second); ok || err != nil {
				t.Errorf("%s: larger than the interface: %t %v", to, ok, err)
			}
		}
		if _, err := Open(netip.MustParseAddr("10.9.1.3"), netip.MustParseAddr("10.9.2.2"), 0); err == nil {
			t.Error("probes from an address of another host")
		}
	})
}

// Answers that other hosts forge count for nothing, and their errors do not hide the right answer, which comes last.
func TestForgedAnswers(t *testing.T) {
	a, b := path(t)
	ip(t, "-n "+b+" addr add 10.9.2.3/24 dev eth0")
	if out, err := exec.Command("ip", "netns", "exec", b, "sysctl", "-qw",
		"net.ipv4.icmp_echo_ignore_all=1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, c := range []struct {
		rule    string
		message func(request icmp.Echo) icmp.Message
		from    string
	}{
		{"another host answers", func(e icmp.Echo) icmp.Message {
			return icmp.Message{Type: ipv4.ICMPTypeEchoReply, Body: &e}
		}, "10.9.2.3"},
		{"other content at the begin", func(e icmp.Echo) icmp.Message {
			e.Data = slices.Clone(e.Data)
			e.Data[0]++
			return icmp.Message{Type: ipv4.ICMPTypeEchoReply, Body: &e}
		}, "10.9.2.2"},
		{"a part of the content", func(e icmp.Echo) icmp.Message {
			e.Data = e.Data[:nonceSize]
			return icmp.Message{Type: ipv4.ICMPTypeEchoReply, Body: &e}
		}, "10.9.2.2"},
		{"of another request", func(e icmp.Echo) icmp.Message {
			e.Seq++
			return icmp.Message{Type: ipv4.ICMPTypeEchoReply, Body: &e}
		}, "10.9.2.2"},
		{"no such port", quoting(ipv4.ICMPTypeDestinationUnreachable, 3, 0), "10.9.2.3"},
		{"no such protocol", quoting(ipv4.ICMPTypeDestinationUnreachable, 2, 0), "10.9.2.3"},
		{"too large", quoting(ipv4.ICMPTypeDestinationUnreachable, 4, 576), "10.9.2.3"},
		{"a wrong header", quoting(ipv4.ICMPTypeParameterProblem, 0, 0), "10.9.2.3"},
	} {
		for _, right := range []bool{false, true} {
			listening, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				within(t, b, func() {
					if err := forge(listening, c.message, c.from, right); err != nil {
						t.Errorf("%s: %v", c.rule, err)
					}
				})
			}()
			<-listening
			within(t, a, func() {
				conn, err := Open(netip.MustParseAddr("10.9.1.2"), netip.MustParseAddr("10.9.2.2"), 0)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				if ok, err := conn.Probe(t.Context(), 1280, 300*time.Millisecond); ok != right || err != nil {
					t.Errorf("%s, and the right answer is there %t: %t %v", c.rule, right, ok, err)
				}
			})
			<-ended
		}
	}
}

// quoting returns an ICMP error of a router about an echo request from 10.9.1.2 to 10.9.2.2.
func quoting(kind ipv4.ICMPType, code, mtu uint32) func(icmp.Echo) icmp.Message {
	return func(e icmp.Echo) icmp.Message {
		request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: e.ID, Seq: e.Seq}}
		echo, _ := request.Marshal(nil)
		h := ipv4.Header{Version: 4, Len: ipv4.HeaderLen, TotalLen: ipv4.HeaderLen + len(echo), TTL: 60, Protocol: 1,
			Flags: ipv4.DontFragment, Src: net.IPv4(10, 9, 1, 2), Dst: net.IPv4(10, 9, 2, 2)}
		header, _ := h.Marshal()
		quote := binary.BigEndian.AppendUint32(nil, mtu) // the second word of the message
		return icmp.Message{Type: kind, Code: int(code),
			Body: &icmp.RawBody{Data: slices.Concat(quote, header, echo)}}
	}
}

// forge waits for one echo request, and sends two copies of a message for it from an address, then the right answer if
// wanted.
func forge(listening chan struct{}, message func(icmp.Echo) icmp.Message, from string, right bool) error {
	own, err := net.ListenPacket("ip4:icmp", "10.9.2.2")
	if err == nil {
		defer own.Close()
		err = own.SetReadDeadline(time.Now().Add(5 * time.Second))
	}
	other, err2 := net.ListenPacket("ip4:icmp", from)
	close(listening)
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	defer other.Close()
	for buf := make([]byte, 2000); ; {
		n, asker, err := own.ReadFrom(buf)
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(1, buf[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEcho {
			continue
		}
		forged := message(*m.Body.(*icmp.Echo))
		data, err := forged.Marshal(nil)
		for range 2 {
			_, err2 := other.WriteTo(data, asker)
			err = errors.Join(err, err2)
		}
		if right {
			m.Type = ipv4.ICMPTypeEchoReply
			data, err2 := m.Marshal(nil)
			_, err3 := own.WriteTo(data, asker)
			err = errors.Join(err, err2, err3)
		}
		return err
	}
}

// A group that may not open such sockets gets an error that says so.
func TestNotPermitted(t *testing.T) {
	name := namespace.New(t, "mxecho")
	ip(t, "-n "+name+" link set lo up")
	within(t, name, func() {
		lo := netip.MustParseAddr("127.0.0.1")
		if _, err := Open(lo, lo, 0); !errors.Is(err, ErrNotPermitted) {
			t.Errorf("%v", err)
		}
	})
}

// The kernel refuses packets to all hosts of a network with the same error. It has another reason.
func TestBroadcast(t *testing.T) {
	a, _ := path(t)
	within(t, a, func() {
		c, err := Open(netip.MustParseAddr("10.9.1.2"), netip.MustParseAddr("10.9.1.255"), 0)
		if err != nil {
			t.Errorf("%v", err)
			return
		}
		defer c.Close()
		const want = "send an ICMP echo request to 10.9.1.255: permission denied"
		if ok, err := c.Probe(t.Context(), 1280, time.Second); ok || err == nil || err.Error() != want {
			t.Errorf("%t %v", ok, err)
		}
	})
}
