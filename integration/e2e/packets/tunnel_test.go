package packets

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/packet"
)

// TestVMForgedTunnels: tunl0 takes packets from nodes alone, and none from a pod, whatever the inner and the outer
// addresses are. A packet in the name of a node reaches what the policy lets that node's pods reach, and nothing else.
func TestVMForgedTunnels(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it needs a kernel with IPIP; `make test-vm` runs it on one that has")
	}
	p := newPair(t, map[string]string{"a": "n1", "v": "n2", "w": "n2"})
	must(t, p.N1.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods4}\n"+
		"spec: {cidr: %s, blockSize: 26, natOutgoing: true, ipipMode: Always}\n", world.Pool4)))
	eventually(t, func() error {
		out, err := p.N1.Run("ip", "route", "get", p.addresses("w")[0].String())
		if err == nil {
			err = lab.Ping(p.Pods["a"].Namespace, p.addresses("w")[0])
		}
		if err != nil {
			return fmt.Errorf("a does not reach w by the tunnel: %w: %s", err, out)
		}
		return nil
	})
	hears := deliveredIn(t, p.N2.Namespace, layers.IPProtocolUDP)
	to := packet.Open(t, p.N2.Namespace, "eth0").MAC
	a, v, w := p.addresses("a")[0], p.addresses("v")[0], p.addresses("w")[0]
	tor, pod := p.outside()[0], p.ports["a"]
	frame := func(from *packet.Port, mac []byte, outer, inner, dst netip.Addr, text string) {
		from.Send(t, packet.Frame(t, from.MAC, mac, packet.IP(outer, p.N2.IP4, layers.IPProtocolIPv4, 64),
			append([]gopacket.SerializableLayer{packet.IP(inner, dst, layers.IPProtocolUDP, 64).(*layers.IPv4)},
				udpOf(t, inner, dst, text)...)...))
	}
	for _, probe := range []struct {
		what         string
		from         *packet.Port
		outer, inner netip.Addr
		to           netip.Addr
	}{
		{"from the router", p.outsider, tor, a, w},
		{"from an absent address", p.outsider, netip.MustParseAddr("10.200.1.99"), a, w},
		{"from a pod", pod, a, a, w},
		{"from a pod in its node's name", pod, p.N1.IP4, a, w},
		{"from a pod in another node's name", pod, p.N2.IP4, a, w},
		{"in a node's name, of a pod of the receiver", p.outsider, p.N1.IP4, v, w},
		{"in a node's name, of the receiver", p.outsider, p.N1.IP4, p.N2.IP4, w},
		{"in a node's name, of loopback", p.outsider, p.N1.IP4, netip.MustParseAddr("127.0.0.1"), w},
		{"in a node's name, to loopback", p.outsider, p.N1.IP4, a, netip.MustParseAddr("127.0.0.1")},
	} {
		mac := []byte(hostMAC)
		if probe.from == p.outsider {
			mac = to
		}
		frame(probe.from, mac, probe.outer, probe.inner, probe.to, forgedText+probe.what)
	}
	frame(p.outsider, to, p.N1.IP4, a, w, "a node's packet")
	arrives(t, p.ports["w"], "a packet in the name of a node", "a node's packet")
	for _, got := range p.ports["w"].Captured(forgedText) {
		t.Errorf("w received %s", got)
	}
	for _, got := range hears.with(forgedText) {
		t.Errorf("the host hears %q", got)
	}
}

// udpOf returns a datagram with the checksum for its inner header.
func udpOf(t *testing.T, from, to netip.Addr, text string) []gopacket.SerializableLayer {
	t.Helper()
	return []gopacket.SerializableLayer{gopacket.Payload(packet.Bytes(t, packet.IP(from, to, layers.IPProtocolUDP, 64),
		packet.UDP(7, 9, text)...))}
}
