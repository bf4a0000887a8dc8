package packets

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// TestDSCP: packets of a workload and of a host endpoint get their DSCP when they leave the cluster, in both families,
// also those to other nodes; packets to pods keep theirs. The bits of ECN stay, and IPv4's checksum fits.
func TestDSCP(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1", "b": "n1", "c": "n2"})
	node2 := packet.Open(t, p.N2.Namespace, "eth0")
	must(t, p.Pods["a"].EditEndpoint(func(r lab.Resource) {
		r["spec"].(map[string]any)["qosControls"] = map[string]any{"dscp": "EF"}
	}))
	must(t, p.N1.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: n1, annotations: {qos.projectcalico.org/dscp: "10"}}
spec: {node: n1, interfaceName: eth0, expectedIPs: ["%s", "%s"], profiles: [projectcalico-default-allow]}
`, p.N1.IP4, p.N1.IP6)))
	const own, ect = 8, 2 // the workloads' own DSCP, and their ECN
	n := 0
	fromPod := func(name string, to netip.Addr, marker string) {
		ip := packet.IP(p.addresses(name)[map[bool]int{true: 0, false: 1}[to.Is4()]], to, layers.IPProtocolUDP, 64)
		if v4, ok := ip.(*layers.IPv4); ok {
			v4.TOS = own<<2 | ect
		} else {
			ip.(*layers.IPv6).TrafficClass = own<<2 | ect
		}
		port := p.ports[name]
		port.Send(t, packet.Frame(t, port.MAC, hostMAC, ip, packet.UDP(uint16(3000+n), 7, marker)...))
	}
	fromHost := func(_ string, to netip.Addr, marker string) {
		var err error
		must(t, namespace.Inside(p.N1.Namespace, func() {
			var c net.Conn
			if c, err = net.Dial("udp", netip.AddrPortFrom(to, 7).String()); err == nil {
				_, err = c.Write([]byte(marker))
				_ = c.Close()
			}
		}))
		must(t, err)
	}
	// received returns DSCP and ECN of a packet on its arrival.
	received := func(send func(string, netip.Addr, string), from string, to netip.Addr,
		at *packet.Port) (dscp, ecn uint8) {
		n++
		marker := fmt.Sprintf("dscp %d.", n)
		send(from, to, marker)
		got := arrives(t, at, "a packet from "+from+" to "+to.String(), marker)
		if len(got) == 0 {
			return 255, 255
		}
		return classOf(t, got[0])
	}
	eventually(t, func() error {
		for _, s := range []struct {
			send func(string, netip.Addr, string)
			want uint8
		}{{fromPod, 46}, {fromHost, 10}} {
			if got, _ := received(s.send, "a", p.outside()[0], p.outsider); got != s.want {
				return fmt.Errorf("the DSCP is %d, not %d", got, s.want)
			}
		}
		return nil
	})
	nodes := []netip.Addr{p.N2.IP4, p.N2.IP6}
	for family := range 2 {
		for _, c := range []struct {
			from string
			to   netip.Addr
			at   *packet.Port
			want uint8
		}{
			{"a", p.outside()[family], p.outsider, 46},
			{"a", nodes[family], node2, 46},
			{"a", p.addresses("c")[family], p.ports["c"], own},
			{"a", p.addresses("b")[family], p.ports["b"], own},
			{"b", p.outside()[family], p.outsider, own},
		} {
			if dscp, ecn := received(fromPod, c.from, c.to, c.at); dscp != c.want || ecn != ect {
				t.Errorf("from %s to %s: DSCP %d, ECN %d; want %d and %d", c.from, c.to, dscp, ecn, c.want, ect)
			}
		}
		if dscp, _ := received(fromHost, "the host", p.outside()[family], p.outsider); dscp != 10 {
			t.Errorf("from the host to %s: DSCP %d, want 10", p.outside()[family], dscp)
		}
	}
}

// classOf returns the DSCP and ECN of a packet, whose header has a correct checksum.
func classOf(t *testing.T, got gopacket.Packet) (dscp, ecn uint8) {
	t.Helper()
	if v6, ok := got.NetworkLayer().(*layers.IPv6); ok {
		return v6.TrafficClass >> 2, v6.TrafficClass & 3
	}
	v4 := got.NetworkLayer().(*layers.IPv4)
	var sum uint32
	for i := 0; i < len(v4.Contents); i += 2 {
		sum += uint32(v4.Contents[i])<<8 | uint32(v4.Contents[i+1])
	}
	if sum = sum>>16 + sum&0xffff; sum != 0xffff {
		t.Errorf("the checksum of %v is wrong", v4)
	}
	return v4.TOS >> 2, v4.TOS & 3
}
