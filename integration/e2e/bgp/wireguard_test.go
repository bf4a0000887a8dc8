package bgp

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/packet"
)

// secret is in packets of pods, to be found on the link between the nodes.
const secret = "sixteen secrets!"

// encrypted is a cluster of three nodes with BGP and pools of VXLAN, of which n1 and n2 have WireGuard, and the frames
// that arrive at each of them.
type encrypted struct {
	*vxlan
	wires []*packet.Port
}

// TestVMWireGuard has pods of two nodes, and the nodes themselves, exchange packets that nobody on the link can read,
// with both families, while manxd is killed, the device is deleted and the settings change, beside a node that has no
// WireGuard.
func TestVMWireGuard(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it needs a kernel with WireGuard; `make test-vm` runs it on one that has")
	}
	v := &encrypted{vxlan: newVXLAN(t, "vw", "Always", world.PairFlags...)}
	for _, n := range v.Nodes {
		v.wires = append(v.wires, packet.Open(t, n.Namespace, "eth0"))
	}
	v.reaches(t)
	v.plain(t, v.n2)
	v.enable(t, on)
	v.secretTo(t, v.n2)
	v.plain(t, v.n3)
	for n, want := range map[string]string{"node n2 IPv4": "encrypted, handshake",
		"node n2 IPv6": "encrypted, handshake", "node n3 IPv4": "plain: n3 publishes no key"} {
		v.says(t, v.n1, n, want)
	}
	t.Run("the daemon is killed", v.testKilled)
	t.Run("the daemon starts without the datastore", v.testStarts)
	t.Run("switched off and on under traffic", v.testSwitched)
	t.Run("another key", v.testRotated)
	t.Run("packets of the hosts", v.testHosts)
	t.Run("encryption is required", v.testRequired)
}

// encryption are the packets that are encrypted.
type encryption int

const (
	off     encryption = iota
	on                 // those of pods
	hostsOn            // and those of the hosts
)

