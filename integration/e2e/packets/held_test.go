package packets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// attack is a pod that sends forged packets, and the places where none of them may arrive.
type attack struct {
	*pair
	from   *packet.Port
	places map[string]*packet.Port
	host   *net.UDPConn // of node n1, port 7777
	sent   int
}

// hostPort is a port of node n1 that a program listens on.
const hostPort = 7777

// newAttack makes the attacker a, the pods v on its node and w on the other, and a program on its node.
func newAttack(t *testing.T) *attack {
	t.Helper()
	p := newPair(t, map[string]string{"a": "n1", "b": "n1", "v": "n1", "w": "n2"})
	k := &attack{pair: p, from: p.ports["a"], places: map[string]*packet.Port{"v": p.ports["v"], "w": p.ports["w"],
		"the underlay": p.outsider}}
	var err error
	inside := namespace.Inside(p.N1.Namespace, func() {
		k.host, err = net.ListenUDP("udp", &net.UDPAddr{Port: hostPort})
	})
	must(t, errors.Join(inside, err))
	t.Cleanup(func() { _ = k.host.Close() })
	return k
}

// forgedText begins the payload of packets that must not arrive.
const forgedText = "forged: "

// nothingArrives sends an honest packet to each place behind the forged ones, and fails the test if one of those had
// arrived by then.
func (k *attack) nothingArrives(t *testing.T) {
	t.Helper()
	honest := func(i int, to netip.Addr, port uint16) []byte {
		return packet.Frame(t, k.from.MAC, hostMAC, packet.IP(k.addresses("a")[i], to, layers.IPProtocolUDP, 64),
			packet.UDP(5, port, "honest "+to.String())...)
	}
	for i := range 2 {
		for name, to := range map[string]netip.Addr{"v": k.addresses("v")[i], "w": k.addresses("w")[i],
			"the underlay": k.outside()[i]} {
			eventually(t, func() error {
				k.from.Send(t, honest(i, to, 7))
				if len(k.places[name].Captured("honest "+to.String())) == 0 {
					return fmt.Errorf("an honest packet to %s at %s does not arrive", name, to)
				}
				return nil
			})
		}
	}
	for name, port := range k.places {
		seen := map[string]bool{}
		for _, got := range port.Captured(forgedText) {
			payload := string(got.Data())
			payload = payload[strings.Index(payload, forgedText):]
			if !seen[payload] {
				t.Errorf("%s received %q", name, payload)
			}
			seen[payload] = true
		}
	}
	buf := make([]byte, 256)
	k.from.Send(t, honest(0, k.N1.IP4, hostPort))
	k.from.Send(t, honest(1, k.N1.IP6, hostPort))
	for honest := 0; honest < 2; {
		n, from, err := k.host.ReadFromUDPAddrPort(buf)
		must(t, err)
		if strings.HasPrefix(string(buf[:n]), "honest") {
			honest++
		} else {
			t.Errorf("the host received %q from %s", buf[:n], from)
		}
	}
	if k.sent == 0 {
		t.Error("nothing was sent")
	}
}

// TestForgedSources: no packet of a pod leaves its interface with a source that is not the pod's.
func TestForgedSources(t *testing.T) {
	t.Parallel()
	k := newAttack(t)
	must(t, k.N1.Apply(world.GlobalPolicy("allowed", `selector: all(), types: [Ingress, Egress],
  ingress: [{action: Allow}], egress: [{action: Allow}]`)))
	sources := map[string][]string{
		"another pod of the node":     text(k.addresses("b")),
		"the receiver":                text(k.addresses("v")),
		"a pod of another node":       text(k.addresses("w")),
		"the node":                    {k.N1.IP4.String(), k.N1.IP6.String()},
		"another node":                {k.N2.IP4.String(), k.N2.IP6.String()},
		"the router":                  text(k.outside()),
		"nobody on the underlay":      {"10.200.1.77", "fd00:200:1::77"},
		"the Internet":                {"198.51.100.7", "2001:db8::7"},
		"a free address of the block": {k.addresses("a")[0].Next().Next().Next().Next().String(), "fd00:244::1:2:3:4"},
		"a loopback address":          {"127.0.0.1", "127.0.0.77", "::1"},
		"no address":                  {"0.0.0.0", "::"},
		"this network":                {"0.0.0.7"},
		"multicast":                   {"224.0.0.5", "ff02::5", "ff0e::5"},
		"broadcast":                   {"255.255.255.255", "10.200.1.255"},
		"class E":                     {"240.0.0.1"},
		"link-local":                  {"169.254.1.1", "169.254.7.7"},
		"IPv4-mapped":                 {"::ffff:10.0.0.1", "::ffff:127.0.0.1"},
		"NAT64":                       {"64:ff9b::7f00:1", "64:ff9b::a00:1"},
		"6to4":                        {"2002:a00:1::1"},
		"site-local":                  {"fec0::7"},
		"the gateway of pods":         {"fe80::ecee:eeff:feee:eeee"},
	}
	for what, list := range sources {
		for _, source := range list {
			from := netip.MustParseAddr(source)
			family := 0
			if from.Is6() {
				family = 1
			}
			for _, to := range []netip.AddrPort{at(k.addresses("v")[family], 7), at(k.addresses("w")[family], 7),
				at(k.outside()[family], 7), at([]netip.Addr{k.N1.IP4, k.N1.IP6}[family], hostPort)} {
				for _, l := range []struct {
					protocol layers.IPProtocol
					above    []gopacket.SerializableLayer
				}{
					{layers.IPProtocolUDP, packet.UDP(7, to.Port(), forgedText+what+" "+source)},
					{layers.IPProtocolTCP, segment(to.Port())(forgedText + what + " " + source)},
					{layers.IPProtocolGRE,
						[]gopacket.SerializableLayer{gopacket.Payload(forgedText + what + " " + source)}},
				} {
					k.from.Send(t, packet.Frame(t, k.from.MAC, hostMAC, packet.IP(from, to.Addr(), l.protocol, 64),
						l.above...))
					k.sent++
				}
			}
		}
	}
	k.nothingArrives(t)
}

func text(list []netip.Addr) (texts []string) {
	for _, a := range list {
		texts = append(texts, a.String())
	}
	return texts
}

var at = netip.AddrPortFrom
