package dataplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// vxlanSide is one family of a host with a device of VXLAN on our network, and one of another program.
type vxlanSide struct {
	device, theirs           string // both on the standard port
	here, node, stranger     string
	tunnel, gateway, pod     string // of this node and the other one, and a workload there
	hostLength               int
	broadcast                string
	broadcastMAC, gatewayMAC string
}

const (
	ourVNI, theirVNI = 4096, 77
	vxlanPort        = 4789
)

var vxlanSides = []vxlanSide{
	{"vxlan.calico", "theirs", "10.1.0.5", "10.1.0.9", "10.1.0.66", "10.244.1.1", "10.244.2.1", "10.244.2.7", 32,
		"10.1.0.255", "ff:ff:ff:ff:ff:ff", "66:00:00:00:00:09"},
	{"vxlan-v6.calico", "theirs6", "fd01::5", "fd01::9", "fd01::66", "fd10::1:1", "fd10::2:1", "fd10::2:7", 128,
		"ff02::1", "33:33:00:00:00:01", "66:00:00:00:00:19"},
}

// prepare makes the devices, as Manx and another program do.
func (v vxlanSide) prepare(h, other *host) {
	onLink := map[int]string{32: "/24", 128: "/64"}[v.hostLength]
	nodad := map[int]string{32: "", 128: " nodad"}[v.hostLength]
	h.ip("addr add " + v.here + onLink + " dev eth0" + nodad)
	for _, a := range []string{v.node, v.stranger} {
		other.ip("addr add " + a + onLink + " dev eth0" + nodad)
	}
	for name, vni := range map[string]int{v.device: ourVNI, v.theirs: theirVNI} {
		h.ip(fmt.Sprintf("link add %s address 66:00:00:00:00:05 type vxlan id %d dstport %d local %s nolearning", name,
			vni, vxlanPort, v.here))
		h.ip("link set " + name + " up")
	}
	h.ip(fmt.Sprintf("addr add %s/%d dev %s%s", v.tunnel, v.hostLength, v.device, nodad))
	h.ip(fmt.Sprintf("neigh add %s lladdr %s dev %s", v.gateway, v.gatewayMAC, v.device))
	run(h.t, "ip", "netns", "exec", h.name, "bridge", "fdb", "add", v.gatewayMAC, "dev", v.device, "dst", v.node,
		"self")
	h.ip(fmt.Sprintf("route add %s/%d dev %s", v.gateway, v.hostLength, v.device))
	h.ip(fmt.Sprintf("route add %s/%d via %s dev %s onlink", v.pod, v.hostLength, v.gateway, v.device))
}

// outer wraps a packet of a workload into VXLAN.
func (v vxlanSide) outer(t *testing.T, from, to net.HardwareAddr, source, destination string, vni uint32,
	marker string) []byte {
	t.Helper()
	inner := packet.Frame(t, net.HardwareAddr{0x66, 0, 0, 0, 0, 9}, net.HardwareAddr{0x66, 0, 0, 0, 0, 5},
		packet.IP(netip.MustParseAddr(v.pod), netip.MustParseAddr(v.tunnel), layers.IPProtocolUDP, 64),
		packet.UDP(5000, 9, marker)...)
	return packet.Frame(t, from, to,
		packet.IP(netip.MustParseAddr(source), netip.MustParseAddr(destination), layers.IPProtocolUDP, 64),
		&layers.UDP{SrcPort: 50123, DstPort: vxlanPort}, &layers.VXLAN{ValidIDFlag: true, VNI: vni},
		gopacket.Payload(inner))
}

