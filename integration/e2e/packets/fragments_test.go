package packets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// TestFragments: a pod whose policy denies everything sends first fragments that nothing follows. The kernel keeps them
// for reassembly before any policy, but other workloads' fragments have room at all times.
func TestFragments(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"jailed": "n1", "a": "n1", "b": "n1", "c": "n2"})
	endpoint := jail(t, p, "jailed")
	for _, source := range []string{"jailed", "a"} {
		t.Run("source "+source, func(t *testing.T) {
			f := p.newFragments(t, "jailed", p.addresses(source), p.addresses("b"))
			// What the kernel would collect in its 30 seconds at 70 a second.
			for range 2000 {
				f.send(t)
			}
			p.largePings(t, "after 2000 fragments at once")
			stop := f.flood(t, 5000)
			p.largePings(t, "during a flood")
			t.Logf("%d fragments", stop())
			p.largePings(t, "right after it")
		})
	}
	t.Run("frames for segmentation offload", func(t *testing.T) {
		port := packet.Open(t, p.Pods["jailed"].Namespace, "eth0")
		ip := packet.IP(p.addresses("jailed")[0], p.addresses("b")[0], layers.IPProtocolTCP, 64).(*layers.IPv4)
		ip.Flags = layers.IPv4MoreFragments
		frame := packet.Frame(t, port.MAC, hostMAC, ip, &layers.TCP{SrcPort: 5, DstPort: 6, ACK: true, Window: 100},
			gopacket.Payload(make([]byte, 60000)))
		whole := packet.Offload{Kind: 1, Size: 1400, HeaderLength: 54, ChecksumStart: 34, ChecksumOffset: 16}
		for n := range 1500 { // more than 64 MiB
			binary.BigEndian.PutUint16(frame[18:], uint16(n))
			setChecksum(frame[14:34])
			_ = port.TrySendOffload(whole, frame) // the queue may be full
		}
		p.largePings(t, "after frames of 60 kB")
	})
	for _, to := range p.addresses("b") {
		t.Run(fmt.Sprintf("service at %s", to), func(t *testing.T) {
			t.Parallel()
			largeDatagrams(t, p, "a", to)
		})
	}
	t.Run("named", func(t *testing.T) {
		t.Parallel() // the counters are read every ten seconds
		eventually(t, func() error {
			status, err := p.N1.Manxctl("status")
			if err == nil && !strings.Contains(status, endpoint+": it sends more than 2000 IP fragments a second") {
				err = fmt.Errorf("status does not name the pod that floods:\n%s", status)
			}
			if page, _ := p.N1.Get("/metrics"); err == nil && !strings.Contains(page,
				`manx_workload_dropped_fragments_total{workload="`+endpoint+`"} `) {
				err = errors.New("no metric names the pod that floods")
			}
			return err
		})
	})
}

// jail gives a pod a policy that denies all that it sends, and returns the name of its endpoint.
func jail(t *testing.T, p *pair, pod string) (endpoint string) {
	t.Helper()
	w := p.Pods[pod]
	must(t, w.EditEndpoint(func(r lab.Resource) {
		r.Label("jailed", "true")
		endpoint = endpointName(r)
	}))
	must(t, w.Node.Apply(`
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: jail}
spec: {selector: has(jailed), types: [Egress], egress: [{action: Deny}]}
`))
	eventually(t, func() error {
		if lab.Ping(w.Namespace, p.addresses("b")[0]) == nil {
			return errors.New("the pod is not jailed")
		}
		return nil
	})
	return endpoint
}

// endpointName is the name of a WorkloadEndpoint as notices and metrics have it.
func endpointName(r lab.Resource) string {
	m, _ := r["metadata"].(map[string]any)
	return fmt.Sprintf("%s/%s", m["namespace"], m["name"])
}

