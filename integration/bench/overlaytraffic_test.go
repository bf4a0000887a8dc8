package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// overlay is a way between the pods of two nodes.
type overlay struct {
	name, kind, device string // kind is the device's; both are empty without a device
	pool4, pool6       string // fields of the pools
	felix              string // fields of the FelixConfiguration
	mtu                int
}

var (
	noOverlay = overlay{name: "none", mtu: 1500}
	overlays  = []overlay{noOverlay,
		{name: "VXLAN", kind: "vxlan", device: "vxlan.calico", pool4: ", vxlanMode: Always",
			pool6: ", vxlanMode: Always", mtu: 1450},
		{name: "IPIP", kind: "ipip", device: "tunl0", pool4: ", ipipMode: Always", mtu: 1480},
		{name: "WG", kind: "wireguard", device: "wireguard.cali", felix: "wireguardEnabled: true", mtu: 1440}}
)

// BenchmarkOverlay sends between pods of two nodes, without an overlay and by each that the kernel has: through nodes
// of Manx, and through the same made by ip, bridge and wg alone. All exist from the start and are measured in turns.
func BenchmarkOverlay(b *testing.B) {
	bin, missing := lab.Require("ip")
	if missing != nil {
		b.Skip(missing)
	}
	for _, program := range []string{"iperf3", "bridge", "wg"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skip(program + " is not installed")
		}
	}
	const pairs = 6
	var text strings.Builder
	var none *path
	for _, o := range overlays {
		if out, err := o.inKernel(b); err != nil {
			fmt.Fprintf(&text, "\n%s is left out: %v: %s", o.name, err, out)
			continue
		}
		manx, byHand := podPaths(b, "m"+o.name, bin, 0, o)[0], ipPath(b, "ip-"+o.name, o)
		fmt.Fprintf(&text, "\n%s", o.name)
		compare(b, &text, byHand, manx, pairs*b.N)
		if none == nil {
			none = manx
			continue
		}
		fmt.Fprintf(&text, "\nManx, %s beside none", o.name)
		compare(b, &text, none, manx, pairs*b.N)
	}
	fmt.Println(text.String())
	b.ReportMetric(0, "ns/op")
}

// inKernel returns an error if the kernel does not have the kind of device.
func (o overlay) inKernel(b *testing.B) ([]byte, error) {
	if o.kind == "" || o.kind == "vxlan" { // which needs parameters, and is in all kernels here
		return nil, nil
	}
	args := []string{"-n", namespace.New(b, "manxob"), "link", "add", "probe", "type", o.kind}
	if o.kind == "ipip" {
		args = append(args, "local", "192.0.2.1")
	}
	return exec.Command("ip", args...).CombinedOutput()
}

// sent returns an error if a device has sent no packet.
func (o overlay) sent(n *lab.Node) error {
	if o.device == "" {
		return nil
	}
	out, err := n.Run("ip", "-j", "-s", "link", "show", "dev", o.device)
	if err != nil {
		return err
	}
	var links []struct {
		Stats64 struct{ Tx struct{ Packets int } }
	}
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 || links[0].Stats64.Tx.Packets == 0 {
		return fmt.Errorf("%s has sent nothing: %w: %s", o.device, err, out)
	}
	return nil
}

// objects are the pools and the FelixConfiguration.
func (o overlay) objects() string {
	pool := func(name, cidr, fields string) string {
		return world.Resource("IPPool", name, "cidr: '"+cidr+"'"+fields)
	}
	return pool("four", "10.244.0.0/16", o.pool4) + pool("six", "fd00:244::/64", o.pool6) +
		world.Resource("FelixConfiguration", "default", o.felix)
}

