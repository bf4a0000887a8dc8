package ruleset

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// markTable returns a table that sets mark 1 on a packet that meets the conditions.
func markTable(m ...Match) *Table {
	t := NewTable()
	t.SetChain(&Chain{Name: "x", Base: &Base{Hook: Forward, Type: Filter}, Rules: []Rule{mark(1, m...)}})
	return t
}

func TestMatches(t *testing.T) {
	addr := netip.MustParseAddr
	ping := Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: protoICMP, ICMPType: 8}
	unreachable := Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: protoICMP, ICMPType: 3,
		ICMPCode: 1}
	six := Packet{Source: addr("fd00::1"), Destination: addr("fd00::2"), Protocol: protoTCP, SourcePort: 1024,
		DestinationPort: 443}
	sctp := Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: protoSCTP, DestinationPort: 443}
	hop := Packet{Source: addr("fe80::1"), Destination: addr("fe80::2"), Protocol: protoICMPv6, HopLimit: 255}
	udp53 := Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: protoUDP, DestinationPort: 53}
	vxlan := udp53
	vxlan.DestinationPort, vxlan.VXLAN, vxlan.VNI = 4789, true, 4096
	related := ping
	related.State = ConnRelated
	dnatted := six
	dnatted.State, dnatted.Status = ConnEstablished, ConnDNAT|1<<3
	icmp := func(low, mask uint32) Match { return Match{Field: ICMP, Low: low, Mask: mask} }
	tests := []struct {
		name   string
		packet Packet
		match  Match
		want   bool
	}{
		{"ICMP type", ping, icmp(0x800, 0xff00), true},
		{"ICMP type with any code", unreachable, icmp(0x300, 0xff00), true},
		{"ICMP type and code", unreachable, icmp(0x301, 0xffff), true},
		{"ICMP type and another code", unreachable, icmp(0x303, 0xffff), false},
		{"not type and code is true if only the code differs", unreachable, not(icmp(0x303, 0xffff)), true},
		{"not type and code", unreachable, not(icmp(0x301, 0xffff)), false},
		{"TCP has no ICMP type", six, icmp(0, 0xff00), false},
		{"TCP has no ICMP type that is another", six, not(icmp(0x800, 0xff00)), false},
		{"ICMP has no port", ping, Match{Field: DestinationPort}, false},
		{"ICMP has no port that is another", ping, not(Match{Field: DestinationPort, Low: 80}), false},
		{"SCTP has ports", sctp, Match{Field: DestinationPort, Low: 443}, true},
		{"SCTP is not TCP", sctp, tcp, false},
		{"source port", six, Match{Field: SourcePort, Low: 1024, High: 1025}, true},
		{"IPv6 network", six, Match{Field: Source, Prefix: netip.MustParsePrefix("fd00::/8")}, true},
		{"IPv6 packet, IPv4 network", six, net4(Source, "0.0.0.0/0"), false},
		{"IPv6 packet, not IPv4 network", six, not(net4(Source, "10.0.0.0/8")), false},
		{"IPv4 packet, IPv6 network", ping, Match{Field: Source, Prefix: netip.MustParsePrefix("::/0")}, false},
		{"family", six, ipv6, true},
		{"not family", six, not(ipv4), true},
		{"related", related, Match{Field: ConnState, Mask: ConnEstablished | ConnRelated}, true},
		{"not related", related, not(Match{Field: ConnState, Mask: ConnEstablished | ConnRelated}), false},
		{"a bit among others of the status", dnatted, Match{Field: ConnStatus, Mask: ConnDNAT}, true},
		{"trap: not DNATed is a test of the bit, not of the word", dnatted,
			not(Match{Field: ConnStatus, Mask: ConnDNAT}), false},
		{"hop limit", hop, Match{Field: HopLimit, Low: 255}, true},
		{"another hop limit", hop, Match{Field: HopLimit, Low: 254}, false},
		{"not another hop limit", hop, not(Match{Field: HopLimit, Low: 254}), true},
		{"network of VXLAN", vxlan, Match{Field: VNI, Low: 4096}, true},
		{"another network of VXLAN", vxlan, Match{Field: VNI, Low: 4097}, false},
		{"not another network of VXLAN", vxlan, not(Match{Field: VNI, Low: 4097}), true},
		{"a datagram without VXLAN has no network", udp53, Match{Field: VNI}, false},
		{"a datagram without VXLAN has no network that is another", udp53, not(Match{Field: VNI, Low: 4096}), false},
		{"a missing set", ping, inSet(Source, "none"), false},
		{"not in a missing set", ping, not(inSet(Source, "none")), false},
		{"an unknown field", ping, Match{Field: 99, Not: true}, false},
	}
	for _, test := range tests {
		if got := markTable(test.match).Eval(nil, Forward, test.packet, nil).Packet.Mark == 1; got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// A lookup in a set finds the same as a scan of all elements.
func TestCovers(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		address := func(size int) netip.Addr {
			b := make([]byte, size)
			binary.BigEndian.PutUint32(b[size-4:], r.Uint32N(64)<<26|r.Uint32N(4))
			a, _ := netip.AddrFromSlice(b)
			return a
		}
		for _, s := range []Set{{Type: Addresses4, Interval: true}, {Type: Addresses6, Interval: true},
			{Type: Addresses4}} {
			set := newElements(s)
			size := map[SetType]int{Addresses4: 4, Addresses6: 16}[s.Type]
			list := []netip.Prefix{}
			for range r.IntN(10) {
				bits := size * 8
				if s.Interval {
					bits -= r.IntN(33)
				}
				p := netip.PrefixFrom(address(size), bits)
				if set.add(Element{Prefix: p}) {
					list = append(list, p)
				}
			}
			if len(list) > 1 && r.IntN(2) == 0 {
				set.remove(Element{Prefix: list[0]})
				list = list[1:]
			}
			for range 20 {
				a, want := address(size), false
				for _, p := range list {
					want = want || p.Contains(a)
				}
				if got := set.(interface{ covers(netip.Addr) bool }).covers(a); got != want {
					t.Fatalf("seed %d: %v in %v: %v", seed, a, list, got)
				}
			}
			if set.(interface{ covers(netip.Addr) bool }).covers(address(20 - size)) {
				t.Fatal("an address of the other family is in the set")
			}
		}
		ports, want := &portRanges{}, map[uint16]bool{}
		for first := r.IntN(5); first < 65536; first += 1 + r.IntN(9000) {
			last := min(65535, first+r.IntN(3)*r.IntN(9000))
			ports.add(Element{Low: uint16(first), High: uint16(last)})
			for ; first <= last; first++ {
				want[uint16(first)] = true
			}
		}
		for port := range 65536 {
			if ports.covers(uint16(port)) != want[uint16(port)] {
				t.Fatalf("seed %d: port %d: %v", seed, port, !want[uint16(port)])
			}
		}
	}
}

func TestPortAtTheEnds(t *testing.T) {
	for _, e := range []Element{{Low: 65535, High: 65535}, {Low: 0, High: 65535}, {Low: 0}, {Low: 80, High: 65535}} {
		ports := &portRanges{}
		ports.add(e)
		for _, port := range []uint16{0, 1, 79, 80, 65534, 65535} {
			if got, want := ports.covers(port), port >= e.Low && port <= max(e.Low, e.High); got != want {
				t.Errorf("%s: %d: %v", fmt.Sprint(e), port, got)
			}
		}
	}
}