// TestVXLANPacketsInTheKernel: with the rules in a kernel, the device takes packets from nodes alone, the device of
// another program on the same port takes all of its own, and only those are tracked.
func TestVXLANPacketsInTheKernel(t *testing.T) {
	h, other := bareHost(t), bareHost(t)
	h.ip("link add eth0 type veth peer name eth0 netns " + other.name)
	for _, x := range []*host{h, other} {
		x.ip("link set eth0 up")
		x.ip("link set lo up")
	}
	rules, err := nftables.Open(namespace.Path(h.name))
	if err != nil {
		t.Fatal(err)
	}
	defer rules.Close()
	objects := []*model.Object{nodeObject("node-1", "10.1.0.5/24", "fd01::5/64"),
		nodeObject("node-2", "10.1.0.9/24", "fd01::9/64")}
	for _, cidr := range []string{"10.244.0.0/16", "fd10::/64"} {
		objects = append(objects, object(model.ResourceKey(model.KindIPPool, cidr), &model.IPPool{
			Spec: model.IPPoolSpec{CIDR: cidr, VXLANMode: v3.VXLANModeAlways}}))
	}
	for _, v := range vxlanSides {
		v.prepare(h, other)
	}
	a := NewPolicy(PolicyConfig{Rules: rules, Links: h.open(), Logger: zap.NewNop(),
		Policy: policy.Config{Node: "node-1"}})
	a.set(model.NewSet(objects...))
	if a.step(); a.Status().Refused != nil {
		t.Fatalf("the kernel refuses rules: %+v", a.Status().Refused)
	}
	wire, uplink := packet.Open(t, other.name, "eth0"), packet.Open(t, h.name, "eth0")
	for _, v := range vxlanSides {
		ours, theirs := packet.Open(t, h.name, v.device), packet.Open(t, h.name, v.theirs)
		all, err := net.ParseMAC(v.broadcastMAC)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []struct {
			what             string
			source, to       string
			mac              net.HardwareAddr
			vni              uint32
			arrives, tracked bool
		}{
			{"from a stranger", v.stranger, v.here, uplink.MAC, ourVNI, false, false},
			{"from a stranger to all", v.stranger, v.broadcast, all, ourVNI, false, false},
			{"from a stranger to another network", v.stranger, v.here, uplink.MAC, theirVNI, true, true},
			{"from a node to another network", v.node, v.here, uplink.MAC, theirVNI, true, true},
			{"from a node", v.node, v.here, uplink.MAC, ourVNI, true, false},
		} {
			marker := fmt.Sprintf("%s: %s.", v.device, x.what)
			wire.Send(t, v.outer(t, wire.MAC, x.mac, x.source, x.to, x.vni, marker))
			port := map[uint32]*packet.Port{ourVNI: ours, theirVNI: theirs}[x.vni]
			if x.arrives {
				waitFor(t, marker, func() bool { return len(port.Captured(marker)) > 0 })
			}
			if tracked := trackedVXLAN(t, rules, x.source); tracked != x.tracked {
				t.Errorf("%s tracked: %t, want %t", marker, tracked, x.tracked)
			}
		}
		for _, lost := range []string{"from a stranger.", "from a stranger to all."} { // the last packet has arrived
			if len(ours.Captured(v.device+": "+lost)) > 0 {
				t.Errorf("%s takes a packet %s", v.device, lost)
			}
		}
		v.send(t, h, wire)
		if trackedVXLAN(t, rules, v.here) {
			t.Errorf("%s: what this host sends to a node is tracked", v.device)
		}
	}
}

// trackedVXLAN reports whether the kernel tracks a connection from an address to the port of VXLAN, and ends it.
func trackedVXLAN(t *testing.T, rules *nftables.Conn, source string) bool {
	t.Helper()
	table := conntrack.New(rules.Namespace())
	list, err := table.ListConnections(func(c conntrack.Connection) bool {
		return c.DestinationPort == vxlanPort && c.Source == netip.MustParseAddr(source)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.EndConnections(list); err != nil {
		t.Fatal(err)
	}
	return len(list) > 0
}

// send sends a packet from the node's own address to a workload of the other node: it leaves with the tunnel's address.
func (v vxlanSide) send(t *testing.T, h *host, wire *packet.Port) {
	t.Helper()
	marker := v.device + ": sent"
	var err error
	inside := namespace.Inside(h.name, func() {
		var conn *net.UDPConn
		if conn, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(v.here)},
			&net.UDPAddr{IP: net.ParseIP(v.pod), Port: 9}); err == nil {
			_, err = conn.Write([]byte(marker))
			_ = conn.Close()
		}
	})
	if err := errors.Join(inside, err); err != nil {
		t.Fatal(err)
	}
	waitFor(t, marker, func() bool { return len(wire.Captured(marker)) > 0 })
	for _, p := range wire.Captured(marker) {
		var sources []string
		for _, l := range p.Layers() {
			if n, ok := l.(gopacket.NetworkLayer); ok {
				sources = append(sources, n.NetworkFlow().Src().String())
			}
		}
		if len(sources) != 2 || sources[0] != v.here || sources[1] != v.tunnel {
			t.Errorf("%s: the sources are %v, want %s and %s", v.device, sources, v.here, v.tunnel)
		}
	}
}
