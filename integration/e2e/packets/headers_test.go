package packets

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/packet"
)

// TestOddHeaders: a policy that allows one port of UDP lets nothing else through, whatever the headers.
func TestOddHeaders(t *testing.T) {
	t.Parallel()
	k := newAttack(t)
	must(t, k.N1.Apply(world.GlobalPolicy("one-port", fmt.Sprintf(`selector: all(), types: [Ingress, Egress],
  ingress: [{action: Allow, protocol: UDP, destination: {ports: [7, %d]}}],
  egress: [{action: Allow, protocol: UDP, destination: {ports: [7, %d]}}]`, hostPort, hostPort))))
	k.enforced(t, "a", "v")
	for i, to := range []netip.Addr{k.addresses("v")[0], k.addresses("v")[1], k.addresses("w")[0], k.addresses("w")[1],
		k.outside()[0], k.outside()[1]} {
		k.oddHeaders(t, k.addresses("a")[i%2], to)
	}
	k.nothingArrives(t)
	for i, to := range []netip.Addr{k.addresses("v")[0], k.addresses("w")[0]} {
		marker := fmt.Sprintf("in fragments to %s", to)
		for _, f := range inFragments(t, k.from, k.addresses("a")[0], to, 7, marker, false) {
			k.from.Send(t, f)
		}
		arrives(t, k.places[[]string{"v", "w"}[i]], "a datagram in fragments", marker)
	}
}

