package packets

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// Ports of the connections between two pods. After those were made, a policy denies all but the open one.
const (
	clientUDP, clientTCP = 7001, 7002
	serverUDP, serverTCP = 8001, 8002
	openUDP              = 8003
)

var noNewConnections = world.GlobalPolicy("no-new-connections", fmt.Sprintf("selector: all(), types: [Ingress], "+
	"ingress: [{action: Deny, protocol: UDP, destination: {ports: [%d]}}, "+
	"{action: Deny, protocol: TCP, destination: {ports: [%d]}}, {action: Allow}]", serverUDP, serverTCP))

// TestInheritedConnections: whoever gets the address of a pod that is gone does not get its connections, at the node
// of the other end, at its own node, and if the daemon was down meanwhile. Those of others go on.
func TestInheritedConnections(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"p": "n1", "late": "n1", "y": "n1", "w": "n1", "v": "n2", "b": "n2",
		"q": "n2", "x": "n2"})
	for _, n := range p.Nodes {
		_, err := n.Run("sh", "-c", "echo 300 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
		must(t, err)
	}
	p.serve(t, "v")
	p.serve(t, "q")
	for _, client := range []string{"p", "late", "w"} {
		p.connect(t, client, "v")
	}
	p.connect(t, "b", "q")
	must(t, p.N1.Apply(noNewConnections))
	p.comesToRefuse(t, "y", p.addresses("y"), 7009)

	t.Run("the address of a pod of another node", func(t *testing.T) {
		was := p.addresses("p")
		must(t, p.Pods["p"].Delete())
		p.inherits(t, "y", was)
		p.comesToRefuse(t, "y", was, clientUDP)
	})
	t.Run("and of this one, over an outage of the daemon", func(t *testing.T) {
		was, gone := p.addresses("late"), p.addresses("q")
		eventually(t, func() error { // manxd writes the file within a second
			b, err := os.ReadFile(filepath.Join(p.N2.Dir, "run", "address-owners-etcdv3"))
			if err == nil && !bytes.Contains(b, []byte(was[1].String()+" ")) {
				err = fmt.Errorf("the file does not have %s", was[1])
			}
			return err
		})
		p.N2.Manxd().Kill()
		must(t, p.Pods["q"].Delete())
		must(t, p.Pods["late"].Delete())
		p.inherits(t, "y", was)
		stop := p.floods(t, "b", gone)
		must(t, p.N2.StartManxd())
		must(t, p.N2.Ready(world.Limit))
		p.inherits(t, "x", gone)
		p.comesToRefuse(t, "y", was, clientUDP)
		for range 20 { // from the time that the route is there
			for _, a := range gone {
				p.passes(t, "b", a, "x")
			}
		}
		stop()
		if got := p.ports["x"].Captured("flood"); len(got) > 0 {
			t.Errorf("the next pod with the address got %d datagrams of a flow to the one before", len(got))
		}
	})
	t.Run("others keep their connections", func(t *testing.T) {
		for i, source := range p.addresses("w") {
			if p.drops(t, "w", source, p.addresses("v")[i], layers.IPProtocolUDP,
				&layers.UDP{SrcPort: clientUDP, DstPort: serverUDP}) == nil {
				t.Errorf("connections of %s, which stays, are forgotten", source)
			}
		}
	})
}