// ipPath makes two nodes with a pod each, and a switch between them, by ip, bridge and wg: with routes to each other's
// pods, or with an overlay as Manx makes it.
func ipPath(b *testing.B, name string, o overlay) *path {
	b.Helper()
	p := &path{B: b, name: name, client: namespace.New(b, "manxob"), server: namespace.New(b, "manxob"),
		address: "10.244.2.9"}
	tor := namespace.New(b, "manxob")
	p.ip("-n", tor, "link", "add", "br0", "type", "bridge")
	p.ip("-n", tor, "link", "set", "br0", "up")
	h := &byHand{path: p, overlay: o, nodes: [2]string{namespace.New(b, "manxob"), namespace.New(b, "manxob")}}
	p.node = h.nodes[0]
	for i, pod := range []string{p.client, p.server} {
		own, port := i+1, fmt.Sprint("n", i+1)
		p.ip("-n", tor, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", h.nodes[i])
		p.ip("-n", tor, "link", "set", port, "up", "master", "br0")
		h.ip(i, "addr add 10.200.9.%d/24 dev eth0", own)
		h.ip(i, "link set eth0 up")
		h.ip(i, "link add cali1 mtu %d type veth peer name eth0 mtu %[1]d netns %s", o.mtu, pod)
		h.ip(i, "link set cali1 up")
		h.ip(i, "addr add 169.254.1.1/32 dev cali1")
		h.ip(i, "route add 10.244.%d.9/32 dev cali1", own)
		h.run(i, "sysctl -qw net.ipv4.ip_forward=1")
		p.ip("-n", pod, "addr", "add", fmt.Sprintf("10.244.%d.9/32", own), "dev", "eth0")
		p.ip("-n", pod, "link", "set", "eth0", "up")
		p.ip("-n", pod, "route", "add", "169.254.1.1/32", "dev", "eth0")
		p.ip("-n", pod, "route", "add", "default", "via", "169.254.1.1")
		h.tunnel(i)
	}
	p.serve()
	return p
}

// byHand are two nodes.
type byHand struct {
	*path
	overlay
	nodes [2]string // their network namespaces
	keys  [2]string // the public keys of WireGuard
}

// ip runs ip on a node.
func (h *byHand) ip(node int, format string, args ...any) {
	h.path.ip(append([]string{"-n", h.nodes[node]}, strings.Fields(fmt.Sprintf(format, args...))...)...)
}

// run runs another program on a node.
func (h *byHand) run(node int, format string, args ...any) {
	h.path.ip(append([]string{"netns", "exec", h.nodes[node]}, strings.Fields(fmt.Sprintf(format, args...))...)...)
}

// tunnel makes the device of a node, its addresses and the route to the pods of the other one.
func (h *byHand) tunnel(node int) {
	own, other := node+1, 2-node
	switch h.kind {
	case "":
		h.ip(node, "route add 10.244.%d.0/24 via 10.200.9.%[1]d", other)
		return
	case "vxlan":
		h.ip(node, "link add vxlan.calico address 66:00:00:00:00:0%d mtu %d type vxlan id 4096 dstport 4789 "+
			"local 10.200.9.%[1]d nolearning", own, h.mtu)
	case "ipip":
		h.ip(node, "link set tunl0 mtu %d", h.mtu) // each namespace has it
	case "wireguard":
		h.ip(node, "link add wireguard.cali mtu %d type wireguard", h.mtu)
	}
	h.ip(node, "addr add 10.244.%d.0/32 dev %s", own, h.device)
	h.ip(node, "link set %s up", h.device)
	switch h.kind {
	case "vxlan":
		h.run(node, "bridge fdb add 66:00:00:00:00:0%d dev vxlan.calico dst 10.200.9.%[1]d self permanent", other)
		h.ip(node, "neigh add 10.244.%d.0 lladdr 66:00:00:00:00:0%[1]d dev vxlan.calico nud permanent", other)
		h.ip(node, "route add 10.244.%d.0/24 via 10.244.%[1]d.0 dev vxlan.calico onlink", other)
	case "ipip":
		h.ip(node, "route add 10.244.%d.0/24 via 10.200.9.%[1]d dev tunl0 onlink", other)
	case "wireguard":
		h.ip(node, "route add 10.244.%d.0/24 dev wireguard.cali", other)
		h.key(node)
	}
}

// key gives a node a key, and both nodes that of the other one once there are two.
func (h *byHand) key(node int) {
	private := filepath.Join(h.TempDir(), "key")
	content, err := exec.Command("wg", "genkey").Output()
	if err != nil {
		h.Fatal(err)
	}
	if err := os.WriteFile(private, content, 0o600); err != nil {
		h.Fatal(err)
	}
	h.run(node, "wg set wireguard.cali listen-port 51820 private-key %s", private)
	show := namespace.Command(h.nodes[node], "wg", "show", "wireguard.cali", "public-key")
	if content, err = show.Output(); err != nil {
		h.Fatal(err)
	}
	if h.keys[node] = strings.TrimSpace(string(content)); node == 0 {
		return
	}
	for i := range h.nodes {
		h.run(i, "wg set wireguard.cali peer %s allowed-ips 10.244.%d.0/24 endpoint 10.200.9.%[2]d:51820", h.keys[1-i],
			2-i)
	}
}