// oddHeaders sends packets that only a wrong reading of their headers allows.
func (k *attack) oddHeaders(t *testing.T, from, to netip.Addr) {
	send := func(what string, protocol layers.IPProtocol, edit func(gopacket.NetworkLayer),
		above ...gopacket.SerializableLayer) {
		ip := packet.IP(from, to, protocol, 64)
		if edit != nil {
			edit(ip)
		}
		k.from.Send(t, packet.Frame(t, k.from.MAC, hostMAC, ip,
			append(above, gopacket.Payload(" "+forgedText+what+" to "+to.String()))...))
		k.sent++
	}
	udp := func(port uint16) gopacket.Payload {
		ip := packet.IP(from, to, layers.IPProtocolUDP, 64)
		return packet.Bytes(t, ip, packet.UDP(7, port, forgedText+"behind other headers, to "+to.String())...)
	}
	for n := range 256 {
		switch layers.IPProtocol(n) {
		case layers.IPProtocolUDP, layers.IPProtocolIPv6Fragment, layers.IPProtocolIPv6HopByHop,
			layers.IPProtocolIPv6Routing, layers.IPProtocolIPv6Destination, layers.IPProtocolAH:
			continue // below, with whole headers
		}
		send(fmt.Sprint("protocol ", n), layers.IPProtocol(n), nil, gopacket.Payload(ports(7, 7)))
	}
	for flags := range 64 {
		s := &layers.TCP{SrcPort: 7, DstPort: 7, Window: 100, FIN: flags&1 > 0, SYN: flags&2 > 0, RST: flags&4 > 0,
			PSH: flags&8 > 0, ACK: flags&16 > 0, URG: flags&32 > 0}
		send(fmt.Sprint("TCP, flags ", flags), layers.IPProtocolTCP, nil, s)
	}
	for _, port := range []uint16{0, 9} {
		send(fmt.Sprint("UDP to port ", port), layers.IPProtocolUDP, nil,
			&layers.UDP{SrcPort: 7, DstPort: layers.UDPPort(port)})
		// Without a checksum, with a length of nothing and of too much.
		for _, length := range []uint16{0, 8, 65535} {
			header := append(ports(7, port), byte(length>>8), byte(length), 0, 0)
			send(fmt.Sprintf("UDP to port %d, length %d", port, length), layers.IPProtocolUDP, nil,
				gopacket.Payload(header))
		}
	}
	for kind := range 32 { // SCTP chunks (RFC 9260) and DCCP packets (RFC 4340)
		association := &layers.SCTP{SrcPort: 7, DstPort: 7}
		if kind != 1 { // INIT
			association.VerificationTag = 7
		}
		what := fmt.Sprint("SCTP, chunk ", kind)
		length := 4 + len(" "+forgedText+what+" to "+to.String()) // of the chunk, with the payload behind it
		send(what, layers.IPProtocolSCTP, nil, association,
			gopacket.Payload([]byte{byte(kind), 0, byte(length >> 8), byte(length)}))
		send(fmt.Sprint("DCCP, type ", kind), 33, nil,
			gopacket.Payload(append(ports(7, 7), 4, 0, 0, 0, byte(kind<<1|1), 0, 0, 1, 0, 0, 0, 1)))
	}
	for _, f := range inFragments(t, k.from, from, to, 9, forgedText+"fragments to "+to.String(), false) {
		k.from.Send(t, f)
	}
	for _, f := range inFragments(t, k.from, from, to, 9, forgedText+"reversed fragments to "+to.String(), true) {
		k.from.Send(t, f)
	}
	// The second fragment writes the header again, with another port (RFC 1858, RFC 5722).
	hidden := inFragments(t, k.from, from, to, 7, forgedText+"an allowed header that is overwritten, to "+to.String(),
		false)
	rewritten := inFragments(t, k.from, from, to, 9, forgedText+"an overlapping fragment to "+to.String(), false)
	k.from.Send(t, hidden[0])
	k.from.Send(t, overlapping(rewritten[0]))
	k.from.Send(t, rewritten[len(rewritten)-1])
	k.from.Send(t, inFragments(t, k.from, from, to, 9, forgedText+"a fragment without the first one, to "+to.String(),
		false)[1])

	if from.Is4() {
		for name, option := range map[string]uint8{"loose": 131, "strict": 137, "record": 7} {
			send("UDP to port 9 by a "+name+" source route", layers.IPProtocolUDP, func(ip gopacket.NetworkLayer) {
				h := ip.(*layers.IPv4)
				h.Options = []layers.IPv4Option{{OptionType: option, OptionLength: 7, OptionData: append([]byte{4},
					h.DstIP...)}, {OptionType: 0}}
			}, &layers.UDP{SrcPort: 7, DstPort: 9})
		}
	} else {
		for _, chain := range []struct {
			what    string
			headers []byte // kinds, outermost first
			kind    byte   // of a routing header
		}{
			{"an atomic fragment", []byte{44}, 0}, {"hop-by-hop options", []byte{0}, 0},
			{"destination options", []byte{60}, 0}, {"many destination options", many(60, 40), 0},
			{"routing type 0", []byte{43}, 0}, {"routing type 2", []byte{43}, 2}, {"routing type 4", []byte{43}, 4},
			{"all", []byte{0, 60, 43, 44, 60}, 4},
		} {
			data := extended(chain.headers, chain.kind, byte(layers.IPProtocolUDP), udp(9))
			ip := packet.IP(from, to, layers.IPProtocol(chain.headers[0]), 64)
			k.from.Send(t, packet.Frame(t, k.from.MAC, hostMAC, ip, gopacket.Payload(data)))
			k.sent++
		}
	}
	for _, mac := range []net.HardwareAddr{{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, {1, 0, 0x5e, 0, 0, 1},
		k.places["v"].MAC} {
		k.from.Send(t, packet.Frame(t, k.from.MAC, mac, packet.IP(from, to, layers.IPProtocolUDP, 64),
			packet.UDP(7, 9, forgedText+"by "+mac.String()+" to "+to.String())...))
	}
	tagged := packet.Frame(t, k.from.MAC, hostMAC, packet.IP(from, to, layers.IPProtocolUDP, 64),
		packet.UDP(7, 7, forgedText+"in a VLAN to "+to.String())...)
	for _, tag := range []uint16{0, 7} { // priority alone is the untagged network
		port := uint16(7)
		if tag == 0 {
			port = 9
		}
		f := append([]byte(nil), tagged[:12]...)
		f = append(f, 0x81, 0, byte(tag>>8), byte(tag))
		f = append(f, tagged[12:]...)
		binary.BigEndian.PutUint16(f[len(f)-len(tagged)+14+map[bool]int{true: 22, false: 42}[from.Is4()]:], port)
		k.from.Send(t, f)
	}
}

func ports(from, to uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
}

func many(b byte, n int) (list []byte) {
	for range n {
		list = append(list, b)
	}
	return list
}

// extended puts IPv6 extension headers (RFC 8200) before a packet's payload. kind is the type of routing headers.
func extended(headers []byte, kind, protocol byte, payload []byte) (data []byte) {
	for i, h := range headers {
		next := protocol
		if i+1 < len(headers) {
			next = headers[i+1]
		}
		switch h {
		case 44: // offset 0, no more
			data = append(data, next, 0, 0, 0, 0, 0, 0, byte(i+1))
		case 43: // no segment is left
			data = append(data, next, 0, kind, 0, 0, 0, 0, 0)
		default: // padding of 6 bytes
			data = append(data, next, 0, 1, 4, 0, 0, 0, 0)
		}
	}
	return append(data, payload...)
}

var nextID uint32

// inFragments are the frames of a datagram in three fragments, each of which has the payload: a router cuts the
// datagram again into parts of the longest fragment's size.
func inFragments(t *testing.T, port *packet.Port, from, to netip.Addr, dport uint16, payload string,
	reversed bool) (frames [][]byte) {
	t.Helper()
	nextID++
	const size = 128
	padded := fmt.Sprintf("%-*s%-*s%s", size-8, payload, size, payload, payload)
	all := packet.Bytes(t, packet.IP(from, to, layers.IPProtocolUDP, 64), packet.UDP(7, dport, padded)...)
	for _, cut := range [][2]int{{0, size}, {size, 2 * size}, {2 * size, len(all)}} {
		data, more := all[cut[0]:cut[1]], cut[1] < len(all)
		if from.Is4() {
			ip := packet.IP(from, to, layers.IPProtocolUDP, 64).(*layers.IPv4)
			ip.Id, ip.FragOffset = uint16(nextID), uint16(cut[0]/8)
			if more {
				ip.Flags = layers.IPv4MoreFragments
			}
			frames = append(frames, packet.Frame(t, port.MAC, hostMAC, ip, gopacket.Payload(data)))
			continue
		}
		header := []byte{byte(layers.IPProtocolUDP), 0, byte(cut[0] >> 8), byte(cut[0])}
		if more {
			header[3] |= 1
		}
		header = binary.BigEndian.AppendUint32(header, nextID)
		ip := packet.IP(from, to, layers.IPProtocolIPv6Fragment, 64)
		frames = append(frames, packet.Frame(t, port.MAC, hostMAC, ip, gopacket.Payload(append(header, data...))))
	}
	if reversed {
		frames[0], frames[2] = frames[2], frames[0]
	}
	return frames
}

// overlapping gives a first fragment the datagram of the one before.
func overlapping(frame []byte) []byte {
	f := append([]byte(nil), frame...)
	if f[14]>>4 == 4 {
		binary.BigEndian.PutUint16(f[18:], uint16(nextID-1))
		sum := uint32(0)
		f[24], f[25] = 0, 0
		for i := 14; i < 34; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(f[i:]))
		}
		sum = sum&0xffff + sum>>16
		binary.BigEndian.PutUint16(f[24:], ^uint16(sum&0xffff+sum>>16))
		return f
	}
	binary.BigEndian.PutUint32(f[14+40+4:], nextID-1)
	return f
}
