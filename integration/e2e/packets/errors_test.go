package packets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// TestErrorsAboutConnectionsOfOthers: an ICMP error passes all policy as part of the connection that it quotes. A pod
// sends errors about the connection of two others, and they do not arrive; those of the server itself do.
func TestErrorsAboutConnectionsOfOthers(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1", "b": "n1", "v": "n1"})
	a, b := p.ports["a"], p.ports["b"]
	const port = 7200
	for i, to := range p.addresses("v") {
		var client net.Conn
		var err error
		must(t, namespace.Inside(p.Pods["v"].Namespace, func() {
			var server net.PacketConn
			if server, err = net.ListenPacket("udp", netip.AddrPortFrom(to, port).String()); err == nil {
				t.Cleanup(func() { server.Close() })
				go answer(server)
			}
		}))
		must(t, err)
		eventually(t, func() error {
			return errors.Join(namespace.Inside(p.Pods["b"].Namespace, func() {
				client, err = net.Dial("udp", netip.AddrPortFrom(to, port).String())
			}), err)
		})
		t.Cleanup(func() { client.Close() })
		eventually(t, func() error { return exchange(client) })

		from, quoted := p.addresses("a")[i], p.addresses("b")[i]
		source := client.LocalAddr().(*net.UDPAddr).Port
		about := packet.IP(quoted, to, layers.IPProtocolUDP, 63)
		quote := packet.Bytes(t, about, append([]gopacket.SerializableLayer{about.(gopacket.SerializableLayer)},
			packet.UDP(uint16(source), port, "quoted by another")...)...)
		for _, message := range icmpErrors(to) {
			a.Send(t, packet.Frame(t, a.MAC, hostMAC, packet.IP(from, quoted, message.protocol, 64),
				append(message.header, gopacket.Payload(quote))...))
		}
		a.Send(t, packet.Frame(t, a.MAC, hostMAC, packet.IP(from, quoted, layers.IPProtocolUDP, 64),
			datagram(9)("the last")...))
		arrives(t, b, "UDP", "the last")
		if n := len(b.Captured("quoted by another")); n != 0 {
			t.Errorf("%d errors of another pod about the connection with %s arrive", n, to)
		}
		if err := exchange(client); err != nil {
			t.Errorf("the connection with %s: %v", to, err)
		}
		b.Forget()
	}

	t.Run("errors of the pod itself", func(t *testing.T) {
		_, err := p.N1.Run("nft", fmt.Sprintf(`table inet other { chain pre { type nat hook prerouting priority -100; `+
			`ip daddr 10.96.0.9 dnat to %s; ip6 daddr fd96::9 dnat to %s; }; }`, p.addresses("v")[0],
			p.addresses("v")[1]))
		must(t, err)
		for _, to := range append(p.addresses("v"), netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd96::9")) {
			eventually(t, func() error {
				var client net.Conn
				if err := errors.Join(namespace.Inside(p.Pods["b"].Namespace, func() {
					client, err = net.Dial("udp", netip.AddrPortFrom(to, port+1).String())
				}), err); err != nil {
					return err
				}
				defer client.Close()
				if err := exchange(client); !errors.Is(err, unix.ECONNREFUSED) {
					return fmt.Errorf("a closed port of %s: %v", to, err)
				}
				return nil
			})
		}
	})
}

func answer(server net.PacketConn) {
	buf := make([]byte, 100)
	for {
		n, from, err := server.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = server.WriteTo(buf[:n], from)
	}
}

func exchange(client net.Conn) error {
	if err := client.SetDeadline(time.Now().Add(world.Limit / 10)); err != nil {
		return err
	}
	if _, err := client.Write([]byte("question")); err != nil {
		return err
	}
	_, err := client.Read(make([]byte, 100))
	return err
}

type icmpError struct {
	protocol layers.IPProtocol
	header   []gopacket.SerializableLayer
}

// icmpErrors are messages about packets to an address, but for the quoted packet.
func icmpErrors(to netip.Addr) (list []icmpError) {
	if to.Is4() {
		for _, x := range [][2]uint8{{3, 1}, {3, 3}, {3, 13}, {4, 0}, {5, 1}, {11, 0}, {12, 0}} {
			list = append(list, icmpError{layers.IPProtocolICMPv4, []gopacket.SerializableLayer{
				&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(x[0], x[1])}}})
		}
		return append(list, icmpError{layers.IPProtocolICMPv4, []gopacket.SerializableLayer{
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4), Seq: 576}}})
	}
	for _, x := range []struct {
		kind, code uint8
		mtu        string
	}{{1, 4, "\x00\x00\x00\x00"}, {1, 0, "\x00\x00\x00\x00"}, {2, 0, "\x00\x00\x05\x00"}, {3, 0, "\x00\x00\x00\x00"},
		{4, 0, "\x00\x00\x00\x00"}} {
		list = append(list, icmpError{layers.IPProtocolICMPv6, []gopacket.SerializableLayer{
			&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(x.kind, x.code)}, gopacket.Payload(x.mtu)}})
	}
	return list
}
