package packets

import (
	"fmt"
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

// TestNoHelpers: a pod that no policy lets in cannot open a port for an accomplice by the control connection of a
// protocol that the kernel has helpers for.
func TestNoHelpers(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1", "w": "n2"})
	must(t, p.N1.Apply(world.GlobalPolicy("closed", "selector: role == 'closed', types: [Ingress], ingress: []")))
	must(t, p.Pods["a"].EditEndpoint(func(e lab.Resource) { e.Label("role", "closed") }))
	a, w := p.ports["a"], p.ports["w"]
	p.quiet(t, "a", "w")
	for i := range 2 {
		inside, outside := p.addresses("a")[i], p.addresses("w")[i]
		send := func(from *packet.Port, source, to netip.Addr, protocol layers.IPProtocol,
			above ...gopacket.SerializableLayer) {
			from.Send(t, packet.Frame(t, from.MAC, hostMAC, packet.IP(source, to, protocol, 64), above...))
		}
		// TFTP (RFC 1350): the answer comes from another port. It is no answer, while that of port 69 is one.
		for _, service := range []struct {
			port    uint16
			request string
		}{{69, "\x00\x01file\x00octet\x00"}, {5060, "REGISTER sip:w SIP/2.0\r\nVia: SIP/2.0/UDP a:7100\r\n" +
			"Contact: <sip:a:7100>\r\n\r\n"}, {161, "snmp"}, {1719, "h323"}, {137, "netbios"}} {
			request := fmt.Sprintf("%srequest %s %d", service.request, outside, service.port)
			send(a, inside, outside, layers.IPProtocolUDP, packet.UDP(7100, service.port, request)...)
			arrives(t, w, "a request", request)
			marker := fmt.Sprintf("of %s %d", outside, service.port)
			send(w, outside, inside, layers.IPProtocolUDP, packet.UDP(30000, 7100, "other port "+marker)...)
			send(w, outside, inside, layers.IPProtocolUDP, packet.UDP(service.port, 7100, "answer "+marker)...)
			arrives(t, a, "an answer", "answer "+marker)
			if len(a.Captured("other port "+marker)) > 0 {
				t.Errorf("the helper for port %d let a packet from another port in", service.port)
			}
		}
		// FTP (RFC 959, RFC 2428) and IRC: the client names a port of its own.
		for _, service := range []struct {
			port uint16
			line string
		}{{21, fmt.Sprintf("PORT %s,27,188\r\n", strings.ReplaceAll(inside.String(), ".", ","))},
			{21, fmt.Sprintf("EPRT |%d|%s|7100|\r\n", i+1, inside)},
			{6667, fmt.Sprintf("PRIVMSG w :\x01DCC SEND f %d 7100\x01\r\n", 1)}} {
			client, server := uint16(7200+len(service.line)), service.port
			segment := func(from uint16, to uint16, s layers.TCP) *layers.TCP {
				s.SrcPort, s.DstPort, s.Window = layers.TCPPort(from), layers.TCPPort(to), 1000
				return &s
			}
			send(a, inside, outside, layers.IPProtocolTCP, segment(client, server, layers.TCP{SYN: true, Seq: 100}))
			send(w, outside, inside, layers.IPProtocolTCP,
				segment(server, client, layers.TCP{SYN: true, ACK: true, Seq: 500, Ack: 101}))
			send(a, inside, outside, layers.IPProtocolTCP,
				segment(client, server, layers.TCP{ACK: true, Seq: 101, Ack: 501}))
			send(a, inside, outside, layers.IPProtocolTCP,
				segment(client, server, layers.TCP{ACK: true, PSH: true, Seq: 101, Ack: 501}),
				gopacket.Payload(service.line))
			arrives(t, w, "a line of the control connection", service.line)
			marker := "data of " + service.line
			send(w, outside, inside, layers.IPProtocolTCP, segment(20, 7100, layers.TCP{SYN: true, Seq: 900}),
				gopacket.Payload(marker))
			answer := "reply to " + service.line
			send(w, outside, inside, layers.IPProtocolTCP, segment(server, client,
				layers.TCP{ACK: true, PSH: true, Seq: 501, Ack: 101 + uint32(len(service.line))}),
				gopacket.Payload(answer))
			arrives(t, a, "a reply on the control connection", answer)
			if len(a.Captured(marker)) > 0 {
				t.Errorf("%q opened port 7100", service.line)
			}
		}
	}
}

// quiet keeps the kernel of pods from resetting connections that the test makes by hand.
func (p *pair) quiet(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		cmd := namespace.Command(p.Pods[pod].Namespace, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table inet quiet { chain out { type filter hook output priority 0; " +
			"tcp flags & rst == rst drop; }; }")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// TestSegmentationOffload: frames of a packet socket that the kernel is to cut into segments meet the policy like
// others, and odd ones harm nobody.
func TestSegmentationOffload(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1", "v": "n1", "w": "n2"})
	must(t, p.N1.Apply(world.GlobalPolicy("one-port", `selector: all(), types: [Ingress, Egress],
  ingress: [{action: Allow, protocol: TCP, destination: {ports: [7]}}, {action: Allow, protocol: ICMP},
    {action: Allow, protocol: UDP, destination: {ports: [7]}}],
  egress: [{action: Allow, protocol: TCP, destination: {ports: [7]}}, {action: Allow, protocol: ICMP},
    {action: Allow, protocol: UDP, destination: {ports: [7]}}]`)))
	p.enforced(t, "a", "v")
	a := packet.Open(t, p.Pods["a"].Namespace, "eth0")
	for i := range 2 {
		from := p.addresses("a")[i]
		for _, name := range []string{"v", "w"} {
			to := p.addresses(name)[i]
			frame := func(port uint16, marker string, length int) []byte {
				return packet.Frame(t, a.MAC, hostMAC, packet.IP(from, to, layers.IPProtocolTCP, 64),
					&layers.TCP{SrcPort: 7, DstPort: layers.TCPPort(port), ACK: true, PSH: true, Window: 1000},
					gopacket.Payload(marker+strings.Repeat(".", length)))
			}
			header := uint16(14 + 20 + 20*i)
			whole := packet.Offload{Kind: []byte{1, 4}[i], Size: 1000, HeaderLength: header + 20, ChecksumStart: header,
				ChecksumOffset: 16}
			denied, passes := "denied segments "+to.String(), "allowed segments "+to.String()
			must(t, a.TrySendOffload(whole, frame(9, denied, 20000)))
			must(t, a.TrySendOffload(whole, frame(7, passes, 20000)))
			arrives(t, p.ports[name], "a long frame to an allowed port", passes)
			for kind := range byte(6) {
				for _, size := range []uint16{0, 1, 8, 1400, 65535} {
					for _, length := range []int{0, 1, 3000, 40000} {
						odd := whole
						odd.Kind, odd.Size = kind, size
						_ = a.TrySendOffload(odd, frame(9, denied, length)) // the kernel may refuse it
					}
				}
			}
			must(t, a.TrySendOffload(whole, frame(7, "behind the odd ones "+to.String(), 20000)))
			arrives(t, p.ports[name], "a long frame behind odd ones", "behind the odd ones "+to.String())
			if got := p.ports[name].Captured(denied); len(got) > 0 {
				t.Errorf("%s received %d frames that policy denies: %.300s", name, len(got), got[0])
			}
		}
	}
	must(t, lab.Ping(p.Pods["w"].Namespace, p.addresses("v")[0]))
}

// TestInterfaceMadeAgain: an interface that comes again under a pod's name, with anybody behind it, has the policy and
// the source check of that name's endpoint from the first packet on.
func TestInterfaceMadeAgain(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1", "b": "n1", "v": "n1"})
	must(t, p.N1.Apply(world.GlobalPolicy("jail", "selector: role == 'jailed', types: [Egress], egress: []")))
	must(t, p.Pods["a"].EditEndpoint(func(e lab.Resource) { e.Label("role", "jailed") }))
	name, err := p.N1.Run("sh", "-c", "ip -o route get "+p.addresses("a")[0].String()+" | grep -o 'cali[0-9a-f]*'")
	must(t, err)
	name = strings.TrimSpace(name)
	v, b := p.ports["v"], p.ports["b"]
	for round := range 3 {
		must(t, namespace.Batch(p.N1.Namespace, "link del "+name,
			fmt.Sprintf("link add %s address %s type veth peer name eth0 netns %s", name, hostMAC,
				p.Pods["a"].Namespace),
			"link set "+name+" up"))
		must(t, namespace.Batch(p.Pods["a"].Namespace, "link set eth0 up"))
		again := packet.Open(t, p.Pods["a"].Namespace, "eth0")
		for began := time.Now(); time.Since(began) < 100*time.Millisecond; {
			for i, to := range p.addresses("v") {
				for _, from := range []netip.Addr{p.addresses("a")[i], p.addresses("b")[i]} {
					_ = again.TrySend(packet.Frame(t, again.MAC, hostMAC, packet.IP(from, to, layers.IPProtocolUDP, 64),
						packet.UDP(7, 9, fmt.Sprintf("%s%s, round %d", forgedText, from, round))...))
				}
			}
		}
		for i, to := range p.addresses("v") {
			marker := fmt.Sprintf("honest %s, round %d", to, round)
			b.Send(t, packet.Frame(t, b.MAC, hostMAC, packet.IP(p.addresses("b")[i], to, layers.IPProtocolUDP, 64),
				packet.UDP(7, 9, marker)...))
			arrives(t, v, "a packet of another pod", marker)
		}
	}
	if got := v.Captured(forgedText); len(got) > 0 {
		t.Errorf("%d packets passed: %s", len(got), got[0])
	}
}
