package bgp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// testHosts encrypts packets between the nodes n1 and n2 themselves, with both families, while BGP sessions and the
// connections to the datastore on n1 stay up. The kernels drop packets whose source is not routed to where they come
// from (strict rp_filter).
func (v *encrypted) testHosts(t *testing.T) {
	for _, n := range v.Nodes {
		_, err := n.Run("sh", "-c", "for f in all eth0; do echo 1 >/proc/sys/net/ipv4/conf/$f/rp_filter; done")
		must(t, err)
	}
	v.undisturbed(t, func() {
		v.enable(t, hostsOn)
		v.hostsSay(t, "IPv4", "encrypted")
		v.hostsSay(t, "IPv6", "encrypted")
	})
	v.hostsReadable(t, v.n2, false)
	v.hostsReadable(t, v.n3, true) // it has no key
	for _, n := range []*lab.Node{v.n1, v.n2} {
		out, err := n.Run("ip", "rule", "show", "priority", "98")
		if err != nil || !strings.Contains(out, "ipproto tcp dport 179") {
			t.Errorf("%s: %s, %v", n.Name, out, err)
		}
		for _, device := range []string{"wireguard.cali", "wg-v6.cali"} {
			out, err := n.Run("cat", "/sys/class/net/"+device+"/threaded")
			if err != nil || strings.TrimSpace(out) != "1" {
				t.Errorf("%s: threads of %s: %s, %v", n.Name, device, out, err)
			}
		}
	}
	t.Run("another address of the host", v.testOtherAddress)
	t.Run("nothing passes a tunnel", v.testDeadTunnel)
	v.undisturbed(t, func() {
		v.enable(t, on)
		v.hostsReadable(t, v.n2, true)
	})
	for _, n := range []*lab.Node{v.n1, v.n2} {
		out, err := n.Run("ip", "rule", "show", "priority", "98")
		routes, err2 := n.Run("ip", "route", "show", "table", "1")
		if err := errors.Join(err, err2); err != nil || out != "" ||
			strings.Contains(routes, v.otherThan(n).IP4.String()) {
			t.Errorf("%s: left are %s %s, %v", n.Name, out, routes, err)
		}
	}
}

// otherThan returns n2 for n1, and n1 for n2.
func (v *encrypted) otherThan(n *lab.Node) *lab.Node {
	if n == v.n1 {
		return v.n2
	}
	return v.n1
}

// hostsSay waits until n1 and n2 say that packets of a family to the other one are encrypted, or why they are not.
func (v *encrypted) hostsSay(t *testing.T, family, want string) {
	t.Helper()
	for _, n := range []*lab.Node{v.n1, v.n2} {
		v.says(t, n, "host "+v.otherThan(n).Name+" "+family, want)
	}
}

// hostsReadable waits until packets between n1 and another node, and the answers, are to be read on the link, or not:
// those of ping, and of a TCP connection.
func (v *encrypted) hostsReadable(t *testing.T, other *lab.Node, want bool) {
	t.Helper()
	for _, pair := range [][2]*lab.Node{{v.n1, other}, {other, v.n1}} {
		from, to := pair[0], pair[1]
		for _, a := range []netip.Addr{to.IP4, to.IP6} {
			eventually(t, func() error {
				v.forget()
				if err := ping(from, from.Namespace, a); err != nil {
					return err
				}
				if err := sendByTCP(from, to, a); err != nil {
					return err
				}
				if found := v.readable(); want != (len(found) >= 6) || !want && len(found) > 0 {
					return fmt.Errorf("%d packets from %s to %s and back are to be read:\n%s", len(found), from.Name, a,
						strings.Join(found, "\n"))
				}
				return nil
			})
		}
	}
}

// sendByTCP sends the secret from a host to another one by TCP, and has it come back.
func sendByTCP(from, to *lab.Node, a netip.Addr) error {
	l, err := echo(to, a)
	if err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // of a test
	c, err := dialFrom(from, l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // of a test
	return exchange(c, 5*time.Second)
}

// echo listens on an address of a host, and sends back what it gets.
func echo(n *lab.Node, a netip.Addr) (l net.Listener, err error) {
	inside := namespace.Inside(n.Namespace, func() { l, err = net.Listen("tcp", netip.AddrPortFrom(a, 0).String()) })
	if err = errors.Join(inside, err); err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	return l, nil
}

func dialFrom(n *lab.Node, address string) (c net.Conn, err error) {
	inside := namespace.Inside(n.Namespace, func() { c, err = net.DialTimeout("tcp", address, 5*time.Second) })
	return c, errors.Join(inside, err)
}

func exchange(c net.Conn, patience time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, secret); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, len(secret)))
	return err
}

// connection is one of TCP between the hosts that is used all the time.
type connection struct {
	err   chan error
	end   chan struct{}
	count atomic.Int64
}

