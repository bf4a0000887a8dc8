package bench

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// BenchmarkOverlay sends between pods of two nodes, without an overlay and by VXLAN: through nodes of Manx, and through
// the same made by ip and bridge alone. All exist from the start and are measured in turns.
func BenchmarkOverlay(b *testing.B) {
	bin, missing := lab.Require("ip")
	if missing != nil {
		b.Skip(missing)
	}
	for _, program := range []string{"iperf3", "bridge"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skip(program + " is not installed")
		}
	}
	const pairs = 6
	modes := []string{"Never", "Always"}
	var text strings.Builder
	var plain [2]*path
	for i, mode := range modes {
		manx := podPaths(b, "m"+mode, bin, 0, ", vxlanMode: "+mode)[0]
		byHand := ipPath(b, "ip-"+mode, mode == "Always")
		if plain[0] == nil {
			plain = [2]*path{manx, byHand}
		}
		fmt.Fprintf(&text, "\nvxlanMode %s", mode)
		compare(b, &text, byHand, manx, pairs*b.N)
		if i > 0 {
			fmt.Fprintf(&text, "\nManx, vxlanMode %s beside %s", mode, modes[0])
			compare(b, &text, plain[0], manx, pairs*b.N)
		}
	}
	fmt.Println(text.String())
	b.ReportMetric(0, "ns/op")
}

// ipPath makes two nodes with a pod each, and a switch between them, by ip and bridge: with routes to each other's
// pods, or with VXLAN as Manx makes it.
func ipPath(b *testing.B, name string, vxlan bool) *path {
	b.Helper()
	p := &path{B: b, name: name, client: namespace.New(b, "manxob"), server: namespace.New(b, "manxob"),
		address: "10.244.2.9"}
	tor := namespace.New(b, "manxob")
	p.ip("-n", tor, "link", "add", "br0", "type", "bridge")
	p.ip("-n", tor, "link", "set", "br0", "up")
	nodes := [2]string{namespace.New(b, "manxob"), namespace.New(b, "manxob")}
	p.node = nodes[0]
	for i, pod := range []string{p.client, p.server} {
		own, other := i+1, 2-i
		node := func(format string, args ...any) {
			p.ip(append([]string{"-n", nodes[i]}, strings.Fields(fmt.Sprintf(format, args...))...)...)
		}
		port := fmt.Sprint("n", own)
		p.ip("-n", tor, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", nodes[i])
		p.ip("-n", tor, "link", "set", port, "up", "master", "br0")
		node("addr add 10.200.9.%d/24 dev eth0", own)
		node("link set eth0 up")
		node("link add cali1 type veth peer name eth0 netns %s", pod)
		node("link set cali1 up")
		node("addr add 169.254.1.1/32 dev cali1")
		node("route add 10.244.%d.9/32 dev cali1", own)
		p.ip("netns", "exec", nodes[i], "sysctl", "-qw", "net.ipv4.ip_forward=1")
		p.ip("-n", pod, "addr", "add", fmt.Sprintf("10.244.%d.9/32", own), "dev", "eth0")
		p.ip("-n", pod, "link", "set", "eth0", "up")
		p.ip("-n", pod, "route", "add", "169.254.1.1/32", "dev", "eth0")
		p.ip("-n", pod, "route", "add", "default", "via", "169.254.1.1")
		if !vxlan {
			node("route add 10.244.%d.0/24 via 10.200.9.%[1]d", other)
			continue
		}
		p.ip("-n", pod, "link", "set", "eth0", "mtu", "1450")
		node("link set cali1 mtu 1450")
		node("link add vxlan.calico address 66:00:00:00:00:0%d mtu 1450 type vxlan id 4096 dstport 4789 "+
			"local 10.200.9.%[1]d nolearning", own)
		node("addr add 10.244.%d.0/32 dev vxlan.calico", own)
		node("link set vxlan.calico up")
		p.ip("netns", "exec", nodes[i], "bridge", "fdb", "add", fmt.Sprintf("66:00:00:00:00:0%d", other), "dev",
			"vxlan.calico", "dst", fmt.Sprintf("10.200.9.%d", other), "self", "permanent")
		node("neigh add 10.244.%d.0 lladdr 66:00:00:00:00:0%[1]d dev vxlan.calico nud permanent", other)
		node("route add 10.244.%d.0/24 via 10.244.%[1]d.0 dev vxlan.calico onlink", other)
	}
	p.serve()
	return p
}
