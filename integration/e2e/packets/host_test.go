package packets

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// delivered are the packets that a host delivers to its programs.
type delivered struct{ sockets []int }

// deliveredIn opens raw sockets for the protocols in a namespace.
func deliveredIn(t *testing.T, ns string, protocols ...layers.IPProtocol) *delivered {
	t.Helper()
	d := &delivered{}
	var err error
	inside := namespace.Inside(ns, func() {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			for _, protocol := range protocols {
				fd, e := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(protocol))
				if e == nil {
					d.sockets = append(d.sockets, fd)
				}
				err = errors.Join(err, e)
			}
		}
	})
	must(t, errors.Join(inside, err))
	t.Cleanup(func() {
		for _, fd := range d.sockets {
			_ = unix.Close(fd)
		}
	})
	return d
}

// with returns the packets since the last call that have a text in them.
func (d *delivered) with(text string) (found []string) {
	buf := make([]byte, 1<<16)
	for _, fd := range d.sockets {
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				break
			}
			if at := strings.Index(string(buf[:n]), text); at >= 0 {
				found = append(found, string(buf[at:n]))
			}
		}
	}
	return found
}

// someProtocols are those that hosts have code for, and some that they have not.
var someProtocols = []layers.IPProtocol{1, 2, 4, 6, 17, 33, 41, 47, 50, 51, 58, 88, 89, 94, 97, 99, 103, 108, 112, 115,
	132, 136, 137, 200, 253}

// TestHostIsClosed: a node that denies its workloads access hears nothing of a pod, except discovery, whatever the pod
// sends and to which of the node's addresses. With access, programs at loopback addresses still hear nothing.
func TestHostIsClosed(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1"})
	a := p.ports["a"]
	hears := deliveredIn(t, p.N1.Namespace, someProtocols...)
	own := []string{p.N1.IP4.String(), p.N1.IP6.String(), "fe80::ecee:eeff:feee:eeee", "169.254.1.1", "224.0.0.1",
		"ff02::1", "ff02::2", "255.255.255.255", "10.200.1.255"}
	loopback := []string{"127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::"}
	for _, access := range []struct {
		action string
		closed []string
	}{{"Drop", append(own, loopback...)}, {"Accept", loopback}} {
		must(t, p.N1.Apply("apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: node.n1}\n"+
			"spec: {defaultEndpointToHostAction: "+access.action+"}\n"))
		n := 0
		eventually(t, func() error { // until the setting is in force
			n++
			marker := fmt.Sprintf("%s %d.", access.action, n)
			for i, to := range []netip.Addr{p.N1.IP4, p.N1.IP6} {
				a.Send(t, packet.Frame(t, a.MAC, hostMAC, packet.IP(p.addresses("a")[i], to, layers.IPProtocolUDP, 64),
					packet.UDP(uint16(7+n), 9, marker)...))
			}
			_, err := p.N1.Run("ping", "-c1", "-W5", p.addresses("a")[0].String()) // behind them
			if err != nil {
				return err
			}
			if got := hears.with(marker); len(got) != map[string]int{"Drop": 0, "Accept": 2}[access.action] {
				return fmt.Errorf("%s: the host hears %q", access.action, got)
			}
			return nil
		})
		for _, address := range access.closed {
			to := netip.MustParseAddr(address)
			from := p.addresses("a")[0]
			if to.Is6() {
				from = p.addresses("a")[1]
			}
			send := func(what string, protocol layers.IPProtocol, above ...gopacket.SerializableLayer) {
				a.Send(t, packet.Frame(t, a.MAC, hostMAC, packet.IP(from, to, protocol, 255),
					append(above, gopacket.Payload(" "+forgedText+what+" to "+address))...))
			}
			for _, protocol := range someProtocols {
				send(fmt.Sprint("protocol ", int(protocol)), protocol, gopacket.Payload(ports(7, 7)))
			}
			send("UDP", layers.IPProtocolUDP, &layers.UDP{SrcPort: 7, DstPort: 7})
			send("TCP", layers.IPProtocolTCP, &layers.TCP{SrcPort: 7, DstPort: 22, SYN: true, Window: 100})
			for kind := range 256 {
				if to.Is4() {
					send(fmt.Sprint("ICMP ", kind), layers.IPProtocolICMPv4,
						&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(uint8(kind), 0)})
					continue
				}
				if kind >= 130 && kind <= 136 && kind != 134 {
					continue // discovery
				}
				send(fmt.Sprint("ICMPv6 ", kind), layers.IPProtocolICMPv6,
					&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(uint8(kind), 0)},
					gopacket.Payload(ports(0, 0)))
			}
		}
		must(t, lab.Eventually(world.Limit, func() error {
			_, err := p.N1.Run("ping", "-c1", "-W5", p.addresses("a")[0].String())
			return err
		}))
		seen := map[string]bool{}
		for _, got := range hears.with(forgedText) {
			if !seen[got] {
				t.Errorf("%s: the host hears %q", access.action, got)
			}
			seen[got] = true
		}
	}
}

