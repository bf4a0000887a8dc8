package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// BenchmarkPeerTraffic sends between pods of two nodes, with this build and with another one, whose programs are in the
// folder of MANX_PEER_BIN. Both exist from the start and are measured in turns.
func BenchmarkPeerTraffic(b *testing.B) {
	other := os.Getenv("MANX_PEER_BIN")
	bin, missing := lab.Require("ip", "iperf3")
	if missing != nil || other == "" {
		b.Skip("MANX_PEER_BIN names the programs of another build: ", missing)
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		b.Skip("iperf3 is not installed")
	}
	for _, policies := range []int{1, 1000} {
		was, is := podPaths(b, fmt.Sprintf("o%d", policies), other, policies, noOverlay),
			podPaths(b, fmt.Sprintf("m%d", policies), bin, policies, noOverlay)
		const pairs = 12
		var text strings.Builder
		for i, family := range []string{"4", "6"} {
			fmt.Fprintf(&text, "\nIPv%s, %d policies", family, policies)
			compare(b, &text, was[i], is[i], pairs*b.N)
		}
		fmt.Println(text.String())
	}
	b.ReportMetric(0, "ns/op")
}

// podPaths returns the way from a pod to one of another node, by IPv4 and by IPv6. The policies select both pods, and
// the last of them allows the traffic.
func podPaths(b *testing.B, name, bin string, policies int, o overlay) (paths [2]*path) {
	b.Helper()
	l, err := lab.New(lab.Spec{Name: name, Bin: bin, IPv6: true, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	var objects strings.Builder
	objects.WriteString(o.objects())
	nets, ports := trafficPolicies(policies)
	for i := range nets {
		rule := fmt.Sprintf("{action: Allow, protocol: TCP, source: {nets: [%s]}, destination: {ports: [%d]}}", nets[i],
			ports[i])
		if ports[i] == 0 {
			rule = "{action: Allow}"
		}
		objects.WriteString(world.GlobalPolicy(fmt.Sprintf("p%05d", i), fmt.Sprintf("order: %d, selector: all(), "+
			"types: [Ingress, Egress], ingress: [%s], egress: [{action: Allow}]", i, rule)))
	}
	n1, n2 := l.Nodes[0], l.Nodes[1]
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	check(n1.StartManxd(append(n1.EmbedDatastore(), world.PairFlags...)...))
	check(n1.Ready(world.Limit))
	check(n1.Apply(objects.String()))
	check(n2.StartManxd(append(lab.UseDatastore(n1), world.PairFlags...)...))
	check(n2.Ready(world.Limit))
	client, err := n1.AddPod("c", lab.DualStack)
	check(err)
	server, err := n2.AddPod("s", lab.DualStack)
	check(err)
	for i, a := range server.IPs {
		check(lab.Eventually(world.Limit, func() error {
			return errors.Join(lab.Ping(client.Namespace, a), o.sent(n1)) // the first packets may go without it
		}))
		p := &path{B: b, name: fmt.Sprintf("%s-IPv%d", name, 4+2*i), client: client.Namespace, node: n1.Namespace,
			server: server.Namespace, address: a.String()}
		if i == 0 {
			p.serve() // iperf3 serves both families
		} else {
			p.results = map[string][]float64{}
			p.background(p.connector(p.server, "serve"))
		}
		paths[i] = p
	}
	return paths
}
