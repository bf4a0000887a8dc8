package packets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// TestForgedVXLAN: the devices take packets from nodes alone, and none from a pod, whatever the inner and the outer
// addresses are. A packet in the name of a node reaches what the policy lets that node's pods reach, and nothing else.
func TestForgedVXLAN(t *testing.T) {
	p := newPair(t, map[string]string{"a": "n1", "v": "n2", "w": "n2"})
	must(t, p.N1.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods4}
spec: {cidr: %s, blockSize: 26, natOutgoing: true, vxlanMode: Always}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods6}
spec: {cidr: "%s", blockSize: 122, natOutgoing: true, vxlanMode: Always}
`, world.Pool4, world.Pool6)))
	hears := listens(t, p.N2.Namespace, 9)
	to := packet.Open(t, p.N2.Namespace, "eth0").MAC
	for i, device := range []string{"vxlan.calico", "vxlan-v6.calico"} {
		eventually(t, func() error {
			for _, n := range []*lab.Node{p.N1, p.N2} {
				far := map[*lab.Node]string{p.N1: "w", p.N2: "a"}[n]
				out, err := n.Run("ip", "route", "get", p.addresses(far)[i].String())
				if err != nil || !strings.Contains(out, " dev "+device+" ") {
					return fmt.Errorf("the way to %s: %w: %s", far, err, out)
				}
			}
			return lab.Ping(p.Pods["a"].Namespace, p.addresses("w")[i])
		})
		mac := packet.Open(t, p.N2.Namespace, device).MAC
		a, v, w := p.addresses("a")[i], p.addresses("v")[i], p.addresses("w")[i]
		n1, n2 := both(p.N1)[i], both(p.N2)[i]
		tor, pod, loopback := p.outside()[i], p.ports["a"], netip.MustParseAddr([]string{"127.0.0.1", "::1"}[i])
		absent := netip.MustParseAddr([]string{"10.200.1.99", "fd00:99::99"}[i])
		broadcast, all := netip.MustParseAddr("10.200.1.255"), net.HardwareAddr{255, 255, 255, 255, 255, 255}
		if i == 1 {
			broadcast, all = netip.MustParseAddr("ff02::1"), net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
		}
		frame := func(
			from *packet.Port, hardware net.HardwareAddr, outer, outerTo, inner, dst netip.Addr, text string,
		) {
			data := packet.Frame(t, net.HardwareAddr{0x66, 0, 0, 0, 0, 1}, mac,
				packet.IP(inner, dst, layers.IPProtocolUDP, 64), packet.UDP(7, 9, text)...)
			from.Send(t, packet.Frame(t, from.MAC, hardware, packet.IP(outer, outerTo, layers.IPProtocolUDP, 64),
				&layers.UDP{SrcPort: 50123, DstPort: 4789}, &layers.VXLAN{ValidIDFlag: true, VNI: 4096},
				gopacket.Payload(data)))
		}
		for _, probe := range []struct {
			what         string
			from         *packet.Port
			outer, inner netip.Addr
			to           netip.Addr
		}{
			{"from the router", p.outsider, tor, a, w},
			{"from the router to the link", p.outsider, tor, a, w},
			{"from an absent address", p.outsider, absent, a, w},
			{"from a pod", pod, a, a, w},
			{"from a pod in its node's name", pod, n1, a, w},
			{"from a pod in another node's name", pod, n2, a, w},
			{"in a node's name, of a pod of the receiver", p.outsider, n1, v, w},
			{"in a node's name, of the receiver", p.outsider, n1, n2, w},
			{"in a node's name, of loopback", p.outsider, n1, loopback, w},
			{"in a node's name, to loopback", p.outsider, n1, a, loopback},
		} {
			hardware, outerTo := net.HardwareAddr(hostMAC), n2
			if probe.from == p.outsider {
				hardware = to
			}
			if strings.HasSuffix(probe.what, "link") {
				hardware, outerTo = all, broadcast
			}
			frame(probe.from, hardware, probe.outer, outerTo, probe.inner, probe.to, forgedText+probe.what)
		}
		last := device + ": a node's packet"
		frame(p.outsider, to, n1, n2, a, w, last)
		arrives(t, p.ports["w"], "a packet in the name of a node", last)
		for _, got := range p.ports["w"].Captured(forgedText) {
			t.Errorf("%s: w received %s", device, got)
		}
		if got := hears(); strings.Contains(got, forgedText) {
			t.Errorf("%s: the host hears %q", device, got)
		}
	}
	out, err := p.N2.Run("conntrack", "-L", "-p", "udp")
	must(t, err)
	if line := world.LineWith(out, "dport=4789"); line != "" {
		t.Errorf("outer packets are tracked: %s", line)
	}
}

func both(n *lab.Node) []netip.Addr { return []netip.Addr{n.IP4, n.IP6} }

// listens opens a UDP port of a host, and returns what came there so far.
func listens(t *testing.T, ns string, port int) func() string {
	t.Helper()
	var conn *net.UDPConn
	var err error
	inside := namespace.Inside(ns, func() { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}) })
	must(t, errors.Join(inside, err))
	t.Cleanup(func() { _ = conn.Close() })
	var all strings.Builder
	return func() string {
		must(t, conn.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		for buf := make([]byte, 1<<16); ; {
			n, err := conn.Read(buf)
			if err != nil {
				return all.String()
			}
			all.Write(buf[:n])
		}
	}
}
