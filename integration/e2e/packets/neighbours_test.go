package packets

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
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

// gateway6 is the IPv6 gateway of every pod.
var gateway6 = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")

// tableSize returns the number of neighbours that fill the table of either family, with some more.
func tableSize(t *testing.T) int {
	t.Helper()
	most := 0
	for _, family := range []string{"ipv4", "ipv6"} {
		data, err := os.ReadFile("/proc/sys/net/" + family + "/neigh/default/gc_thresh3")
		must(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(data)))
		must(t, err)
		most = max(most, n+100)
	}
	if most > 20_000 {
		t.Skipf("this host's tables have room for %d neighbours", most)
	}
	return most
}

// TestNeighbourTable: a pod fills the neighbour tables, which are one for all network namespaces of the machine. Pods
// and nodes that the kernel has to resolve meanwhile are reached all the same.
func TestNeighbourTable(t *testing.T) {
	size := tableSize(t)
	p := newPair(t, map[string]string{"x": "n1", "a": "n1", "b": "n1", "c": "n2"})
	for _, to := range []string{"b", "c"} {
		p.Reachable(t, "a", to)
	}
	p.known(t)
	x, from := p.ports["x"], p.addresses("x")
	solicit := func(source func(i int) netip.Addr) func(int) {
		return func(i int) { _ = x.TrySend(solicitation(t, x, source(i))) } // a full queue loses some
	}
	for name, flood := range map[string]func(i int){
		"solicitations from global addresses": solicit(func(i int) netip.Addr { return numbered("2001:db8::", i) }),
		"solicitations from link-local addresses": solicit(func(i int) netip.Addr {
			return numbered("fe80::1:0", i)
		}),
		"packets to absent addresses of the nodes' subnet": func(i int) {
			to := numbered(p.N1.IP6.String(), 0x1000+i)
			_ = x.TrySend(packet.Frame(t, x.MAC, hostMAC, packet.IP(from[1], to, layers.IPProtocolUDP, 64),
				packet.UDP(7000, 7, "absent")...))
		},
	} {
		p.during(t, name, func(ctx context.Context) {
			for i := 0; ctx.Err() == nil; i++ {
				if flood(i); i >= size {
					time.Sleep(time.Millisecond) // enough to keep the table full
				}
			}
		})
	}
	ns := p.Pods["x"].Namespace
	var own []string
	for i := range size {
		for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)}),
			numbered("2001:db8::", i)} {
			own = append(own, fmt.Sprintf("neigh replace %s lladdr 02:00:00:00:00:01 nud reachable dev eth0", a))
		}
	}
	fill := func() (refused string) {
		cmd := namespace.Command(ns, "ip", "-force", "-batch", "-")
		cmd.Stdin = strings.NewReader(strings.Join(own, "\n"))
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	p.during(t, "entries in the pod itself", func(ctx context.Context) {
		for ctx.Err() == nil {
			if refused := fill(); !strings.Contains(refused, "buffer space") {
				t.Errorf("%d entries do not fill the table: %q", size, refused)
			}
		}
	})
}

// known waits until the nodes have entries for each other.
func (p *pair) known(t *testing.T) {
	t.Helper()
	for n, other := range map[*lab.Node]*lab.Node{p.N1: p.N2, p.N2: p.N1} {
		eventually(t, func() error {
			out, err := n.Run("ip", "neigh", "show", "dev", "eth0", "nud", "all")
			for _, a := range []string{other.IP4.String(), other.IP6.String(), "fe80::"} {
				if !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
					return strings.HasPrefix(line, a) && strings.Contains(line, "extern_learn")
				}) {
					return fmt.Errorf("%s has no entry of its own for %s, %v:\n%s", n.Name, a, err, out)
				}
			}
			return nil
		})
	}
}

// during has the kernel resolve all neighbours again while a flood goes on: those of nodes and pods are lost, as far as
// the kernel or others may remove them.
func (p *pair) during(t *testing.T, name string, flood func(context.Context)) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	flooding.Go(func() { flood(ctx) })
	defer flooding.Wait()
	defer stop()
	time.Sleep(500 * time.Millisecond) // in which the table fills
	needed := slices.Concat(p.addresses("a"), p.addresses("b"), p.addresses("c"),
		[]netip.Addr{p.N1.IP4, p.N1.IP6, p.N2.IP4, p.N2.IP6, gateway6})
	for _, node := range []*lab.Node{p.N1, p.N2} {
		needed = append(needed, linkLocal(t, node))
	}
	for _, ns := range []string{p.N1.Namespace, p.N2.Namespace, p.Pods["a"].Namespace, p.Pods["b"].Namespace,
		p.Pods["c"].Namespace} {
		forgetNeighbours(t, ns, needed)
	}
	var pinging sync.WaitGroup
	defer pinging.Wait()
	ping := func(from string, to netip.Addr) {
		out, err := namespace.Command(from, "ping", "-c", "3", "-i", "0.1", "-W", "1", to.String()).CombinedOutput()
		if err != nil || !strings.Contains(string(out), " 0% packet loss") {
			t.Errorf("%s: from %s to %s: %v\n%s", name, from, to, err, out)
		}
	}
	for i := range 2 {
		pinging.Go(func() { ping(p.Pods["a"].Namespace, p.addresses("b")[i]) })
		pinging.Go(func() { ping(p.Pods["a"].Namespace, p.addresses("c")[i]) })
		pinging.Go(func() { ping(p.N1.Namespace, []netip.Addr{p.N2.IP4, p.N2.IP6}[i]) })
	}
}