// enable switches WireGuard on or off for all nodes but n3.
func (v *encrypted) enable(t *testing.T, e encryption) {
	t.Helper()
	must(t, v.n1.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec:
  wireguardEnabled: %t
  wireguardEnabledV6: %[1]t
  wireguardHostEncryptionEnabled: %[2]t
  wireguardThreadingEnabled: %[2]t
---
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: node.n3}
spec: {wireguardEnabled: false, wireguardEnabledV6: false}
`, e != off, e == hostsOn)))
}

// send has the pod of a node send the secret to an address, and be answered.
func (v *encrypted) send(from *lab.Node, to netip.Addr) error {
	v.forget()
	return ping(from, v.pods[from].Namespace, to)
}

func (v *encrypted) forget() {
	for _, w := range v.wires {
		w.Forget()
	}
}

// ping sends the secret to an address twice, from a namespace on a node.
func ping(n *lab.Node, namespace string, to netip.Addr) error {
	out, err := n.Run("ip", "netns", "exec", namespace, "ping", "-c2", "-i0.2", "-W2", "-s64", "-p",
		hex.EncodeToString([]byte(secret)), to.String())
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// readable returns the packets with the secret that were on the link.
func (v *encrypted) readable() (found []string) {
	time.Sleep(50 * time.Millisecond) // they are read from the sockets meanwhile
	for i, w := range v.wires {
		for _, p := range w.Captured(secret) {
			found = append(found, fmt.Sprintf("at %s: %s", v.Nodes[i].Name, p))
		}
	}
	return found
}

func (v *encrypted) addresses(n *lab.Node) []netip.Addr {
	return []netip.Addr{v.pods[n].IP4(), v.pods[n].IP6()}
}

// secretTo waits until packets of the pod of n1 to that of another node are encrypted.
func (v *encrypted) secretTo(t *testing.T, n *lab.Node) {
	t.Helper()
	v.secretBetween(t, v.n1, n)
}

func (v *encrypted) secretBetween(t *testing.T, from, n *lab.Node) {
	t.Helper()
	for _, a := range v.addresses(n) {
		eventually(t, func() error {
			err := v.send(from, a)
			if got := v.readable(); err == nil && len(got) > 0 {
				err = fmt.Errorf("packets with the secret leave in plain for %s:\n%s", a, strings.Join(got, "\n"))
			}
			return err
		})
	}
}

// plain checks that packets to the pod of a node are to be read on the link.
func (v *encrypted) plain(t *testing.T, n *lab.Node) {
	t.Helper()
	for _, a := range v.addresses(n) {
		eventually(t, func() error {
			err := v.send(v.n1, a)
			if got := len(v.readable()); err == nil && got < 4 {
				err = fmt.Errorf("%d packets with the secret arrive, want the answers of %s", got, a)
			}
			return err
		})
	}
}

// says waits until a node says about another one that packets to it are encrypted, or why they are not.
func (v *encrypted) says(t *testing.T, n *lab.Node, other, want string) {
	t.Helper()
	eventually(t, func() error {
		out, err := n.Manxctl("get", "hostobjects", "wireguard")
		if line := world.LineWith(out, other); err == nil && !strings.Contains(line, want) {
			err = fmt.Errorf("%s: %q, want %q", other, line, want)
		}
		return err
	})
}

func (v *encrypted) key(t *testing.T, n *lab.Node) string {
	t.Helper()
	out, err := v.n1.Manxctl("get", "node", n.Name, "-o", "yaml")
	must(t, err)
	return world.LineWith(out, "wireguardPublicKey:")
}

// testKilled kills the daemon of n2: the device keeps its key and its sessions, and no packet is lost.
func (v *encrypted) testKilled(t *testing.T) {
	flow, err := v.StartFlow(v.pods[v.n1].Namespace, v.pods[v.n2].IP4())
	must(t, err)
	before := v.key(t, v.n2)
	v.n2.Manxd().Kill()
	must(t, v.n2.StartManxd())
	must(t, v.n2.Ready(limit))
	v.secretTo(t, v.n2)
	if after := v.key(t, v.n2); before == "" || after != before {
		t.Errorf("the key was %q, and is %q", before, after)
	}
	if sent, lost, err := flow.Stop(); lost > 0 || err != nil {
		t.Errorf("%d of %d pings are lost: %v", lost, sent, err)
	}
}

// testStarts kills the daemon of n2, and starts it while it cannot reach the datastore: it knows no keys, and packets
// of its pods are encrypted all the same.
func (v *encrypted) testStarts(t *testing.T) {
	flow, err := v.StartFlow(v.pods[v.n1].Namespace, v.pods[v.n2].IP4())
	must(t, err)
	before := v.key(t, v.n2)
	v.n2.Manxd().Kill()
	_, err = v.n2.Run("nft", "table ip away { chain output { type filter hook output priority 0; "+
		"tcp dport 2379 drop; }; }")
	must(t, err)
	must(t, v.n2.StartManxd())
	eventually(t, func() error {
		out, err := v.n2.Manxctl("status")
		if line := world.LineWith(out, "Datastore:"); !strings.Contains(line, "BGP and routes follow the state of") {
			return fmt.Errorf("%s %w", line, err)
		}
		return nil
	})
	for range 3 {
		if err := v.send(v.n2, v.pods[v.n1].IP4()); err != nil {
			t.Error(err)
		}
		if got := v.readable(); len(got) > 0 {
			t.Errorf("packets with the secret leave in plain:\n%s", strings.Join(got, "\n"))
		}
	}
	_, err = v.n2.Run("nft", "delete table ip away")
	must(t, err)
	must(t, v.n2.Ready(limit))
	v.secretTo(t, v.n2)
	if after := v.key(t, v.n2); before == "" || after != before {
		t.Errorf("the key was %q, and is %q", before, after)
	}
	if sent, lost, err := flow.Stop(); lost > 0 || err != nil {
		t.Errorf("%d of %d pings are lost: %v", lost, sent, err)
	}
}

// testSwitched switches WireGuard off and on: few packets are lost, and nothing is left when it is off.
func (v *encrypted) testSwitched(t *testing.T) {
	flow, err := v.StartFlow(v.pods[v.n1].Namespace, v.pods[v.n2].IP4())
	must(t, err)
	v.enable(t, off)
	v.plain(t, v.n2)
	eventually(t, func() error {
		links, err := v.n1.Run("ip", "link", "show", "type", "wireguard")
		if err != nil {
			return err
		}
		rules, err := v.n1.Run("ip", "rule")
		if left := world.LineWith(rules, "fwmark"); err == nil && links+left != "" || v.key(t, v.n1) != "" {
			err = fmt.Errorf("left: %s %s", links, left)
		}
		return err
	})
	v.enable(t, on)
	v.secretTo(t, v.n2)
	sent, lost, err := flow.Stop()
	t.Logf("%d of %d pings are lost", lost, sent)
	if lost*20 > sent || err != nil {
		t.Errorf("%d of %d pings are lost: %v", lost, sent, err)
	}
}

// testRotated deletes the device of n2: it comes back with another key. The pod of n2 alone sends packets, and the
// handshakes that n2 begins for them are lost, until n1 has the key and begins one.
func (v *encrypted) testRotated(t *testing.T) {
	before := v.key(t, v.n2)
	flow, err := v.StartFlow(v.pods[v.n2].Namespace, v.pods[v.n1].IP4())
	must(t, err)
	_, err = v.n2.Run("ip", "link", "del", "wireguard.cali")
	must(t, err)
	eventually(t, func() error {
		if after := v.key(t, v.n2); after == "" || after == before {
			return fmt.Errorf("the key was %q, and is %q", before, after)
		}
		return nil
	})
	time.Sleep(6 * time.Second) // longer than the time between two attempts of n2 (REKEY_TIMEOUT)
	sent, lost, err := flow.Stop()
	t.Logf("%d of %d pings are lost", lost, sent)
	if lost*6 > sent || err != nil {
		t.Errorf("%d of %d pings are lost: %v", lost, sent, err)
	}
	v.secretTo(t, v.n2)
}

// testRequired has n2 send nothing in plain: n3, which has no key, is not reached until it has one. The pod of n1 is
// all the time.
func (v *encrypted) testRequired(t *testing.T) {
	must(t, v.n2.Manxd().Stop(limit))
	must(t, v.n2.StartManxd(slices.Concat(lab.UseDatastore(v.n1), world.PairFlags,
		[]string{"--wireguard-required"})...))
	must(t, v.n2.Ready(limit))
	const dropped = `manx_dropped_packets_total{reason="unencrypted"}`
	for i, a := range v.addresses(v.n3) {
		v.says(t, v.n2, fmt.Sprintf("node n3 IPv%d", 4+2*i), "refused: n3 publishes no key")
		refused := func() {
			if err := v.send(v.n2, a); err == nil || len(v.readable()) > 0 {
				t.Errorf("%s gets packets, and these are to be read: %v", a, v.readable())
			}
		}
		refused()
		before := world.Metric(t, v.n2, dropped)
		eventually(t, func() error { // the rule comes back with the next repair
			_, _ = v.n2.Run("ip", fmt.Sprintf("-%d", 4+2*i), "rule", "del", "priority", "99")
			refused()
			if now := world.Metric(t, v.n2, dropped); now <= before {
				return fmt.Errorf("without routes %s was %.0f, and is %.0f", dropped, before, now)
			}
			return nil
		})
	}
	status, err := v.n2.Manxctl("status")
	line := world.LineWith(status, "WireGuard to node n3 (IPv4)")
	if err != nil || !strings.Contains(line, "refused:") {
		t.Errorf("manxctl status says %v\n%s", err, status)
	}
	v.secretBetween(t, v.n2, v.n1)
	must(t, v.n1.Apply(`
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: node.n3}
spec: {wireguardEnabled: true, wireguardEnabledV6: true}
`))
	v.secretBetween(t, v.n2, v.n3)
}