// serve answers in a pod what connect needs.
func (p *pair) serve(t *testing.T, pod string) {
	t.Helper()
	ns := p.Pods[pod].Namespace
	world.ListenTCP(t, ns, serverTCP, func(c net.Conn) { go func() { _, _ = io.Copy(c, c) }() })
	var conn *net.UDPConn
	var err error
	inside := namespace.Inside(ns, func() { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: serverUDP}) })
	must(t, errors.Join(inside, err))
	t.Cleanup(func() { conn.Close() })
	go func() {
		for buf := make([]byte, 2048); ; {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
}

// connect makes a flow of UDP and an idle TCP connection of each family between two pods.
func (p *pair) connect(t *testing.T, from, to string) {
	t.Helper()
	for i, local := range p.addresses(from) {
		for _, x := range []struct {
			network             string
			source, destination uint16
			local               func(netip.AddrPort) net.Addr
		}{
			{"udp", clientUDP, serverUDP, func(a netip.AddrPort) net.Addr { return net.UDPAddrFromAddrPort(a) }},
			{"tcp", clientTCP, serverTCP, func(a netip.AddrPort) net.Addr { return net.TCPAddrFromAddrPort(a) }},
		} {
			d := net.Dialer{LocalAddr: x.local(netip.AddrPortFrom(local, x.source)), Timeout: time.Second}
			remote := netip.AddrPortFrom(p.addresses(to)[i], x.destination).String()
			eventually(t, func() error {
				var c net.Conn
				var err error
				must(t, namespace.Inside(p.Pods[from].Namespace, func() { c, err = d.Dial(x.network, remote) }))
				if err != nil {
					return err
				}
				t.Cleanup(func() { c.Close() })
				_ = c.SetDeadline(time.Now().Add(time.Second))
				if _, err := c.Write([]byte("hello")); err != nil {
					return err
				}
				if _, err = c.Read(make([]byte, 16)); err != nil {
					c.Close()
				}
				return err
			})
		}
	}
}

// inherits gives a pod the addresses of another one.
func (p *pair) inherits(t *testing.T, pod string, was []netip.Addr) {
	t.Helper()
	for _, a := range was {
		ip := []string{"addr", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "eth0"}
		if a.Is6() {
			ip = append(ip, "nodad")
		}
		must(t, inPod(p.Pods[pod], ip...))
	}
	must(t, p.Pods[pod].EditEndpoint(func(e lab.Resource) {
		networks, _ := e.Spec()["ipNetworks"].([]any)
		for _, a := range was {
			networks = append(networks, netip.PrefixFrom(a, a.BitLen()).String())
		}
		e.Spec()["ipNetworks"] = networks
	}))
}

func inPod(pod *lab.Pod, words ...string) error {
	out, err := namespace.Command(pod.Namespace, "ip", words...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// refused sends datagrams from addresses to v, each of the flow that the address had with v before. It is an error that
// one arrives.
func (p *pair) refused(t *testing.T, from string, sources []netip.Addr, udp uint16) (err error) {
	t.Helper()
	for i, source := range sources {
		err = errors.Join(err, p.drops(t, from, source, p.addresses("v")[i], layers.IPProtocolUDP,
			&layers.UDP{SrcPort: layers.UDPPort(udp), DstPort: serverUDP}))
	}
	return err
}

// drops sends a packet to v, and is an error if it arrives there before one to the open port that is sent later.
func (p *pair) drops(t *testing.T, from string, source, target netip.Addr, protocol layers.IPProtocol,
	header gopacket.SerializableLayer) error {
	t.Helper()
	out, v := p.ports[from], p.ports["v"]
	marker := fmt.Sprintf("inherited %d", time.Now().UnixNano())
	out.Send(t, packet.Frame(t, out.MAC, hostMAC, packet.IP(source, target, protocol, 64), header,
		gopacket.Payload(marker)))
	p.passesFrom(t, from, source, target, "v")
	if len(v.Captured(marker)) > 0 {
		return fmt.Errorf("%s of %s to %s arrives", protocol, source, target)
	}
	return nil
}

// comesToRefuse waits until n2 has seen the change: it refuses what comes from addresses to v, and goes on to. A SYN
// from the port of a connection would be answered with its sequence numbers (RFC 5961, section 4).
func (p *pair) comesToRefuse(t *testing.T, from string, sources []netip.Addr, udp uint16) {
	t.Helper()
	if err := lab.Eventually(10*time.Second, func() error { return p.refused(t, from, sources, udp) }); err != nil {
		t.Error(err)
	}
	for i, source := range sources {
		syn := &layers.TCP{SrcPort: layers.TCPPort(udp + 1), DstPort: serverTCP, Window: 1000, Seq: 77, SYN: true}
		if err := p.drops(t, from, source, p.addresses("v")[i], layers.IPProtocolTCP, syn); err != nil {
			t.Error(err)
		}
	}
}

// passes waits until a datagram of a pod to the open port of an address arrives at a pod.
func (p *pair) passes(t *testing.T, from string, target netip.Addr, to string) {
	t.Helper()
	source := p.addresses(from)[0]
	if target.Is6() {
		source = p.addresses(from)[1]
	}
	p.passesFrom(t, from, source, target, to)
}

func (p *pair) passesFrom(t *testing.T, from string, source, target netip.Addr, to string) {
	t.Helper()
	out := p.ports[from]
	eventually(t, func() error {
		marker := fmt.Sprintf("open %s %d", source, time.Now().UnixNano())
		frame := packet.Frame(t, out.MAC, hostMAC, packet.IP(source, target, layers.IPProtocolUDP, 64),
			packet.UDP(7005, openUDP, marker)...)
		out.Send(t, frame)
		return lab.Eventually(time.Second, func() error {
			if len(p.ports[to].Captured(marker)) == 0 {
				return fmt.Errorf("%s does not reach %s", source, target)
			}
			return nil
		})
	})
}

// floods sends datagrams of a pod's flow to addresses, until the returned function is called.
func (p *pair) floods(t *testing.T, from string, targets []netip.Addr) (stop func()) {
	t.Helper()
	var frames [][]byte
	out := p.ports[from]
	for i, target := range targets {
		frames = append(frames, packet.Frame(t, out.MAC, hostMAC,
			packet.IP(p.addresses(from)[i], target, layers.IPProtocolUDP, 64),
			packet.UDP(clientUDP, serverUDP, "flood")...))
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(2 * time.Millisecond): // the client is not told that the pod is gone
				for _, f := range frames {
					_ = out.TrySend(f)
				}
			}
		}
	}()
	return func() { close(quit); <-done }
}
