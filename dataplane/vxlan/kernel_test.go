package vxlan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/vtep"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

// realNode is a node in a network namespace, with both devices.
type realNode struct {
	t      *testing.T
	name   string // the namespace
	number int
	kernel *kernel.Conn
	target *Target
	woken  chan bool
}

// newPair makes nodes n1 and n2 on one link.
func newPair(t *testing.T) (pair [2]*realNode) {
	for i := range pair {
		pair[i] = &realNode{t: t, name: nettest.Bare(t), number: i + 1, woken: make(chan bool, 1)}
	}
	nettest.Run(t, "ip", "-n", pair[0].name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
		pair[1].name)
	for _, n := range pair {
		n.start()
	}
	return pair
}

func (n *realNode) ip(args string) string {
	n.t.Helper()
	return nettest.Run(n.t, append([]string{"ip", "-n", n.name}, strings.Fields(args)...)...)
}

func (n *realNode) device(name string, f model.Family, local, tunnel netip.Addr) {
	d := kernel.Device{Name: name, Kind: kernel.KindVXLAN, VXLAN: kernel.VXLAN{VNI: 4096, Port: 4789,
		Local: local, MAC: vtep.MAC(fmt.Sprintf("n%d", n.number), f)}}
	l, err := n.kernel.EnsureDevice(d)
	if errors.As(err, new(kernel.NoKindError)) {
		n.t.Skip(err)
	}
	a := kernel.Address{Link: l.Index, Prefix: netip.PrefixFrom(tunnel, tunnel.BitLen())}
	if err := errors.Join(err, n.kernel.SetMTU(l.Index, 1430), n.kernel.AddAddress(a),
		n.kernel.SetUp(l.Index)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *realNode) start() {
	n.ip("link set lo up")
	n.ip("link set eth0 up")
	n.ip(fmt.Sprintf("addr add 10.1.0.%d/24 dev eth0", n.number))
	n.ip(fmt.Sprintf("addr add fd01::%d/64 dev eth0 nodad", n.number))
	var err error
	if n.kernel, err = kernel.Open(nettest.Path(n.name)); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = n.kernel.Close() })
	n.device("vxlan.calico", model.IPv4, address4(10, n.number), address4(11, n.number))
	n.device("vxlan-v6.calico", model.IPv6, netip.MustParseAddr(fmt.Sprintf("fd01::%d", n.number)),
		netip.MustParseAddr(fmt.Sprintf("fd10::%d", n.number)))
	n.target = New(n.kernel, time.Now, func() {
		select {
		case n.woken <- true:
		default:
		}
	})
	n.t.Cleanup(n.target.Close)
	h := hoststate.New(fmt.Sprintf("n%d", n.number), nil)
	h.Take(hoststate.State{Reader: model.NewSet(pool("p4", "10.244.0.0/16"), pool("p6", "fd10::/48"), node(1), node(2)),
		All: true, DatastoreSynced: true})
	n.target.SetState(h)
	if steps, failures, err := n.target.Flush(); steps != 4 || failures > 0 || err != nil {
		n.t.Fatal(steps, failures, err, n.target.Rows())
	}
}

// Packets to the workloads of another node reach it in packets from node to node, in both families.
func TestPacketsReachAnotherNode(t *testing.T) {
	pair := newPair(t)
	for _, f := range []struct {
		family, device, block, gateway string // the last two: of each node, as a format
		outer                          [2]string
	}{
		{"-4", "vxlan.calico", "10.244.%d.1", "11.1.0.%d", [2]string{"10.1.0.1", "10.1.0.2"}},
		{"-6", "vxlan-v6.calico", "fd10:0:%d::1", "fd10::%d", [2]string{"fd01::1", "fd01::2"}},
	} {
		for i, n := range pair {
			bits := map[string]string{"-4": "/32", "-6": "/128"}[f.family]
			own, other := fmt.Sprintf(f.block, i+1), fmt.Sprintf(f.block, 2-i)
			n.ip("addr add " + own + bits + " dev lo" + map[string]string{"-6": " nodad"}[f.family]) // usable at once
			n.ip(fmt.Sprintf(f.family+" route add %s via "+f.gateway+" dev %s onlink", other+bits, 2-i, f.device))
		}
		packets := capture(t, pair[1].name)
		from, to := fmt.Sprintf(f.block, 1), fmt.Sprintf(f.block, 2)
		out, err := exec.Command("ip", "netns", "exec", pair[0].name, "ping", f.family, "-c", "5", "-i", "0.2", "-s",
			"1300", "-I", from, to).CombinedOutput() // the first one may be early on a busy machine
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		want := outerPacket{netip.MustParseAddr(f.outer[0]), netip.MustParseAddr(f.outer[1]), 4096,
			vtep.MAC("n2", map[string]model.Family{"-4": model.IPv4, "-6": model.IPv6}[f.family])}
		for seen := false; !seen; {
			select {
			case p := <-packets:
				seen = p == want
			case <-time.After(10 * time.Second):
				t.Fatalf("no packet %+v", want)
			}
		}
	}
}

