package bgp

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/packet"
)

// secret is in packets of pods, to be found on the link between the nodes.
const secret = "sixteen secrets!"

// encrypted is a cluster of three nodes with pools of VXLAN, of which n1 and n2 have WireGuard, and what arrives at
// these two.
type encrypted struct {
	*vxlan
	wires []*packet.Port // what arrives at n1 and n2
}

// TestVMWireGuard has pods of two nodes exchange packets that nobody on the link can read, with both families, while
// manxd is killed and the device is deleted, beside a node that has no WireGuard.
func TestVMWireGuard(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it needs a kernel with WireGuard; `make test-vm` runs it on one that has")
	}
	v := &encrypted{vxlan: newVXLAN(t, "vw", "Always")}
	for _, n := range []*lab.Node{v.n1, v.n2} {
		v.wires = append(v.wires, packet.Open(t, n.Namespace, "eth0"))
	}
	v.reaches(t)
	v.plain(t, v.n2)
	v.enable(t, true)
	v.secretTo(t, v.n2)
	v.plain(t, v.n3)
	for n, want := range map[string]string{"node n2 IPv4": "encrypted, handshake",
		"node n2 IPv6": "encrypted, handshake", "node n3 IPv4": "plain: n3 publishes no key"} {
		v.says(t, n, want)
	}
	t.Run("the daemon is killed", v.testKilled)
	t.Run("the device is deleted", v.testDeviceGone)
	t.Run("switched off and on under traffic", v.testSwitched)
}

// enable switches WireGuard on or off for all nodes but n3.
func (v *encrypted) enable(t *testing.T, on bool) {
	t.Helper()
	must(t, v.n1.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec: {wireguardEnabled: %t, wireguardEnabledV6: %[1]t}
---
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: node.n3}
spec: {wireguardEnabled: false, wireguardEnabledV6: false}
`, on)))
}

// send has the pod of n1 send the secret to an address, and be answered.
func (v *encrypted) send(t *testing.T, to netip.Addr) error {
	t.Helper()
	for _, w := range v.wires {
		w.Forget()
	}
	out, err := v.n1.Run("ip", "netns", "exec", v.pods[v.n1].Namespace, "ping", "-c2", "-i0.2", "-W2", "-s64", "-p",
		hex.EncodeToString([]byte(secret)), to.String())
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// readable returns how many packets with the secret were on the link.
func (v *encrypted) readable() (n int) {
	for _, w := range v.wires {
		n += len(w.Captured(secret))
	}
	return n
}

func (v *encrypted) addresses(n *lab.Node) []netip.Addr {
	return []netip.Addr{v.pods[n].IP4(), v.pods[n].IP6()}
}

// secretTo waits until packets to the pod of a node are encrypted.
func (v *encrypted) secretTo(t *testing.T, n *lab.Node) {
	t.Helper()
	for _, a := range v.addresses(n) {
		eventually(t, func() error {
			err := v.send(t, a)
			if got := v.readable(); err == nil && got > 0 {
				err = fmt.Errorf("%d packets with the secret leave in plain for %s", got, a)
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
			err := v.send(t, a)
			if got := v.readable(); err == nil && got < 2 {
				err = fmt.Errorf("%d packets with the secret arrive, want the answers of %s", got, a)
			}
			return err
		})
	}
}

// says waits until n1 says about another node that packets to it are encrypted, or why they are not.
func (v *encrypted) says(t *testing.T, node, want string) {
	t.Helper()
	eventually(t, func() error {
		out, err := v.n1.Manxctl("get", "hostobjects", "wireguard")
		if line := world.LineWith(out, node); err == nil && !strings.Contains(line, want) {
			err = fmt.Errorf("%s: %q, want %q", node, line, want)
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

// testKilled kills the daemon of n1: the device keeps its key and its sessions, and no packet is lost.
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

// testDeviceGone deletes the device of n2: it comes back with another key.
func (v *encrypted) testDeviceGone(t *testing.T) {
	before := v.key(t, v.n2)
	_, err := v.n2.Run("ip", "link", "del", "wireguard.cali")
	must(t, err)
	eventually(t, func() error {
		if after := v.key(t, v.n2); after == "" || after == before {
			return fmt.Errorf("the key was %q, and is %q", before, after)
		}
		return nil
	})
	v.secretTo(t, v.n2)
}

// testSwitched switches WireGuard off and on: few packets are lost, and nothing is left when it is off.
func (v *encrypted) testSwitched(t *testing.T) {
	flow, err := v.StartFlow(v.pods[v.n1].Namespace, v.pods[v.n2].IP4())
	must(t, err)
	v.enable(t, false)
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
	v.enable(t, true)
	v.secretTo(t, v.n2)
	if sent, lost, err := flow.Stop(); lost*20 > sent || err != nil {
		t.Errorf("%d of %d pings are lost: %v", lost, sent, err)
	}
}
