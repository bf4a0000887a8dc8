package packets

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// TestAddressesOfTheNodeFromOutside: a machine on the underlay sends to a pod in the name of another pod of the same
// node, which policy may allow. The kernel's own check (rp_filter) is off, and there is none for IPv6.
func TestAddressesOfTheNodeFromOutside(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"b": "n1", "v": "n1", "far": "n2"})
	for _, s := range []string{"all", "eth0"} {
		_, err := p.N1.Run("sh", "-c", "echo 0 >/proc/sys/net/ipv4/conf/"+s+"/rp_filter")
		must(t, err)
	}
	node, v := packet.Open(t, p.N1.Namespace, "eth0"), p.ports["v"]
	for i, to := range p.addresses("v") {
		send := func(from netip.Addr, marker string) {
			p.outsider.Send(t, packet.Frame(t, p.outsider.MAC, node.MAC, packet.IP(from, to, layers.IPProtocolUDP, 64),
				datagram(7)(marker)...))
		}
		eventually(t, func() error { // the pod's neighbour is known from then on
			send(p.outside()[i], "before")
			if len(v.Captured("before")) == 0 {
				return fmt.Errorf("%s is not reached", to)
			}
			return nil
		})
		send(p.addresses("b")[i], "as another pod")
		send(to, "as the pod itself")
		own := p.N1.IP4
		if to.Is6() {
			own = p.N1.IP6
		}
		send(own, "as the node")
		send(p.addresses("far")[i], "as a pod of another node, which may be one")
		send(p.outside()[i], "the last")
		arrives(t, v, "UDP", "the last")
		arrives(t, v, "UDP", "as a pod of another node")
		for _, marker := range []string{"as another pod", "as the pod itself", "as the node"} {
			if len(v.Captured(marker)) > 0 {
				t.Errorf("a packet from outside %s arrives at %s", marker, to)
			}
		}
		v.Forget()
	}
}

// TestAddressThatMoves: an address of the node counts as its own from when it comes until it leaves.
func TestAddressThatMoves(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1"})
	moving := p.N1.IP6.Next().Next().Next().Next()
	hears := deliveredIn(t, p.N1.Namespace, layers.IPProtocolUDP)
	ip := func(ns, format string, args ...any) {
		t.Helper()
		must(t, namespace.Batch(ns, fmt.Sprintf(format, args...)))
	}
	// from reports whether the node hears a machine on the underlay that has the address.
	from := func(marker string) bool {
		t.Helper()
		for _, source := range []netip.Addr{moving, p.outside()[1]} {
			p.outsider.Send(t, packet.Frame(t, p.outsider.MAC, p.uplink.MAC, packet.IP(source, p.N1.IP6,
				layers.IPProtocolUDP, 64), packet.UDP(7, 9, marker+" from "+source.String())...))
		}
		heard := ""
		eventually(t, func() error {
			if heard += strings.Join(hears.with(marker), ""); !strings.Contains(heard, p.outside()[1].String()) {
				return errors.New("the node does not hear the router")
			}
			return nil
		})
		return strings.Contains(heard, moving.String())
	}
	n := 0
	until := func(what string, want bool) {
		t.Helper()
		eventually(t, func() error {
			n++
			if from(fmt.Sprintf("<packet %d>", n)) != want {
				return fmt.Errorf("%s: packets with the address are heard: %t", what, !want)
			}
			return nil
		})
	}
	until("at first", true)
	ip(p.N1.Namespace, "addr add %s/64 dev eth0 nodad", moving)
	until("the node has the address", false)
	ip(p.N1.Namespace, "addr del %s/64 dev eth0", moving)
	ip(p.ToR1.Namespace, "addr add %s/64 dev rack1 nodad", moving)
	if !from("<just after>") {
		t.Error("packets of a machine that took over an address of the node are dropped")
	}
}
