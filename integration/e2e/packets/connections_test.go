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

// share is how many connections a workload may have in the test.
const share = 400

// TestConnections: a pod and an accomplice on the underlay fill the table of connections by TCP handshakes that no
// program knows of. Above its share the pod gets no new connection, and nobody else notices.
func TestConnections(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"attacker": "n1", "a": "n1", "b": "n1", "c": "n2"})
	must(t, p.N1.Manxd().Stop(world.Limit))
	must(t, p.N1.StartManxd(append(append(p.N1.EmbedDatastore(), world.PairFlags...),
		fmt.Sprintf("--workload-max-connections=%d", share))...))
	must(t, p.N1.Ready(world.Limit))
	// The test does not wait for connections that have ended.
	_, err := p.N1.Run("sh", "-c", "echo 1 >/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close")
	must(t, err)
	both := p.newHandshakes(t, "attacker")
	for i, from := range []string{"a", "c"} { // an established connection of each
		c := p.dial(t, from, p.addresses("b")[i])
		defer func() {
			if _, err := c.Write([]byte("x")); err != nil {
				t.Errorf("the connection of %s that was there before: %v", from, err)
			}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Errorf("the connection of %s that was there before: %v", from, err)
			}
			c.Close()
		}()
	}
	for _, h := range both {
		if made := h.make(t, "first", share+50); made != share+50 {
			t.Fatalf("%d connections were made", made)
		}
	}
	var endpoint string
	must(t, p.Pods["attacker"].EditEndpoint(func(r lab.Resource) { endpoint = endpointName(r) }))
	eventually(t, func() error {
		status, err := p.N1.Manxctl("status")
		if err == nil && !strings.Contains(status, endpoint+": it began ") {
			err = fmt.Errorf("status does not name the attacker:\n%s", status)
		}
		page, errPage := p.N1.Get("/metrics")
		if errPage == nil && !strings.Contains(page, `manx_workload_connections{direction="from",workload="`+endpoint+`"} `) {
			err = errors.Join(err, errors.New("no metric names the attacker"))
		}
		return errors.Join(err, errPage)
	})
	for _, h := range both {
		if made := h.make(t, "second", 50); made != 0 {
			t.Errorf("%d of 50 new connections of the attacker with %s are made", made, h.to)
		}
		if !h.established(t) {
			t.Errorf("a connection that the attacker has with %s is cut off", h.to)
		}
	}
	for range 5 {
		for _, from := range []string{"a", "c"} {
			for _, to := range p.addresses("b") {
				p.dial(t, from, to).Close()
			}
		}
	}
	for _, h := range both {
		h.end(t)
	}
	eventually(t, func() error {
		for _, h := range both {
			if made := h.make(t, fmt.Sprint("later", time.Now()), 1); made != 1 {
				return errors.New("the attacker gets no new connection after its connections have ended")
			}
		}
		return nil
	})
}

// TestConnectionsOfOthers: whoever sends to a pod from many ports keeps others from it, but the pod can begin
// connections as before.
func TestConnectionsOfOthers(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"evil": "n2", "a": "n1", "b": "n1"})
	must(t, p.N1.Manxd().Stop(world.Limit))
	must(t, p.N1.StartManxd(append(append(p.N1.EmbedDatastore(), world.PairFlags...),
		fmt.Sprintf("--workload-max-connections=%d", share))...))
	must(t, p.N1.Ready(world.Limit))
	_, err := p.N1.Run("sh", "-c", "echo 60 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
	must(t, err)
	var endpoint string
	must(t, p.Pods["a"].EditEndpoint(func(r lab.Resource) { endpoint = endpointName(r) }))
	e := p.ports["evil"]
	sent := 0
	eventually(t, func() error {
		for range share {
			sent++
			_ = e.TrySend(packet.Frame(t, e.MAC, hostMAC, packet.IP(p.addresses("evil")[0], p.addresses("a")[0],
				layers.IPProtocolUDP, 64), packet.UDP(uint16(1000+sent%60000), 7, "x")...))
		}
		status, err := p.N1.Manxctl("status")
		if err == nil && !strings.Contains(status, endpoint+": it has ") {
			err = fmt.Errorf("status does not name the pod:\n%s", status)
		}
		return err
	})
	for _, to := range p.addresses("b") {
		p.dial(t, "a", to).Close()
	}
}

