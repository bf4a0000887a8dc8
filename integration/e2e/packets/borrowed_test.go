package packets

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/packet"
)

// TestBorrowedAddress: natOutgoing gives the packets of a pod the address of its node, but none to a port by which the
// node itself is known.
func TestBorrowedAddress(t *testing.T) {
	p := newPair(t, map[string]string{"a": "n1"})
	a := p.ports["a"]
	for i, to := range p.outside() {
		from, node := p.addresses("a")[i], p.N1.IP4
		if to.Is6() {
			node = p.N1.IP6
		}
		for _, probe := range []struct {
			what     string
			protocol layers.IPProtocol
			above    func(marker string) []gopacket.SerializableLayer
			borrowed bool
		}{
			{"UDP 7", layers.IPProtocolUDP, datagram(7), true},
			{"BGP", layers.IPProtocolTCP, segment(179), false},
			{"BFD", layers.IPProtocolUDP, datagram(3784), false},
		} {
			marker := fmt.Sprintf("borrowed %s %s", probe.what, to)
			a.Send(t, packet.Frame(t, a.MAC, hostMAC, packet.IP(from, to, probe.protocol, 64), probe.above(marker)...))
			for _, got := range arrives(t, p.outsider, probe.what, marker) {
				source := got.NetworkLayer().NetworkFlow().Src().Raw()
				if borrowed := bytes.Equal(source, node.AsSlice()); borrowed != probe.borrowed {
					t.Errorf("%s to %s comes from %v: the node's address is %s", probe.what, to, source, node)
				}
			}
		}
	}
}

func datagram(port uint16) func(string) []gopacket.SerializableLayer {
	return func(marker string) []gopacket.SerializableLayer { return packet.UDP(7000, port, marker) }
}

// segment is a SYN with data.
func segment(port uint16) func(string) []gopacket.SerializableLayer {
	return func(marker string) []gopacket.SerializableLayer {
		return []gopacket.SerializableLayer{
			&layers.TCP{SrcPort: 7000, DstPort: layers.TCPPort(port), SYN: true, Window: 1000},
			gopacket.Payload(marker)}
	}
}
