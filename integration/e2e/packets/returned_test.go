package packets

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/packet"
)

// TestAddressesOfTheNodeFromOutside: a machine on the underlay sends to a pod in the name of another pod of the same
// node, which policy may allow. The kernel's own check (rp_filter) is off, and there is none for IPv6.
func TestAddressesOfTheNodeFromOutside(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"b": "n1", "v": "n1", "far": "n2"})
	for _, s := range []string{"all", "eth0"} {
		_, err := p.N1.Run("sh", "-c", "echo 0 >/proc/sys/net/ipv4/conf/"+s+"/rp_filter")
		must(t, err)
	}
	node, v := packet.Open(t, p.N1.Namespace, "eth0"), p.ports["v"]
	for i, to := range p.addresses("v") {
		send := func(from netip.Addr, marker string) {
			p.outsider.Send(t, packet.Frame(t, p.outsider.MAC, node.MAC, packet.IP(from, to, layers.IPProtocolUDP, 64),
				datagram(7)(marker)...))
		}
		eventually(t, func() error { // the pod's neighbour is known from then on
			send(p.outside()[i], "before")
			if len(v.Captured("before")) == 0 {
				return fmt.Errorf("%s is not reached", to)
			}
			return nil
		})
		send(p.addresses("b")[i], "as another pod")
		send(to, "as the pod itself")
		own := p.N1.IP4
		if to.Is6() {
			own = p.N1.IP6
		}
		send(own, "as the node")
		send(p.addresses("far")[i], "as a pod of another node, which may be one")
		send(p.outside()[i], "the last")
		arrives(t, v, "UDP", "the last")
		arrives(t, v, "UDP", "as a pod of another node")
		for _, marker := range []string{"as another pod", "as the pod itself", "as the node"} {
			if len(v.Captured(marker)) > 0 {
				t.Errorf("a packet from outside %s arrives at %s", marker, to)
			}
		}
		v.Forget()
	}
}
