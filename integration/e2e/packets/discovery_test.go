package packets

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/packet"
)

var (
	gateway   = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee") // of every pod
	allNodes  = netip.MustParseAddr("ff02::1")
	noAddress = netip.IPv6Unspecified()
)

// icmp6 is a message of ICMPv6.
func icmp6(t *testing.T, kind uint8, from, to netip.Addr, hops uint8, body string) []byte {
	t.Helper()
	ip := packet.IP(from, to, layers.IPProtocolICMPv6, hops)
	return packet.Bytes(t, ip, ip.(gopacket.SerializableLayer),
		&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}, gopacket.Payload(body))
}

// TestDiscovery: what a pod sends for the discovery of neighbours passes the source check, is not forwarded, and does
// not fill the host's table of neighbours.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1", "b": "n1", "v": "n1"})
	a, v := p.ports["a"], p.ports["v"]
	own, other, victim := p.Pods["a"].IP6(), p.Pods["b"].IP6(), p.Pods["v"].IP6()
	send := func(kind uint8, from, to netip.Addr, hops uint8, body string) {
		a.Send(t, packet.Ethernet(a.MAC, hostMAC, icmp6(t, kind, from, to, hops, body)))
	}
	ping := func(to netip.Addr) {
		t.Helper()
		eventually(t, func() error {
			_, err := p.N1.Run("ip", "netns", "exec", p.Pods["a"].Namespace, "ping", "-6", "-c1", "-W1", to.String())
			return err
		})
	}
	ping(victim) // so that its neighbour is known, and that of the outsider
	ping(p.outside()[1])
	t.Run("not forwarded past the source check", func(t *testing.T) {
		for _, kind := range []uint8{130, 131, 132, 133, 134, 135, 136, 137, 143} {
			for _, hops := range []uint8{2, 64, 255} {
				send(kind, other, victim, hops, fmt.Sprintf("from another %d %d", kind, hops))
				send(kind, other, p.outside()[1], hops, fmt.Sprintf("from another %d %d", kind, hops))
			}
		}
		send(128, own, victim, 64, "0000from itself")
		send(128, own, p.outside()[1], 64, "0000from itself")
		arrives(t, v, "an echo request", "from itself")
		arrives(t, p.outsider, "an echo request", "from itself")
		for _, got := range slices.Concat(v.Captured("from another"), p.outsider.Captured("from another")) {
			t.Errorf("arrives: %v", got.Data())
		}
	})
	t.Run("the unspecified source", func(t *testing.T) {
		answered := func() string {
			out, err := p.N1.Run("cat", "/proc/net/snmp6")
			must(t, err)
			return regexp.MustCompile(`Icmp6OutEchoReplies\s+(\d+)`).FindStringSubmatch(out)[1]
		}
		_, err := p.N1.Run("ip", "-6", "route", "replace", "default", "via", p.outside()[1].String())
		must(t, err) // by which the answers would go
		before := answered()
		for _, to := range []netip.Addr{gateway, allNodes, p.N1.IP6} {
			send(128, noAddress, to, 255, "0000from nobody")
		}
		// Duplicate address detection of the gateway's address, which the host defends.
		a.Forget()
		send(135, noAddress, netip.MustParseAddr("ff02::1:ffee:eeee"), 255, "0000"+string(gateway.AsSlice()))
		arrives(t, a, "the answer to duplicate address detection", "\x00\x00\x00"+string(gateway.AsSlice()))
		if now := answered(); now != before {
			t.Errorf("the host answered echo requests from ::, %s before, %s now", before, now)
		}
	})
	entries := func(of string) int {
		out, err := p.N1.Run("ip", "-6", "neigh", "show", "nud", "all")
		must(t, err)
		return strings.Count(out, of)
	}
	solicit := func(from netip.Addr) {
		send(135, from, gateway, 255, "0000"+string(gateway.AsSlice())+"\x01\x01"+string(a.MAC))
	}
	t.Run("the source of a solicitation", func(t *testing.T) {
		a.Forget()
		for i := range 8 {
			solicit(netip.MustParseAddr(fmt.Sprintf("2001:db8::bad:%x", i+1)))
		}
		solicit(own)
		arrives(t, a, "an answer", "\x00\x00\x00"+string(gateway.AsSlice()))
		if n := entries("2001:db8::bad:"); n != 0 {
			t.Errorf("the host has %d neighbours with addresses that are none of the pod's", n)
		}
	})
	t.Run("forged link-local sources", func(t *testing.T) {
		for i := range 300 {
			solicit(netip.MustParseAddr(fmt.Sprintf("fe80::bad:%x", i+1)))
			send(128, netip.MustParseAddr(fmt.Sprintf("fe80::dab:%x", i+1)), gateway, 64, "0000")
		}
		// In the second that this takes at most on a busy machine, 40 pass: 10 a second and a burst of 30.
		if n := entries("fe80::bad:") + entries("fe80::dab:"); n == 0 || n > 100 {
			t.Errorf("the host has %d forged neighbours", n)
		}
		out, err := p.N1.Run("nft", "list", "ruleset")
		must(t, err)
		if !regexp.MustCompile(`counter packets [1-9]\d+ .*too many packets of neighbour discovery`).MatchString(out) {
			t.Error("no rule counts what was too much")
		}
		// Another pod's budget is its own.
		_, err = p.N1.Run("ip", "netns", "exec", p.Pods["v"].Namespace, "ping", "-6", "-c1", "-W9", other.String())
		must(t, err)
	})
}
