package policy

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/namespace"
)

// nodeLocal has the rules of NodeLocal DNSCache for its address, in raw and filter.
const nodeLocal = `*raw
-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -j NOTRACK
-A PREROUTING -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j NOTRACK
-A OUTPUT -s 169.254.20.10/32 -p udp -m udp --sport 53 -j NOTRACK
-A OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 53 -j NOTRACK
-A OUTPUT -d 169.254.20.10/32 -p udp -m udp --dport 53 -j NOTRACK
-A OUTPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j NOTRACK
COMMIT
*filter
-A INPUT -d 169.254.20.10/32 -p udp -m udp --dport 53 -j ACCEPT
-A INPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j ACCEPT
-A OUTPUT -s 169.254.20.10/32 -p udp -m udp --sport 53 -j ACCEPT
-A OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 53 -j ACCEPT
COMMIT
`

// testNodeLocalDNS: a pod under policies in both directions reaches NodeLocal DNSCache of its node, whose packets are
// not tracked, if its egress policy allows the address; with a policy for the Service of DNS alone it does not.
func (c *cluster) testNodeLocalDNS(t *testing.T, pod string, load func(program, rules string, args ...string)) {
	n, p := c.Pods[pod].Node, c.Pods[pod]
	to := netip.MustParseAddrPort("169.254.20.10:53")
	// Like node-cache, which leaves its interface down. Its type is dummy, which not every kernel has.
	must(t, namespace.Batch(n.Namespace, "link add nodelocaldns type bridge",
		"addr add 169.254.20.10/32 dev nodelocaldns"))
	t.Cleanup(func() { _ = namespace.Batch(n.Namespace, "link del nodelocaldns") })
	load("iptables-restore", nodeLocal, "--noflush")
	t.Cleanup(func() {
		load("iptables-restore", strings.ReplaceAll(nodeLocal, "\n-A ", "\n-D "), "--noflush")
	})
	var u net.PacketConn
	var l net.Listener
	must(t, namespace.Inside(n.Namespace, func() {
		var err error
		u, err = net.ListenPacket("udp4", to.String())
		must(t, err)
		l, err = net.Listen("tcp4", to.String())
		must(t, err)
	}))
	t.Cleanup(func() { _, _ = u.Close(), l.Close() })
	go func() {
		b := make([]byte, 512)
		for {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo([]byte("hello from "+from.String()), from)
		}
	}()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	for allowed, want := range map[string]bool{"169.254.20.10/32": true, "10.96.0.10/32": false} {
		rule := "{action: Allow, protocol: PROTOCOL, destination: {nets: [" + allowed + "], ports: [53]}}"
		c.enforced(t, c.change(t, documents(t, world.GlobalPolicy("dns", "selector: role == '"+pod+"', types: "+
			"[Ingress, Egress], egress: ["+strings.Replace(rule, "PROTOCOL", "UDP", 1)+", "+
			strings.Replace(rule, "PROTOCOL", "TCP", 1)+"]"))...))
		reply, err := requestEcho(p.Namespace, to, time.Second)
		if udp := err == nil && strings.HasPrefix(reply, "hello from "+p.IP4().String()+":"); udp != want {
			t.Errorf("egress to %s: an answer over UDP: %q, %v, want %v", allowed, reply, err, want)
		}
		if tcp := world.ConnectsTCP(t, p.Namespace, to.Addr(), 53, want); tcp != want {
			t.Errorf("egress to %s: a connection over TCP: %v, want %v", allowed, tcp, want)
		}
		if tracked(t, n, p.IP4(), 53) {
			t.Error("the packets are tracked: the rules of NodeLocal DNSCache have no effect")
		}
	}
	c.enforced(t, c.change(t, asDeleted(documents(t, world.GlobalPolicy("dns", "selector: role == 'x'")))...))
}
