package packets

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

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

// TestInheritedConnections: whoever gets the address of a pod that is gone does not get its connections, if the daemon
// was down meanwhile.
func TestInheritedConnections(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"b": "n2", "q": "n2", "x": "n2"})
	_, err := p.N2.Run("sh", "-c", "echo 300 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
	must(t, err)
	p.serve(t, "q")
	p.connect(t, "b", "q")
	must(t, p.N1.Apply(noNewConnections))
	gone := p.addresses("q")
	p.N2.Manxd().Kill()
	must(t, p.Pods["q"].Delete())
	stop := p.floods(t, "b", gone)
	must(t, p.N2.StartManxd())
	must(t, p.N2.Ready(world.Limit))
	p.inherits(t, "x", gone)
	for range 20 { // from the time that the route is there
		for _, a := range gone {
			p.passes(t, "b", a, "x")
		}
	}
	stop()
	if got := p.ports["x"].Captured("flood"); len(got) > 0 {
		t.Errorf("the next pod with the address got %d datagrams of a flow to the one before", len(got))
	}
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