// dial makes a TCP connection to a pod that echoes.
func (p *pair) dial(t *testing.T, from string, to netip.Addr) net.Conn {
	t.Helper()
	var l net.Listener
	var c net.Conn
	var err error
	must(t, namespace.Inside(p.Pods["b"].Namespace, func() {
		l, err = net.Listen("tcp", netip.AddrPortFrom(to, 0).String())
	}))
	must(t, err)
	defer l.Close()
	must(t, namespace.Inside(p.Pods[from].Namespace, func() {
		c, err = net.DialTimeout("tcp", l.Addr().String(), 3*time.Second)
	}))
	if err != nil {
		t.Fatalf("a new connection of %s: %v", from, err)
	}
	s, err := l.Accept()
	must(t, err)
	go func() {
		defer s.Close()
		for b := make([]byte, 1); ; {
			if _, err := s.Read(b); err != nil {
				return
			}
			_, _ = s.Write(b)
		}
	}()
	return c
}

// handshakes are the connections of a pod with an address on the underlay that no kernel has.
type handshakes struct {
	*pair
	pod  *packet.Port
	from netip.Addr
	to   netip.Addr
	port uint16 // the last one that was used
}

// ports of the handshakes, and the sequence numbers of both ends.
const (
	firstPort  = 20000
	serverPort = 7777
	podISN     = 1000
	serverISN  = 5000
)

// newHandshakes returns those of each family.
func (p *pair) newHandshakes(t *testing.T, pod string) (list []*handshakes) {
	t.Helper()
	// The kernel of the pod must not reset connections that it does not know.
	for _, line := range []string{"add table inet mute", "add chain inet mute i { type filter hook input priority 0; }",
		"add rule inet mute i meta l4proto tcp drop"} {
		out, err := namespace.Command(p.Pods[pod].Namespace, "nft", line).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for i, from := range p.addresses(pod) {
		h := &handshakes{pair: p, pod: p.ports[pod], from: from, to: p.outside()[i], port: firstPort}
		for range 100 { // an address that nobody has
			h.to = h.to.Next()
		}
		namespace.IP(t, p.ToR1.Namespace, "route add blackhole "+h.to.String())
		namespace.IP(t, p.N1.Namespace, fmt.Sprintf("neigh replace %s lladdr %s dev eth0", h.to, p.outsider.MAC))
		list = append(list, h)
	}
	return list
}

func (h *handshakes) send(t *testing.T, port uint16, tcp layers.TCP, payload string) {
	tcp.SrcPort, tcp.DstPort, tcp.Window = layers.TCPPort(port), serverPort, 1000
	h.pod.Send(t, packet.Frame(t, h.pod.MAC, hostMAC, packet.IP(h.from, h.to, layers.IPProtocolTCP, 64), &tcp,
		gopacket.Payload(payload)))
}

// make makes so many connections, and returns how many the accomplice saw begin.
func (h *handshakes) make(t *testing.T, marker string, n int) int {
	t.Helper()
	h.outsider.Forget()
	first := h.port + 1
	for range n {
		h.port++
		h.send(t, h.port, layers.TCP{SYN: true, Seq: podISN}, marker)
	}
	// Nothing says that the last one has come.
	var syns []gopacket.Packet
	for end := time.Now().Add(time.Second); len(syns) < n && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		syns = h.outsider.Captured(marker)
	}
	for _, syn := range syns {
		ether := syn.LinkLayer().(*layers.Ethernet)
		tcp := syn.TransportLayer().(*layers.TCP)
		node, _ := netip.AddrFromSlice(syn.NetworkLayer().NetworkFlow().Src().Raw())
		answer := &layers.TCP{SrcPort: tcp.DstPort, DstPort: tcp.SrcPort, SYN: true, ACK: true, Seq: serverISN,
			Ack: podISN + 1, Window: 1000}
		h.outsider.Send(t, packet.Frame(t, h.outsider.MAC, ether.SrcMAC,
			packet.IP(h.to, node, layers.IPProtocolTCP, 64), answer))
	}
	for port := first; port <= h.port; port++ {
		h.send(t, port, layers.TCP{ACK: true, Seq: podISN + 1, Ack: serverISN + 1}, "")
	}
	return len(syns)
}

// established reports whether the first connection still passes.
func (h *handshakes) established(t *testing.T) bool {
	t.Helper()
	const marker = "more of the first connection"
	h.send(t, firstPort+1, layers.TCP{ACK: true, PSH: true, Seq: podISN + 1, Ack: serverISN + 1}, marker)
	for range 20 {
		if len(h.outsider.Captured(marker)) > 0 {
			return true
		}
		time.Sleep(50 * time.Millisecond) // it is on its way
	}
	return false
}

// end resets all connections.
func (h *handshakes) end(t *testing.T) {
	for port := uint16(firstPort + 1); port <= h.port; port++ {
		h.send(t, port, layers.TCP{RST: true, Seq: podISN + 1}, "")
	}
}