// TestWildcardHostEndpoint: a host endpoint for all interfaces closes the host to the underlay but for failsafe ports
// and discovery, and what its policies forward denies reaches no pod.
func TestWildcardHostEndpoint(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1"})
	hears := deliveredIn(t, p.N1.Namespace, someProtocols...)
	n := 0
	plain := func(what string) bool { return strings.Contains(what, "UDP") || strings.Contains(what, "TCP") }
	send := func(t *testing.T, from, to netip.Addr, protocol layers.IPProtocol, above ...gopacket.SerializableLayer) {
		t.Helper()
		n++
		p.outsider.Send(t, packet.Frame(t, p.outsider.MAC, p.uplink.MAC, packet.IP(from, to, protocol, 64), above...))
	}
	// step sends everything to the host and to the pod, and expects the kinds that reach each. Whether the rest reaches
	// the pod is up to its own policy.
	step := func(name, objects string, host, pod func(what string) bool) {
		t.Helper()
		if objects != "" {
			must(t, p.N1.Apply(objects))
		}
		var wrong []string
		round := 0
		err := lab.Eventually(world.Limit/4, func() error { // until the change is in force
			round++
			wrong = nil
			for i, from := range p.outside() {
				kinds := map[string]func(netip.Addr, string){}
				for _, protocol := range someProtocols {
					kinds[fmt.Sprint("protocol ", int(protocol))] = func(to netip.Addr, marker string) {
						send(t, from, to, protocol, gopacket.Payload(ports(7, 7)), gopacket.Payload("....."+marker))
					}
				}
				for _, port := range []uint16{9, 22, 68} {
					kinds[fmt.Sprint("UDP ", port)] = func(to netip.Addr, marker string) {
						send(t, from, to, layers.IPProtocolUDP, packet.UDP(uint16(3000+n%50000), port, marker)...)
					}
					kinds[fmt.Sprint("TCP ", port)] = func(to netip.Addr, marker string) {
						send(t, from, to, layers.IPProtocolTCP, &layers.TCP{SrcPort: layers.TCPPort(3000 + n%50000),
							DstPort: layers.TCPPort(port), SYN: true, Window: 100}, gopacket.Payload(marker))
					}
				}
				marker := func(what, to string) string {
					return fmt.Sprintf("<%s %s %d %d %s>", name, what, i, round, to)
				}
				for what, send := range kinds {
					send([]netip.Addr{p.N1.IP4, p.N1.IP6}[i], marker(what, "host"))
					send(p.addresses("a")[i], marker(what, "pod"))
				}
				if _, err := p.N1.Run("ping", "-c1", "-W5", p.addresses("a")[i].String()); err != nil { // behind them
					return err
				}
				heard := strings.Join(hears.with("<"+name), "\n")
				for what := range kinds {
					if got := strings.Contains(heard, marker(what, "host")); got != host(what) {
						wrong = append(wrong, fmt.Sprintf("%s reaches the host: %t", marker(what, "host"), got))
					}
					if got := len(p.ports["a"].Captured(marker(what, "pod"))) > 0; got != pod(what) && plain(what) {
						wrong = append(wrong, fmt.Sprintf("%s reaches the pod: %t", marker(what, "pod"), got))
					}
				}
			}
			if wrong != nil {
				return errors.New(strings.Join(wrong, "\n"))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	failsafe := func(what string) bool { return what == "TCP 22" || what == "UDP 68" }
	none := func(string) bool { return false }
	step("closed", "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {name: all, labels: {host: n1}}\n"+
		"spec: {node: n1, interfaceName: '*'}\n", failsafe, plain)
	step("forwarding is denied", world.GlobalPolicy("no-transit",
		"selector: host == 'n1', applyOnForward: true, types: [Ingress], ingress: []"), failsafe, none)
	must(t, p.N1.Apply(world.GlobalPolicy("no-transit",
		"selector: host == 'n1', applyOnForward: true, preDNAT: true, types: [Ingress], ingress: [{action: Deny}]")))
	step("all is denied before translation", "", failsafe, failsafe)
}
