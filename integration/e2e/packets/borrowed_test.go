package packets

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// borrowing is a packet of a pod that leaves the cluster.
type borrowing struct {
	what     string
	protocol layers.IPProtocol
	above    func(marker string) []gopacket.SerializableLayer
	borrows  bool // the node's address, by natOutgoing
}

var borrowings = []borrowing{
	{"UDP 7", layers.IPProtocolUDP, datagram(7), true},
	{"TCP 80", layers.IPProtocolTCP, segment(80), true},
	{"TCP 2379", layers.IPProtocolTCP, segment(2379), true}, // of no node
	{"UDP 51820", layers.IPProtocolUDP, datagram(51820), true},
	{"SCTP", layers.IPProtocolSCTP, association, true},
	{"BGP", layers.IPProtocolTCP, segment(179), false},
	{"BGP on the port of a BGPPeer", layers.IPProtocolTCP, segment(1790), false},
	{"from the BGP port", layers.IPProtocolTCP, segmentFrom(179, 40000), false},
	{"from a reserved port", layers.IPProtocolTCP, segmentFrom(511, 40000), false},
	{"BFD", layers.IPProtocolUDP, datagram(3784), false},
	{"multihop BFD", layers.IPProtocolUDP, datagram(4784), false},
	{"VXLAN of Linux", layers.IPProtocolUDP, datagram(8472), false},
	{"Geneve", layers.IPProtocolUDP, datagram(6081), false},
	{"GRE", layers.IPProtocolGRE, raw, false},
	{"ESP", layers.IPProtocolESP, raw, false},
	{"OSPF", 89, raw, false},
}

// TestBorrowedAddress: natOutgoing gives the packets of a pod the address of its node, but none by which the node
// itself is known.
func TestBorrowedAddress(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1", "b": "n1"})
	must(t, p.N1.Apply(`
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: other-port}
spec: {node: n2, peerIP: "192.0.2.1:1790", asNumber: 65000}
`))
	eventually(t, func() error {
		out, err := p.N1.Run("nft", "list", "set", "inet", "manx", "bgp-ports")
		if err == nil && !strings.Contains(out, "1790") {
			err = fmt.Errorf("the port of the BGPPeer is not known: %s", out)
		}
		return err
	})
	t.Run("to the outside", func(t *testing.T) {
		p.borrow(t, "a", p.outside(), p.outsider, borrowings)
	})
	nodes := slices.Clone(borrowings)
	for i := range nodes {
		nodes[i].borrows = nodes[i].borrows && nodes[i].what != "TCP 2379" && nodes[i].what != "UDP 51820"
	}
	t.Run("to a node", func(t *testing.T) {
		p.borrow(t, "a", []netip.Addr{p.N2.IP4, p.N2.IP6}, packet.Open(t, p.N2.Namespace, "eth0"), nodes)
	})
	t.Run("another program translates, too", func(t *testing.T) {
		_, err := p.N1.Run("nft", `table inet other { chain post { type nat hook postrouting priority 90; `+
			`oifname "eth0" masquerade; }; }`)
		must(t, err)
		p.borrow(t, "b", p.outside(), p.outsider, borrowings) // b has no connections yet
	})
}

// borrow sends packets of a pod, and checks whose address they have where they arrive.
func (p *pair) borrow(t *testing.T, pod string, destinations []netip.Addr, at *packet.Port, list []borrowing) {
	port := p.ports[pod]
	for i, to := range destinations {
		from, node := p.addresses(pod)[i], p.N1.IP4
		if to.Is6() {
			node = p.N1.IP6
		}
		for _, b := range list {
			marker := fmt.Sprintf("borrowed by %s: %s %s", pod, b.what, to)
			port.Send(t, packet.Frame(t, port.MAC, hostMAC, packet.IP(from, to, b.protocol, 64), b.above(marker)...))
			want := from
			if b.borrows {
				want = node
			}
			for _, got := range arrives(t, at, b.what, marker) {
				if source := got.NetworkLayer().NetworkFlow().Src().Raw(); !bytes.Equal(source, want.AsSlice()) {
					t.Errorf("%s to %s comes from %v, want %s", b.what, to, net.IP(source), want)
				}
			}
		}
	}
}

func datagram(port uint16) func(string) []gopacket.SerializableLayer {
	return func(marker string) []gopacket.SerializableLayer { return packet.UDP(7000, port, marker) }
}

func segment(port uint16) func(string) []gopacket.SerializableLayer { return segmentFrom(7000, port) }

