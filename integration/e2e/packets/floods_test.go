package packets

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/packet"
)

// TestFloodsOfTheBGPPort: SYNs and resets from a pod, and from the underlay in the name of a peer, end no session, and
// keep a peer that has to connect again from nothing.
func TestFloodsOfTheBGPPort(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1"})
	for _, peer := range []netip.Addr{p.N2.IP4, p.N2.IP6} {
		eventually(t, func() error { return established(t, p, peer) })
	}
	for i, peer := range []netip.Addr{p.N2.IP4, p.N2.IP6} {
		t.Run(peer.String(), func(t *testing.T) {
			t.Parallel() // the sessions are two
			p.floodSession(t, []netip.Addr{p.N1.IP4, p.N1.IP6}[i], peer, p.addresses("a")[i])
		})
	}
}

// floodSession floods the session of n1 with a peer, and then the way back of a peer that lost it.
func (p *pair) floodSession(t *testing.T, node, peer, pod netip.Addr) {
	port := p.portOfSession(t, node, peer)
	a, send := p.ports["a"], func(from *packet.Port, source netip.Addr, sport, dport uint16, s layers.TCP) {
		_ = from.TrySend(p.tcp(t, from, source, node, sport, dport, s)) // a full queue is part of a flood
	}
	peersSYN := func() { send(p.outsider, peer, anyPort(), 179, layers.TCP{SYN: true}) }
	for _, kind := range []struct {
		name string
		send func()
	}{
		{"SYNs of a pod", func() { send(a, pod, anyPort(), 179, layers.TCP{SYN: true}) }},
		{"SYNs in the peer's name", peersSYN},
		{"SYNs on the session", func() { send(p.outsider, peer, port[1], port[0], layers.TCP{SYN: true}) }},
		{"resets on the session", func() {
			send(p.outsider, peer, port[1], port[0], layers.TCP{RST: true, Seq: rand.Uint32()})
		}},
	} {
		sent := 0
		for began := time.Now(); time.Since(began) < 300*time.Millisecond; sent++ {
			kind.send()
		}
		if err := established(t, p, peer); err != nil {
			t.Errorf("after %d %s: %v", sent, kind.name, err)
		}
	}
	if flaps := world.Peer(t, p.N1, peer).GetFlaps(); flaps > 0 {
		t.Errorf("the session with %s ended %d times", peer, flaps)
	}

	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				peersSYN()
			}
		}
	}()
	defer func() { close(stop); <-done }()
	_, err := p.N1.Manxctl("reset", "peer", peer.String(), "--hard")
	must(t, err)
	eventually(t, func() error {
		if world.Peer(t, p.N1, peer).GetFlaps() == 0 {
			return fmt.Errorf("the session with %s has not ended", peer)
		}
		return established(t, p, peer)
	})
}

// anyPort is one that no session has.
func anyPort() uint16 { return uint16(1024 + rand.IntN(20000)) }

func established(t *testing.T, p *pair, peer netip.Addr) error {
	t.Helper()
	if s := world.Peer(t, p.N1, peer); s.GetState() != "Established" {
		return fmt.Errorf("the session with %s is %s: %s", peer, s.GetState(), s.GetReason())
	}
	return nil
}

// tcp returns a segment from a port to node n1.
func (p *pair) tcp(t *testing.T, from *packet.Port, source, to netip.Addr, sport, dport uint16, s layers.TCP) []byte {
	t.Helper()
	s.SrcPort, s.DstPort, s.Window = layers.TCPPort(sport), layers.TCPPort(dport), 1000
	mac := hostMAC
	if from == p.outsider {
		mac = p.uplink.MAC
	}
	return packet.Frame(t, from.MAC, mac, packet.IP(source, to, layers.IPProtocolTCP, 255), &s)
}

// portOfSession returns the ports of n1 and of the peer.
func (p *pair) portOfSession(t *testing.T, node, peer netip.Addr) (ports [2]uint16) {
	t.Helper()
	out, err := p.N1.Run("ss", "-Htn", "state", "established", "dst", netip.PrefixFrom(peer, peer.BitLen()).String())
	must(t, err)
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		for i, end := range f[len(f)-2:] {
			n, err := strconv.ParseUint(end[strings.LastIndex(end, ":")+1:], 10, 16)
			must(t, err)
			ports[i] = uint16(n)
		}
		if (ports[0] == 179 || ports[1] == 179) && strings.Contains(line, node.String()) {
			return ports
		}
	}
	t.Fatalf("no session with %s:\n%s", peer, out)
	return ports
}
