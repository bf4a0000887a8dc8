package packets

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/packet"
)

// leaking are packets to a pod that its policy denies: each is the first of a connection, of UDP and TCP, IPv4 and
// IPv6.
type leaking struct {
	from   *packet.Port
	frames [][]byte
	ports  []int // the place of the source port in each frame
	sent   atomic.Int64
}

// leak is in the payload of each denied packet.
const leak = "denied, but here"

func (p *pair) leaking(t *testing.T, from, to string) *leaking {
	t.Helper()
	l := &leaking{from: p.ports[from]}
	for i, to := range p.addresses(to) {
		ip := packet.IP(p.addresses(from)[i], to, layers.IPProtocolUDP, 64)
		l.frames = append(l.frames, packet.Frame(t, l.from.MAC, hostMAC, ip, packet.UDP(1, 9, leak)...))
		ip = packet.IP(p.addresses(from)[i], to, layers.IPProtocolTCP, 64)
		l.frames = append(l.frames, packet.Frame(t, l.from.MAC, hostMAC, ip, segment(9)(leak)...))
		l.ports = append(l.ports, 14+20+20*i, 14+20+20*i)
	}
	return l
}

// arrive fails the test unless each kind of packet reaches a pod whose policy allows it.
func (l *leaking) arrive(t *testing.T, to *packet.Port) {
	t.Helper()
	eventually(t, func() error {
		to.Forget()
		for i, f := range l.frames {
			fresh(f, l.ports[i], uint16(900+i))
			l.from.Send(t, f)
		}
		return lab.Eventually(time.Second, func() error {
			if got := to.Captured(leak); len(got) < len(l.frames) {
				return fmt.Errorf("%d of %d kinds of packets arrive while all is allowed", len(got), len(l.frames))
			}
			return nil
		})
	})
	to.Forget()
}

// flood sends until quit is closed.
func (l *leaking) flood(quit <-chan struct{}) {
	for n := uint16(0); ; n++ {
		select {
		case <-quit:
			return
		default:
		}
		for i, f := range l.frames {
			fresh(f, l.ports[i], 1024+n%60000)
			if l.from.TrySend(f) == nil {
				l.sent.Add(1)
			}
		}
	}
}

// fresh gives a segment or datagram another source port, and mends its checksum (RFC 1624).
func fresh(frame []byte, at int, port uint16) {
	place := at + 6 // of UDP
	if frame[at-20+9] == 6 && frame[12] == 8 || frame[12] == 0x86 && frame[14+6] == 6 {
		place = at + 16
	}
	old := binary.BigEndian.Uint16(frame[at:])
	sum := uint32(^binary.BigEndian.Uint16(frame[place:])) + uint32(^old) + uint32(port)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(frame[at:], port)
	binary.BigEndian.PutUint16(frame[place:], ^uint16(sum))
}

// TestNothingLeaks: changes of policies, labels, tiers and sets, and the death of manxd, let no packet through that
// each state before and after denies.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"v": "n1", "near": "n1", "far": "n2", "friend": "n2"})
	role := func(pod, name string) {
		t.Helper()
		must(t, p.Pods[pod].EditEndpoint(func(e lab.Resource) { e.Label("role", name) }))
	}
	for _, pod := range []string{"v", "near", "far", "friend"} {
		role(pod, pod)
	}
	rule := func(spec string) string { return "[{action: Allow, source: {" + spec + "}}]" }
	victim := func(ingress string) string {
		return world.GlobalPolicy("victim", "order: 100, selector: role == 'v', types: [Ingress], ingress: "+ingress)
	}
	more := func(name, spec string) string {
		return world.GlobalPolicy(name, "selector: role == 'v', types: [Ingress], "+spec)
	}
	set := func(net string) string {
		return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\n"+
			"metadata: {name: s, labels: {s: s}}\nspec: {nets: [%s]}\n---\n", net)
	}
	v, near, far := p.ports["v"], p.leaking(t, "near", "v"), p.leaking(t, "far", "v")
	near.arrive(t, v)
	far.arrive(t, v)
	friends := rule("selector: role == 'friend'")
	must(t, p.N1.Apply(victim(friends)))
	friendly := func(when string) {
		t.Helper()
		for i, to := range p.addresses("v") {
			from, marker := p.ports["friend"], fmt.Sprintf("%s %s", when, to)
			eventually(t, func() error { // until the change is in the kernel
				from.Send(t, packet.Frame(t, from.MAC, hostMAC, packet.IP(p.addresses("friend")[i], to,
					layers.IPProtocolUDP, 64), packet.UDP(7, 9, marker)...))
				if len(v.Captured(marker)) == 0 {
					return fmt.Errorf("%s: an allowed packet does not arrive", marker)
				}
				return nil
			})
		}
	}
	friendly("at first")
	v.Forget()
	quit := make(chan struct{})
	var senders sync.WaitGroup
	senders.Go(func() { near.flood(quit) })
	senders.Go(func() { far.flood(quit) })
	stop := sync.OnceFunc(func() { close(quit); senders.Wait() })
	defer stop()
	changes := 0
	apply := func(yaml string) {
		t.Helper()
		must(t, p.N1.Apply(yaml))
		changes++
	}
	remove := func(kind, name string) {
		t.Helper()
		_, err := p.N1.Manxctl("delete", kind, name)
		must(t, err)
		changes++
	}
	for range 2 {
		apply(victim(`[]`))
		apply(victim(rule("nets: [192.0.2.0/24]")))
		apply(set("192.0.2.1/32") + victim(rule("selector: s == 's'")))
		apply(set("192.0.2.2/32"))
		apply(more("before", "order: 1, ingress: [{action: Deny, source: {selector: role == 'near'}}]"))
		apply(more("behind", "order: 200, ingress: "+rule("nets: [192.0.2.7/32]")))
		remove("globalnetworkpolicy", "before")
		apply("apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: first}\nspec: {order: 10}\n---\n" +
			more("first.pass", "tier: first, order: 1, ingress: [{action: Pass}]"))
		apply(victim(friends))
		for _, pod := range []string{"near", "far"} {
			role(pod, pod+"-2")
			role(pod, pod)
			changes += 2
		}
		remove("globalnetworkpolicy", "first.pass")
		remove("globalnetworkpolicy", "behind")
	}
	friendly("after the changes")
	p.N1.Manxd().Kill()
	must(t, p.N1.StartManxd())
	must(t, p.N1.Ready(world.Limit))
	stop()
	friendly("at the end")
	sent := near.sent.Load() + far.sent.Load()
	if got := v.Captured(leak); len(got) > 0 {
		t.Errorf("%d of %d denied packets passed, over %d changes: %s", len(got), sent, changes, got[0])
	}
	t.Logf("%d packets, %d changes", sent, changes)
}
