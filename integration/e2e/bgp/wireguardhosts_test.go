package bgp

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// hostPair is two nodes with BGP between them, the first of which has the datastore, and what arrives at both. The
// kernel drops packets whose source is not routed to where they come from (strict rp_filter).
type hostPair struct {
	*world.Cluster
	wires []*packet.Port
}

// TestVMWireGuardHosts encrypts packets between the nodes themselves, with both families, while BGP sessions and the
// connections to the datastore on one of them stay up, a key changes, and nothing passes the tunnel.
func TestVMWireGuardHosts(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it needs a kernel with WireGuard; `make test-vm` runs it on one that has")
	}
	h := &hostPair{Cluster: world.NewPair(t, "wh", map[string]string{"a": "n1", "b": "n2"})}
	for _, n := range h.Nodes {
		h.wires = append(h.wires, packet.Open(t, n.Namespace, "eth0"))
		_, err := n.Run("sh", "-c", "for f in all eth0; do echo 1 >/proc/sys/net/ipv4/conf/$f/rp_filter; done")
		must(t, err)
	}
	h.enable(t, false)
	for _, n := range h.Nodes {
		h.says(t, n, "node "+h.other(n).Name+" IPv4", "encrypted, handshake")
		h.says(t, n, "node "+h.other(n).Name+" IPv6", "encrypted, handshake")
	}
	h.readable(t, true)
	t.Run("switched on and off", h.testSwitched)
	t.Run("a key changes", h.testKeyChanges)
	t.Run("nothing passes the tunnel", h.testDeadTunnel)
	t.Run("another address of the host", h.testOtherAddress)
}

func (h *hostPair) other(n *lab.Node) *lab.Node {
	if n == h.N1 {
		return h.N2
	}
	return h.N1
}