// keepUp begins a connection from n1 to n2.
func (v *encrypted) keepUp(t *testing.T) *connection {
	t.Helper()
	l, err := echo(v.n2, v.n2.IP4)
	must(t, err)
	c, err := dialFrom(v.n1, l.Addr().String())
	must(t, err)
	k := &connection{err: make(chan error, 1), end: make(chan struct{})}
	go func() {
		defer l.Close() //nolint:errcheck // of a test
		defer c.Close() //nolint:errcheck // of a test
		for {
			if err := exchange(c, 30*time.Second); err != nil {
				k.err <- err
				return
			}
			k.count.Add(1)
			select {
			case <-k.end:
				k.err <- nil
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return k
}

func (k *connection) stop(t *testing.T) {
	t.Helper()
	close(k.end)
	if err := <-k.err; err != nil {
		t.Errorf("the connection broke after %d exchanges: %v", k.count.Load(), err)
	}
}

// toDatastore returns the local ports of the connections of n2 to the datastore on n1.
func (v *encrypted) toDatastore(t *testing.T) string {
	t.Helper()
	out, err := v.n2.Run("ss", "-Htn", "state", "established", "dst "+v.n1.IP4.String()+":2379")
	must(t, err)
	if out == "" {
		t.Error("n2 has no connection to the datastore")
	}
	var ports []string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 2 {
			ports = append(ports, f[2])
		}
	}
	return strings.Join(ports, " ")
}

// undisturbed runs a change, during which BGP and the connections to the datastore stay, and returns how many of the
// packets between the hosts are lost.
func (v *encrypted) undisturbed(t *testing.T, change func()) {
	t.Helper()
	sessions, datastore := world.Peers(t, v.n1), v.toDatastore(t)
	stream := v.keepUp(t)
	flows := map[string]*lab.Flow{}
	for name, a := range map[string]netip.Addr{"IPv4": v.n2.IP4, "IPv6": v.n2.IP6} {
		flow, err := v.StartFlow(v.n1.Namespace, a)
		must(t, err)
		flows[name] = flow
	}
	change()
	for name, flow := range flows {
		sent, lost, err := flow.Stop()
		t.Logf("%s: %d of %d pings are lost", name, lost, sent)
		if lost*20 > sent || err != nil {
			t.Errorf("%s: %d of %d pings are lost: %v", name, lost, sent, err)
		}
	}
	stream.stop(t)
	world.SameSessions(t, sessions, world.Peers(t, v.n1))
	if now := v.toDatastore(t); now != datastore {
		t.Errorf("the connections to the datastore were %s, and are %s", datastore, now)
	}
}

// testDeadTunnel drops the packets of WireGuard for IPv4 at n2: those of the hosts go in plain after a while. The
// tunnel for IPv6 stays, which has nothing to do all the time. When packets pass, the device of n2 is deleted: it has
// another key then, which n1 can only learn from the datastore on it.
func (v *encrypted) testDeadTunnel(t *testing.T) {
	sessions, key := world.Peers(t, v.n1), v.key(t, v.n2)
	_, err := v.n2.Run("nft", "add table inet wall; add chain inet wall in { type filter hook input priority -300; }; "+
		"add chain inet wall out { type filter hook output priority -300; }; "+
		"add rule inet wall in udp dport 51820 drop; add rule inet wall out udp dport 51820 drop")
	must(t, err)
	defer v.n2.Run("nft", "delete", "table", "inet", "wall") //nolint:errcheck // after a failure
	began := time.Now()
	for _, n := range []*lab.Node{v.n1, v.n2} { // so that packets are sent to notice
		flow, err := v.StartFlow(n.Namespace, v.otherThan(n).IP4)
		must(t, err)
		defer flow.Stop() //nolint:errcheck // of a test
	}
	v.hostsSay(t, "IPv4", "plain: no answer")
	eventually(t, func() error { return ping(v.n1, v.n1.Namespace, v.n2.IP4) })
	t.Logf("packets go in plain after %s", time.Since(began).Truncate(time.Second))
	v.hostsSay(t, "IPv6", "encrypted")
	eventually(t, func() error { // by the interface of its packets, and not of those that it encrypts
		out, err := v.n2.Manxctl("status")
		if !strings.Contains(out, "WireGuard to other nodes through eth0") {
			return fmt.Errorf("no notice of the firewall: %w\n%s", err, out)
		}
		return nil
	})
	_, err = v.n2.Run("nft", "delete", "table", "inet", "wall")
	must(t, err)
	_, err = v.n2.Run("ip", "link", "del", "wireguard.cali")
	must(t, err)
	v.hostsSay(t, "IPv4", "encrypted")
	v.hostsReadable(t, v.n2, false)
	v.secretTo(t, v.n2)
	if after := v.key(t, v.n2); after == "" || after == key {
		t.Errorf("the key was %q, and is %q", key, after)
	}
	world.SameSessions(t, sessions, world.Peers(t, v.n1))
}

// testOtherAddress reaches n2 at an address that is not in its Node, for which n2 has to answer ARP. A route with n2 as
// its gateway would make n2 one that n1 needs, to which nothing is encrypted.
func (v *encrypted) testOtherAddress(t *testing.T) {
	_, err := v.n2.Run("ip", "address", "add", "198.51.100.77/32", "dev", "lo")
	must(t, err)
	_, err = v.n1.Run("ip", "route", "add", "198.51.100.77/32", "dev", "eth0")
	must(t, err)
	_, err = v.n1.Run("ip", "neighbour", "flush", "dev", "eth0")
	must(t, err)
	must(t, lab.Eventually(20*time.Second, func() error { // sooner than n2 resolves n1, which n1 learns from
		return lab.Ping(v.n1.Namespace, netip.MustParseAddr("198.51.100.77"))
	}))
	v.hostsReadable(t, v.n2, false)
}
