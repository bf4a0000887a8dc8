package packets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/packet"
)

var must, eventually = world.Must, world.Eventually

// hostMAC is the address of the host's end of every pod's interface.
var hostMAC = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

// pair is two nodes with pods, and a machine on the underlay that is no node.
type pair struct {
	*world.Cluster
	outsider *packet.Port
	uplink   *packet.Port            // of n1
	ports    map[string]*packet.Port // of the pods
}

// pairs is how many there were.
var pairs atomic.Int64

// newPair makes nodes n1 and n2, and pods: the name of each with its node.
func newPair(t *testing.T, pods map[string]string) *pair {
	t.Helper()
	name := "p" + strconv.FormatInt(pairs.Add(1), 36) // tests run beside each other
	p := &pair{Cluster: world.NewPair(t, name, pods), ports: map[string]*packet.Port{}}
	for name, pod := range p.Pods {
		p.ports[name] = packet.Open(t, pod.Namespace, "eth0")
	}
	p.outsider = packet.Open(t, p.ToR1.Namespace, "rack1") // the switch of both nodes
	p.uplink = packet.Open(t, p.N1.Namespace, "eth0")
	return p
}

// addresses returns an address of each family of a pod, IPv4 first.
func (p *pair) addresses(pod string) []netip.Addr { return p.Pods[pod].IPs }

// outside returns the outsider's addresses on the subnet of the nodes, IPv4 first.
func (p *pair) outside() []netip.Addr {
	return []netip.Addr{p.ToR1.Address(p.N1), p.ToR1.Address6(p.N1)}
}

// arrives fails the test unless a frame with these bytes comes to a port.
func arrives(t *testing.T, to *packet.Port, what, marker string) []gopacket.Packet {
	t.Helper()
	var got []gopacket.Packet
	err := lab.Eventually(world.Limit, func() error {
		if got = to.Captured(marker); len(got) == 0 {
			return fmt.Errorf("%s does not arrive", what)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return got
}

// enforced waits until a packet of one pod to another is dropped at UDP port 9, while one to port 7 passes.
func (p *pair) enforced(t *testing.T, from, to string) {
	t.Helper()
	port, n := p.ports[from], 0
	eventually(t, func() error {
		n++
		early, late := fmt.Sprintf("early %d", n), fmt.Sprintf("late %d", n)
		for i, marker := range []string{early, late} {
			port.Send(t, packet.Frame(t, port.MAC, hostMAC, packet.IP(p.addresses(from)[0], p.addresses(to)[0],
				layers.IPProtocolUDP, 64), packet.UDP(uint16(2000+n), uint16([]int{9, 7}[i]), marker)...))
		}
		arrives(t, p.ports[to], "an allowed packet", late)
		if len(p.ports[to].Captured(early)) > 0 {
			return errors.New("the policy is not in force")
		}
		return nil
	})
}