// enable switches the encryption of the nodes' own packets on or off.
func (h *hostPair) enable(t *testing.T, on bool) {
	t.Helper()
	must(t, h.N1.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec:
  wireguardEnabled: true
  wireguardEnabledV6: true
  wireguardHostEncryptionEnabled: %t
  wireguardThreadingEnabled: %[1]t
`, on)))
}

// says waits until a node says about another one that packets are encrypted, or why they are not.
func (h *hostPair) says(t *testing.T, n *lab.Node, subject, want string) {
	t.Helper()
	must(t, lab.Eventually(2*limit, func() error {
		out, err := n.Manxctl("get", "hostobjects", "wireguard")
		if line := world.LineWith(out, subject); err == nil && !strings.Contains(line, want) {
			err = fmt.Errorf("%s: %s: %q, want %q\n%s", n.Name, subject, line, want, out)
		}
		return err
	}))
}

// encrypted waits until both nodes say that packets to the other one are encrypted, or not.
func (h *hostPair) encrypted(t *testing.T, want string) {
	t.Helper()
	for _, n := range h.Nodes {
		for _, family := range []string{"IPv4", "IPv6"} {
			h.says(t, n, "host "+h.other(n).Name+" "+family, want)
		}
	}
}

// readable waits until packets from one host to the other, and the answers, are to be read on the link, or not: those
// of ping, and of a TCP connection.
func (h *hostPair) readable(t *testing.T, want bool) {
	t.Helper()
	for _, n := range h.Nodes {
		for _, a := range []netip.Addr{h.other(n).IP4, h.other(n).IP6} {
			eventually(t, func() error {
				for _, w := range h.wires {
					w.Forget()
				}
				out, err := n.Run("ping", "-c2", "-i0.2", "-W2", "-s64", "-p",
					hex.EncodeToString([]byte(secret)), a.String())
				if err != nil {
					return fmt.Errorf("%s to %s: %w: %s", n.Name, a, err, out)
				}
				if err := h.tell(n, a); err != nil {
					return err
				}
				var found []string
				for i, w := range h.wires {
					for _, p := range w.Captured(secret) {
						found = append(found, fmt.Sprintf("at %s: %s", h.Nodes[i].Name, p))
					}
				}
				if want != (len(found) >= 6) || !want && len(found) > 0 {
					return fmt.Errorf("%d packets from %s to %s and back are to be read:\n%s", len(found), n.Name, a,
						strings.Join(found, "\n"))
				}
				return nil
			})
		}
	}
}

// tell sends the secret from a host to another one by TCP, and has it come back.
func (h *hostPair) tell(from *lab.Node, to netip.Addr) error {
	l, err := h.echo(h.other(from), to)
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
func (h *hostPair) echo(n *lab.Node, a netip.Addr) (l net.Listener, err error) {
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
func (h *hostPair) keepUp(t *testing.T) *connection {
	t.Helper()
	l, err := h.echo(h.N2, h.N2.IP4)
	must(t, err)
	c, err := dialFrom(h.N1, l.Addr().String())
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
func (h *hostPair) toDatastore(t *testing.T) string {
	t.Helper()
	out, err := h.N2.Run("ss", "-Htn", "state", "established", "dst "+h.N1.IP4.String()+":2379")
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
func (h *hostPair) undisturbed(t *testing.T, change func()) {
	t.Helper()
	sessions, datastore := world.Peers(t, h.N1), h.toDatastore(t)
	stream := h.keepUp(t)
	flows := map[string]*lab.Flow{}
	for name, a := range map[string]netip.Addr{"IPv4": h.N2.IP4, "IPv6": h.N2.IP6} {
		flow, err := h.StartFlow(h.N1.Namespace, a)
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
	world.SameSessions(t, sessions, world.Peers(t, h.N1))
	if now := h.toDatastore(t); now != datastore {
		t.Errorf("the connections to the datastore were %s, and are %s", datastore, now)
	}
}

// testSwitched switches it on, off and on.
func (h *hostPair) testSwitched(t *testing.T) {
	h.undisturbed(t, func() {
		h.enable(t, true)
		h.encrypted(t, "encrypted")
	})
	h.readable(t, false)
	for _, n := range h.Nodes {
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
	h.undisturbed(t, func() {
		h.enable(t, false)
		h.readable(t, true)
	})
	for _, n := range h.Nodes {
		out, err := n.Run("ip", "rule", "show", "priority", "98")
		routes, err2 := n.Run("ip", "route", "show", "table", "1")
		if err := errors.Join(err, err2); err != nil || out != "" || strings.Contains(routes, h.other(n).IP4.String()) {
			t.Errorf("%s: left are %s %s, %v", n.Name, out, routes, err)
		}
	}
	h.undisturbed(t, func() {
		h.enable(t, true)
		h.encrypted(t, "encrypted")
	})
	h.readable(t, false)
}

// testKeyChanges deletes the device of n2: it has another key then, which n1 can only learn from the datastore on it.
func (h *hostPair) testKeyChanges(t *testing.T) {
	sessions := world.Peers(t, h.N1)
	_, err := h.N2.Run("ip", "link", "del", "wireguard.cali")
	must(t, err)
	h.encrypted(t, "encrypted")
	h.readable(t, false)
	world.SameSessions(t, sessions, world.Peers(t, h.N1))
}

// testDeadTunnel drops the packets of WireGuard to n2: those of the hosts go in plain after a while, also those to n1,
// to which the tunnel still works, and are encrypted again when it passes.
func (h *hostPair) testDeadTunnel(t *testing.T) {
	sessions := world.Peers(t, h.N1)
	_, err := h.N2.Run("nft", "add table inet wall; add chain inet wall in { type filter hook input priority -300; }; "+
		"add rule inet wall in udp dport { 51820, 51821 } drop")
	must(t, err)
	began := time.Now()
	for _, n := range h.Nodes { // so that packets are sent to notice
		for _, a := range []netip.Addr{h.other(n).IP4, h.other(n).IP6} {
			flow, err := h.StartFlow(n.Namespace, a)
			must(t, err)
			defer flow.Stop() //nolint:errcheck // of a test
		}
		defer h.N2.Run("nft", "delete", "table", "inet", "wall") //nolint:errcheck // after a failure
	}
	h.encrypted(t, "plain: no answer")
	h.readable(t, true)
	t.Logf("packets go in plain after %s", time.Since(began).Truncate(time.Second))
	_, err = h.N2.Run("nft", "delete", "table", "inet", "wall")
	must(t, err)
	h.encrypted(t, "encrypted")
	h.readable(t, false)
	world.SameSessions(t, sessions, world.Peers(t, h.N1))
}

// testOtherAddress reaches n2 at an address that is not in its Node.
func (h *hostPair) testOtherAddress(t *testing.T) {
	_, err := h.N2.Run("ip", "address", "add", "198.51.100.77/32", "dev", "lo")
	must(t, err)
	_, err = h.N1.Run("ip", "route", "add", "198.51.100.77/32", "via", h.N2.IP4.String(),
		"dev", "eth0")
	must(t, err)
	eventually(t, func() error { return lab.Ping(h.N1.Namespace, netip.MustParseAddr("198.51.100.77")) })
	h.readable(t, false)
}
