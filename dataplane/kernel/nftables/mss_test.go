package nftables

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/integration/namespace"
)

// A router with the rule has both ends of a TCP connection send segments that fit the smaller MTU of its routes, in
// both families and whichever end it is at, and leaves smaller ones alone. Without the rule it lets them be.
func TestClampMSS(t *testing.T) {
	router, n := rulesNS(t)
	client, server := namespace.New(t, "mxmss"), namespace.New(t, "mxmss")
	ip := func(ns string, args ...string) { nettest.Run(t, append([]string{"ip", "-n", ns}, args...)...) }
	for i, ns := range []string{client, server} {
		down := fmt.Sprintf("d%d", i)
		ip(ns, "link", "add", "eth0", "type", "veth", "peer", "name", down, "netns", router)
		nettest.Run(t, "ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0")
		nettest.Run(t, "ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv6.conf."+down+".accept_dad=0")
		ip(ns, "link", "set", "eth0", "up")
		ip(router, "link", "set", down, "up")
		for _, network := range [][2]string{{fmt.Sprintf("10.7.%d.", i), "/24"}, {fmt.Sprintf("fd07:%d::", i), "/64"}} {
			ip(ns, "addr", "add", network[0]+"2"+network[1], "dev", "eth0")
			ip(router, "addr", "add", network[0]+"1"+network[1], "dev", down)
			ip(ns, "route", "add", "default", "via", network[0]+"1")
		}
	}
	nettest.Run(t, "ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1",
		"net.ipv6.conf.all.forwarding=1")
	// what the two ends send, of 1500 less the headers of IP and TCP
	check := func(when string, want4, want6 int) {
		t.Helper()
		for address, want := range map[string]int{"10.7.1.2": want4, "fd07:1::2": want6} {
			here, there, err := segments(client, server, address)
			if err != nil || here != want || there != want {
				t.Errorf("%s: to %s: %d and %d %v, want %d", when, address, here, there, err, want)
			}
		}
	}
	check("without a rule", 1460, 1440)
	ip(router, "route", "replace", "10.7.1.2/32", "dev", "d1", "mtu", "1350")
	ip(router, "route", "replace", "fd07:1::2/128", "dev", "d1", "mtu", "1350")
	check("with routes alone", 1460, 1440)
	table := ruleset.NewTable()
	table.SetChain(&ruleset.Chain{Name: "mss", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter},
		Rules: []ruleset.Rule{{Matches: []ruleset.Match{tcp}, ClampMSS: true}}})
	commitRules(t, n, table.Difference(nil))
	sameRules(t, n, table)
	check("with the rule", 1310, 1290)
	for _, ns := range []string{client, server} {
		ip(ns, "link", "set", "eth0", "mtu", "1300")
	}
	check("smaller ones", 1260, 1240)
}

// segments connects, and returns how large segments the client and the server send.
func segments(client, server, address string) (here, there int, err error) {
	var l net.Listener
	inside := namespace.Inside(server, func() { l, err = net.Listen("tcp", net.JoinHostPort(address, "0")) })
	if err = errors.Join(inside, err); err != nil {
		return 0, 0, err
	}
	defer l.Close() //nolint:errcheck // of a test
	var c net.Conn
	inside = namespace.Inside(client, func() { c, err = net.Dial("tcp", l.Addr().String()) })
	if err = errors.Join(inside, err); err != nil {
		return 0, 0, err
	}
	defer c.Close() //nolint:errcheck // of a test
	s, err := l.Accept()
	if err != nil {
		return 0, 0, err
	}
	defer s.Close() //nolint:errcheck // of a test
	here, err1 := segment(c)
	there, err2 := segment(s)
	return here, there, errors.Join(err1, err2)
}

// segment is the largest one that an end sends, with the options that each segment has.
func segment(c net.Conn) (size int, err error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		info, e := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if failed = e; e == nil {
			size = int(info.Snd_mss)
			if info.Options&1 != 0 { // timestamps (RFC 7323)
				size += 12
			}
		}
	})
	return size, errors.Join(err, failed)
}
