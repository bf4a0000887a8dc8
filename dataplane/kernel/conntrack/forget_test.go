package conntrack

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

// connect sends a datagram from one address to another in the namespace, and one back.
func connect(t *testing.T, c *Conn, from, to string) {
	t.Helper()
	err := c.namespace.Do(func() error {
		server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), 0)))
		if err != nil {
			return err
		}
		defer server.Close()
		client, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)),
			server.LocalAddr().(*net.UDPAddr))
		if err != nil {
			return err
		}
		defer client.Close()
		if _, err := client.Write([]byte("x")); err != nil {
			return err
		}
		_, back, err := server.ReadFromUDP(make([]byte, 8))
		if err != nil {
			return err
		}
		_, err = server.WriteToUDP([]byte("y"), back)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestForgetConnections(t *testing.T) {
	ns, c := tableIn(t)
	// The kernel tracks connections once a rule requires it.
	nft(t, ns, "add table inet t")
	nft(t, ns, "add chain inet t o { type filter hook output priority 0; }")
	nft(t, ns, "add rule inet t o ct state new counter")
	nft(t, ns, "add chain inet t d { type nat hook output priority -100; }")
	nft(t, ns, "add rule inet t d ip daddr 10.9.0.9 dnat to 10.9.0.3")
	for _, a := range []string{"10.9.0.1/32", "10.9.0.2/32", "10.9.0.3/32", "10.9.0.9/32", "fd09::1/128",
		"fd09::2/128"} {
		addAddress(t, ns, a)
	}
	forget := func(what string, want int, addresses ...string) {
		t.Helper()
		var list []netip.Addr
		for _, a := range addresses {
			list = append(list, netip.MustParseAddr(a))
		}
		if n, err := c.ForgetConnections(list); n != want || err != nil {
			t.Errorf("%s: %d deleted, %v; want %d", what, n, err, want)
		}
	}
	forget("an empty table", 0, "10.9.0.1", "fd09::1")
	connect(t, c, "10.9.0.1", "10.9.0.2")
	connect(t, c, "10.9.0.2", "10.9.0.1")
	connect(t, c, "10.9.0.3", "10.9.0.3")
	connect(t, c, "fd09::1", "fd09::2")
	forget("an address without connections", 0, "10.9.0.77")
	forget("none of the other family", 0, "::ffff:10.9.0.77", "fd09::77")
	forget("no address", 0)
	forget("both directions", 2, "10.9.0.2")
	forget("they are gone, others are not", 0, "10.9.0.2", "10.9.0.1")
	forget("both families in one batch", 2, "10.9.0.3", "fd09::2")
	forget("nothing remains", 0, "10.9.0.1", "10.9.0.2", "10.9.0.3", "fd09::1", "fd09::2")

	// A translated connection has the new address in the direction of replies only.
	translated := func() {
		_ = c.namespace.Do(func() error {
			client, err := net.Dial("udp", "10.9.0.9:7")
			if err == nil {
				_, err = client.Write([]byte("x"))
				client.Close()
			}
			return err
		})
	}
	translated()
	forget("by the address before translation", 1, "10.9.0.9")
	translated()
	forget("by the address after translation", 1, "10.9.0.3")

	translated()
	connect(t, c, "fd09::1", "fd09::2")
	list, err := c.ListConnections(func(x Connection) bool { return x.Protocol == unix.IPPROTO_UDP })
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, x := range list {
		if x.Source.Is4() && (x.Destination != netip.MustParseAddr("10.9.0.3") || x.DestinationPort != 7) {
			t.Errorf("%+v: want the destination after translation", x)
		}
		if x.Source.Is6() && (x.Source != netip.MustParseAddr("fd09::1") || x.SourcePort == 0) {
			t.Errorf("%+v", x)
		}
	}
	for _, want := range []int{2, 0} {
		if n, err := c.EndConnections(list); n != want || err != nil {
			t.Errorf("%d ended, %v; want %d", n, err, want)
		}
	}
}

// tableIn makes a network namespace and opens its table.
func tableIn(t testing.TB) (name string, c *Conn) {
	t.Helper()
	name = nettest.Namespace(t)
	n, err := netlink.OpenNamespace(nettest.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return name, New(n)
}

// nft runs a command of the tool in a namespace.
func nft(t *testing.T, ns, command string) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nftables is not installed")
	}
	nettest.Run(t, "ip", "netns", "exec", ns, "nft", command)
}