// segmentFrom is a SYN with data.
func segmentFrom(source, port uint16) func(string) []gopacket.SerializableLayer {
	return func(marker string) []gopacket.SerializableLayer {
		return []gopacket.SerializableLayer{
			&layers.TCP{SrcPort: layers.TCPPort(source), DstPort: layers.TCPPort(port), SYN: true, Window: 1000},
			gopacket.Payload(marker)}
	}
}

// association is an INIT with data.
func association(marker string) []gopacket.SerializableLayer {
	return []gopacket.SerializableLayer{&layers.SCTP{SrcPort: 7000, DstPort: 7},
		&layers.SCTPInit{SCTPChunk: layers.SCTPChunk{Type: layers.SCTPChunkTypeInit}, InitiateTag: 1,
			OutboundStreams: 1, InboundStreams: 1, AdvertisedReceiverWindowCredit: 2000,
			Parameters: []layers.SCTPInitParameter{{Type: 0x8fff, Value: []byte(marker)}}}}
}

func raw(marker string) []gopacket.SerializableLayer {
	return []gopacket.SerializableLayer{gopacket.Payload("\x00\x00\x88\xb5" + marker)}
}

// TestSessionOfTheNodeStaysTheNodes: a router without password and GTSM, with graceful restart, takes the newest
// connection from the address of a node for that node. A pod opens one, and announces a route.
func TestSessionOfTheNodeStaysTheNodes(t *testing.T) {
	t.Parallel()
	l := world.NewLab(t, lab.Spec{Name: world.LabName("pt"), Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n, tor := l.Nodes[0], l.ToRs[0]
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--no-default-pools")...))
	must(t, n.Ready(world.Limit))
	must(t, n.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods4}
spec: {cidr: %s, blockSize: 26, natOutgoing: true}
---`, world.Pool4)+world.TorPeer(n, "tor", tor.Address(n), "")))
	pod, err := n.AddPod("a")
	must(t, err)
	up := func(p *manxv1.Peer) bool { return p.GetPhase() == "Established" }
	before := world.AwaitPeer(t, n, tor.Address(n), "up", up)

	stolen := netip.MustParsePrefix("198.51.100.99/32")
	var conn net.Conn
	must(t, namespace.Inside(pod.Namespace, func() {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(tor.Address(n), 179).String(), world.Limit)
	}))
	must(t, err)
	defer conn.Close()
	// At once and without reading, since the answers may come too late for the pod: TTL 1.
	_, err = conn.Write(forged(t, n.IP4, stolen))
	must(t, err)
	must(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, _ = io.Copy(io.Discard, conn) // until the router ends the connection, or has had time

	if routes, err := tor.Birdc("show", "route", "all"); err != nil || strings.Contains(routes, stolen.String()) {
		t.Errorf("the router has the route of the pod: %v\n%s", err, routes)
	}
	now := world.Peer(t, n, tor.Address(n))
	if !up(now) || now.GetEstablishedUnixMs() != before.GetEstablishedUnixMs() {
		t.Errorf("the session of the node is %v, want it up since %d", now, before.GetEstablishedUnixMs())
	}
	eventually(t, func() error {
		want := "Unexpected connect from unknown address " + pod.IP4().String()
		if !strings.Contains(tor.Log(), want) {
			return fmt.Errorf("the router has not seen the connection of the pod itself, %q:\n%s", want,
				world.Tail(tor.Log(), 20))
		}
		return nil
	})
}

// forged is what a node sends to its router: OPEN, KEEPALIVE, and an UPDATE with a route.
func forged(t *testing.T, node netip.Addr, route netip.Prefix) []byte {
	t.Helper()
	const as = 64512
	open, err := bgp.NewBGPOpenMessage(as, 90, node, []bgp.OptionParameterInterface{
		bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{
			bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC), bgp.NewCapFourOctetASNumber(as),
			bgp.NewCapGracefulRestart(true, false, 120, []*bgp.CapGracefulRestartTuple{
				bgp.NewCapGracefulRestartTuple(bgp.RF_IPv4_UC, true)})})})
	must(t, err)
	hop, err := bgp.NewPathAttributeNextHop(node)
	must(t, err)
	nlri, err := bgp.NewIPAddrPrefix(route)
	must(t, err)
	update := bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(0),
		bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{
			bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, []uint32{as})}), hop}, []bgp.PathNLRI{{NLRI: nlri}})
	var all []byte
	for _, m := range []*bgp.BGPMessage{open, bgp.NewBGPKeepAliveMessage(), update} {
		b, err := m.Serialize()
		must(t, err)
		all = append(all, b...)
	}
	return all
}