// largePings fails the test unless five pings of 3000 bytes in a row are answered, in each family, between two pods of
// one node, and from a pod of the other one.
func (p *pair) largePings(t *testing.T, when string) {
	t.Helper()
	var all sync.WaitGroup
	for _, from := range []string{"a", "c"} {
		for _, to := range p.addresses("b") {
			all.Go(func() {
				out, _ := namespace.Command(p.Pods[from].Namespace, "ping", "-n", "-q", "-c", "5", "-i", "0.1",
					"-W", "1", "-s", "3000", to.String()).CombinedOutput()
				if !strings.Contains(string(out), " 5 received") {
					t.Errorf("%s: pings from %s to %s:\n%s", when, from, to, out)
				}
			})
		}
	}
	all.Wait()
}

// fragments are first fragments of a family each, none of which has a second one.
type fragments struct {
	port   *packet.Port
	frames [][]byte
	ids    []int // where the identification of the datagram ends in each frame
	next   uint32
}

func (p *pair) newFragments(t *testing.T, sender string, from, to []netip.Addr) *fragments {
	f := &fragments{port: p.ports[sender]}
	for i := range from {
		ip := packet.IP(from[i], to[i], layers.IPProtocolUDP, 64)
		body := gopacket.Payload(make([]byte, 1440))
		id := 14 + 6
		switch ip := ip.(type) {
		case *layers.IPv4:
			ip.Flags = layers.IPv4MoreFragments
		case *layers.IPv6:
			id = 14 + 40 + 8
			ip.NextHeader = layers.IPProtocolIPv6Fragment
			body = append(gopacket.Payload{byte(layers.IPProtocolUDP), 0, 0, 1, 0, 0, 0, 0}, body...)
		}
		f.ids = append(f.ids, id)
		f.frames = append(f.frames, packet.Frame(t, f.port.MAC, hostMAC, ip, body))
	}
	return f
}

// send sends one fragment of each family, of a new datagram.
func (f *fragments) send(t *testing.T) {
	f.next++
	for i, frame := range f.frames {
		binary.BigEndian.PutUint16(frame[f.ids[i]-2:], uint16(f.next))
		if frame[14]>>4 == 4 { // the checksum of the header changes with the identification
			setChecksum(frame[14:34])
		}
		_ = f.port.TrySend(frame)
	}
}

func setChecksum(header []byte) {
	header[10], header[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum+sum>>16))
}

// flood sends so many fragments of each family a second, until the returned function, which returns how many were sent.
func (f *fragments) flood(t *testing.T, rate int) (stop func() uint32) {
	quit, done := make(chan struct{}), make(chan struct{})
	first := f.next
	go func() {
		defer close(done)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-quit:
				tick.Stop()
				return
			case <-tick.C:
				for range rate / 100 {
					f.send(t)
				}
			}
		}
	}()
	// So much fills the kernel's 4 MiB before the test looks.
	time.Sleep(500 * time.Millisecond)
	return func() uint32 {
		close(quit)
		<-done
		return f.next - first
	}
}

// largeDatagrams sends 300 datagrams of 3 kB a second for a second, each of which has three fragments, and fails the
// test unless all arrive.
func largeDatagrams(t *testing.T, p *pair, from string, to netip.Addr) {
	t.Helper()
	const count = 300
	var server *net.UDPConn
	var err error
	must(t, namespace.Inside(p.Pods["b"].Namespace, func() {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 0)))
	}))
	must(t, err)
	defer server.Close()
	must(t, server.SetReadBuffer(4<<20))
	var client net.Conn
	must(t, namespace.Inside(p.Pods[from].Namespace, func() {
		client, err = net.Dial("udp", server.LocalAddr().String())
	}))
	must(t, err)
	defer client.Close()
	datagram := make([]byte, 3000)
	for tick, i := time.NewTicker(time.Second/count), 0; i < count; i++ {
		<-tick.C
		_, err := client.Write(datagram)
		must(t, err)
	}
	must(t, server.SetReadDeadline(time.Now().Add(2*time.Second)))
	for i := range count {
		if _, err := server.Read(datagram); err != nil {
			t.Fatalf("%d of %d datagrams of 3 kB to %s arrive: %v", i, count, to, err)
		}
	}
}
