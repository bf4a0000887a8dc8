package announce

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/integration/packet"
)

var (
	machine = net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}
	own4    = netip.MustParseAddr("10.244.0.7")
	own6    = netip.MustParseAddr("fd00:244::7")
)

func advertisement(t *testing.T, target, to netip.Addr) []byte {
	ip := packet.IP(target, to, layers.IPProtocolICMPv6, 255)
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0)}
	return packet.Frame(t, machine, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, ip, icmp,
		&layers.ICMPv6NeighborAdvertisement{Flags: 0x20, TargetAddress: target.AsSlice()})
}

// A machine is heard by each form of announcement of its addresses, once, and by nothing else that it sends.
func TestHear(t *testing.T) {
	ns := nettest.Namespace(t)
	namespace, err := netlink.OpenNamespace(nettest.Path(ns))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = namespace.Close() })
	l, port := New(namespace), packet.Open(t, ns, "e0p")
	other := netip.MustParseAddr("10.244.0.8")
	all := netip.IPv6LinkLocalAllNodes()
	rarp := packet.Bytes(t, nil, &layers.Ethernet{SrcMAC: machine, DstMAC: layers.EthernetBroadcast,
		EthernetType: 0x8035}, gopacket.Payload(make([]byte, 28)))
	for name, c := range map[string]struct {
		frame []byte
		heard bool
	}{
		"RARP":                          {rarp, true},
		"gratuitous ARP":                {packet.ARP(t, machine, own4, own4), true},
		"neighbour advertisement":       {advertisement(t, own6, all), true},
		"ARP for a neighbour":           {packet.ARP(t, machine, own4, other), false},
		"gratuitous ARP of another one": {packet.ARP(t, machine, other, other), false},
		"advertisement of another one":  {advertisement(t, netip.MustParseAddr("fd00:244::8"), all), false},
		"advertisement that answers":    {advertisement(t, own6, netip.MustParseAddr("fe80::1")), false},
	} {
		t.Run(name, func(t *testing.T) {
			heard := make(chan struct{}, 2)
			stop, err := l.Hear("e0", []netip.Addr{own4, own6}, func() { heard <- struct{}{} })
			if err != nil {
				t.Fatal(err)
			}
			port.Send(t, c.frame)
			port.Send(t, c.frame)
			wait := time.Minute
			if !c.heard { // long enough for a few reads
				wait = 5 * interval
			}
			select {
			case <-heard:
				if !c.heard {
					t.Error("it was heard")
				}
			case <-time.After(wait):
				if c.heard {
					t.Error("it was not heard")
				}
			}
			stop()
			if len(heard) > 0 {
				t.Error("it was heard twice")
			}
			out := nettest.Run(t, "ip", "netns", "exec", ns, "nft", "list", "tables")
			if strings.Contains(out, "manx") {
				t.Errorf("left: %s", out)
			}
		})
	}
}

// The rules of a killed process are removed, and other tables stay.
func TestForget(t *testing.T) {
	ns := nettest.Namespace(t)
	namespace, err := netlink.OpenNamespace(nettest.Path(ns))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = namespace.Close() })
	l := New(namespace)
	stop, err := l.Hear("e0", []netip.Addr{own4}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	nettest.Run(t, "ip", "netns", "exec", ns, "nft", "add table netdev other; add table inet manx-hear-e0")
	if err := l.Forget(); err != nil {
		t.Fatal(err)
	}
	stop()
	out := nettest.Run(t, "ip", "netns", "exec", ns, "nft", "list", "tables")
	if strings.Contains(out, "netdev manx") || strings.Count(out, "table") != 2 {
		t.Errorf("left: %s", out)
	}
	if err := l.Forget(); err != nil {
		t.Errorf("without any: %v", err)
	}
}