// linkLocal returns the link-local address of a node's uplink.
func linkLocal(t *testing.T, n *lab.Node) netip.Addr {
	t.Helper()
	out, err := n.Run("ip", "-o", "-6", "addr", "show", "dev", "eth0", "scope", "link")
	must(t, err)
	a, err := netip.ParsePrefix(strings.Fields(out)[3])
	must(t, err)
	return a.Addr()
}

// forgetNeighbours removes the entries of addresses from a namespace, as far as the kernel may collect them, and makes
// it resolve anew those that it resolves itself.
func forgetNeighbours(t *testing.T, ns string, addresses []netip.Addr) {
	t.Helper()
	out, err := namespace.Command(ns, "ip", "neigh", "show", "nud", "all").CombinedOutput()
	must(t, err)
	var batch []string
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		a, err := netip.ParseAddr(words[0])
		if err != nil || !slices.Contains(addresses, a) {
			continue
		}
		switch {
		case strings.Contains(line, "PERMANENT"):
		case strings.Contains(line, "extern_learn"):
			batch = append(batch, fmt.Sprintf("neigh replace %s dev %s extern_learn nud none protocol 80", words[0],
				words[2]))
		default:
			batch = append(batch, fmt.Sprintf("neigh del %s dev %s", words[0], words[2]))
		}
	}
	cmd := namespace.Command(ns, "ip", "-force", "-batch", "-") // some are gone meanwhile
	cmd.Stdin = strings.NewReader(strings.Join(batch, "\n"))
	_, _ = cmd.CombinedOutput()
}

// solicitation is a neighbour solicitation for the gateway, with a link-layer address.
func solicitation(t *testing.T, x *packet.Port, source netip.Addr) []byte {
	t.Helper()
	return packet.Frame(t, x.MAC, hostMAC, packet.IP(source, gateway6, layers.IPProtocolICMPv6, 255),
		[]gopacket.SerializableLayer{
			&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0)},
			&layers.ICMPv6NeighborSolicitation{TargetAddress: gateway6.AsSlice(), Options: layers.ICMPv6Options{
				{Type: layers.ICMPv6OptSourceAddress, Data: x.MAC}}}}...)
}

// numbered returns the address that is i behind another one in its last 32 bits.
func numbered(base string, i int) netip.Addr {
	b := netip.MustParseAddr(base).As16()
	b[12], b[13], b[14], b[15] = b[12]+byte(i>>24), b[13]+byte(i>>16), byte(i>>8), byte(i)
	return netip.AddrFrom16(b)
}

// TestNeighboursFollowWorkloads: the host's entry of a pod follows the pod's hardware address, makes room for a virtual
// machine behind a bridge, stays while manxd is away, and goes with the pod.
func TestNeighboursFollowWorkloads(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1", "b": "n1", "v": "n1"})
	entry := func(pod string, i int) string {
		out, err := p.N1.Run("ip", "neigh", "show", p.addresses(pod)[i].String(), "nud", "all")
		must(t, err)
		return out
	}
	for pod, port := range p.ports {
		for i := range 2 {
			if e := entry(pod, i); !strings.Contains(e, "lladdr "+port.MAC.String()+" PERMANENT") {
				t.Errorf("the entry of %s is %q", pod, e)
			}
		}
	}
	const changed = "0a:00:00:00:00:42"
	must(t, namespace.Batch(p.Pods["b"].Namespace, "link set eth0 address "+changed, // which removes the pod's entries
		"neigh replace 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0"))
	must(t, namespace.Batch(p.Pods["v"].Namespace, "link add br0 up type bridge", "link set eth0 master br0",
		"addr flush dev eth0", "link add tap0 up master br0 address 0a:00:00:00:00:43 type veth peer name vm0"))
	vm := p.Pods["v"].Namespace + "m"
	must(t, namespace.Add(vm))
	t.Cleanup(func() { must(t, namespace.Remove(vm)) })
	must(t, namespace.Batch(p.Pods["v"].Namespace, "link set vm0 netns "+vm))
	must(t, namespace.Batch(vm, "link set vm0 up", fmt.Sprintf("addr add %s/32 dev vm0", p.addresses("v")[0]),
		fmt.Sprintf("addr add %s/128 dev vm0 nodad", p.addresses("v")[1]), "route add 169.254.1.1 dev vm0",
		"route add default via 169.254.1.1", "neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev vm0",
		fmt.Sprintf("route add ::/0 via %s dev vm0", gateway6)))
	for _, to := range []string{"b", "v"} {
		p.Reachable(t, "a", to)
	}
	for i := range 2 {
		if e := entry("b", i); !strings.Contains(e, "lladdr "+changed+" PERMANENT") {
			t.Errorf("the entry of the changed pod is %q", e)
		}
		if e := entry("v", i); !strings.Contains(e, "extern_learn") || strings.Contains(e, "PERMANENT") {
			t.Errorf("the entry of the virtual machine is %q", e)
		}
	}
	before := entry("a", 0) + entry("a", 1) + entry("b", 0)
	must(t, p.N1.Manxd().Stop(time.Minute))
	if after := entry("a", 0) + entry("a", 1) + entry("b", 0); after != before {
		t.Errorf("without manxd the entries are %q, want %q", after, before)
	}
	must(t, p.N1.StartManxd(append(p.N1.EmbedDatastore(), "--no-default-pools")...))
	must(t, p.N1.Ready(time.Minute))
	must(t, p.Pods["b"].Delete())
	if after := entry("a", 0) + entry("a", 1) + entry("b", 0); after != entry("a", 0)+entry("a", 1) ||
		!strings.HasPrefix(before, after) {
		t.Errorf("after a restart and DEL the entries are %q, want %q without the last", after, before)
	}
}