// outerPacket is a packet of VXLAN.
type outerPacket struct {
	from, to netip.Addr
	vni      uint32
	mac      string // to which the inner one is sent
}

// capture returns the packets of VXLAN that arrive in a namespace.
func capture(t *testing.T, ns string) <-chan outerPacket {
	const all = unix.ETH_P_ALL << 8 // in the order of the network
	fd := -1
	var err error
	if in := namespace.Inside(ns, func() { fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, all) }); in != nil ||
		err != nil {
		t.Fatal(in, err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}); err != nil {
		t.Fatal(err)
	}
	packets, ended := make(chan outerPacket, 1000), make(chan bool)
	ctx := t.Context()
	go func() {
		defer close(ended)
		defer unix.Close(fd)
		for buf := make([]byte, 2000); ctx.Err() == nil; {
			if n, _, err := unix.Recvfrom(fd, buf, 0); err == nil {
				if p, ok := parseOuter(buf[:n]); ok {
					packets <- p
				}
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	return packets
}

func parseOuter(b []byte) (p outerPacket, ok bool) {
	if len(b) < 70 {
		return p, false
	}
	switch version := b[0] >> 4; {
	case version == 4 && b[9] == unix.IPPROTO_UDP:
		p.from, p.to = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		b = b[int(b[0]&15)*4:]
	case version == 6 && b[6] == unix.IPPROTO_UDP:
		p.from, p.to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		b = b[40:]
	default:
		return p, false
	}
	if len(b) < 22 || binary.BigEndian.Uint16(b[2:]) != 4789 {
		return p, false
	}
	p.vni = binary.BigEndian.Uint32(b[12:]) >> 8
	p.mac = fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[16], b[17], b[18], b[19], b[20], b[21])
	return p, true
}

// Entries that another program deletes or changes in the kernel are back with the kernel's event, before the next
// comparison, and those that it adds are removed.
func TestRepairsInTheKernel(t *testing.T) {
	n := newPair(t)[0]
	bridge := func(args string) {
		nettest.Run(t, append([]string{"bridge", "-n", n.name}, strings.Fields(args)...)...)
	}
	mac4, mac6 := vtep.MAC("n2", model.IPv4), vtep.MAC("n2", model.IPv6)
	for _, change := range []func(){
		func() { bridge("fdb del " + mac4 + " dev vxlan.calico") },
		func() { bridge("fdb replace " + mac6 + " dev vxlan-v6.calico dst fd01::77") },
		func() { n.ip("neigh del 11.1.0.2 dev vxlan.calico") },
		func() { n.ip("neigh replace fd10::2 lladdr 66:00:00:00:00:09 dev vxlan-v6.calico") },
		func() { bridge("fdb append 66:00:00:00:00:09 dev vxlan.calico dst 10.1.0.9") },
		func() { n.ip("neigh add 11.1.0.9 lladdr 66:00:00:00:00:09 dev vxlan.calico") },
	} {
		change()
		for repaired := false; !repaired; {
			select {
			case <-n.woken:
			case <-time.After(5 * time.Second): // the next comparison comes later
				t.Fatal("no event of a change")
			}
			if _, failures, err := n.target.Flush(); failures > 0 || err != nil {
				t.Fatal(failures, err, n.target.Rows())
			}
			list, _ := n.target.Repairs()
			repaired = len(list) > 0
		}
	}
	for name, want := range map[string][2]string{
		"vxlan.calico":    {mac4 + " dst 10.1.0.2 self permanent", "11.1.0.2 lladdr " + mac4 + " PERMANENT"},
		"vxlan-v6.calico": {mac6 + " dst fd01::2 self permanent", "fd10::2 lladdr " + mac6 + " PERMANENT"},
	} {
		fdb := nettest.Run(t, "bridge", "-n", n.name, "fdb", "show", "dev", name)
		neighbours := n.ip("neigh show nud permanent dev " + name)
		if strings.TrimSpace(fdb) != want[0] || !strings.HasPrefix(neighbours, want[1]) ||
			strings.Count(neighbours, "\n") != 1 {
			t.Errorf("%s has\n%s%s", name, fdb, neighbours)
		}
	}
}
