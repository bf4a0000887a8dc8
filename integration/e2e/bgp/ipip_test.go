package bgp

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestPoolThatTheKernelCannotServe: a cluster on a kernel without IPIP has one pool that requires IPIP and one that
// does not.
func TestPoolThatTheKernelCannotServe(t *testing.T) {
	bin := world.Binaries(t)
	l, err := lab.New(lab.Spec{Name: fmt.Sprintf("i%d", os.Getpid()%1000000), Bin: bin,
		Nodes: []lab.NodeSpec{{Name: "n1", Rack: 0}, {Name: "n2", Rack: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	n1, n2 := l.Nodes[0], l.Nodes[1]
	if exec.Command("ip", "-n", n1.Namespace, "link", "add", "tunl0", "type", "ipip").Run() == nil {
		t.Skip("this kernel has IPIP; the demo and the tests in the virtual machine use it")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\nlog of n1:\n%s", err, n1.Log())
		}
	}
	must(n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools")...))
	must(n1.Ready(30 * time.Second))
	must(n2.StartManxd(append(lab.UseDatastore(n1), "--no-default-pools")...))
	must(n2.Ready(30 * time.Second))
	must(n1.Apply(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: plain}
spec: {cidr: 10.244.0.0/16}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: tunnelled}
spec: {cidr: 10.245.0.0/16, ipipMode: Always}
`))
	from := func(pool string) func(map[string]any) {
		return func(conf map[string]any) { conf["ipam"].(map[string]any)["ipv4_pools"] = []string{pool} }
	}
	plain1, err := n1.AddPod("plain1", from("plain"))
	must(err)
	plain2, err := n2.AddPod("plain2", from("plain"))
	must(err)
	tunnelled2, err := n2.AddPod("tunnelled2", from("tunnelled"))
	must(err)
	// The nodes are in different subnets: the router between them needs routes to the pods of the plain pool.
	for _, p := range []*lab.Pod{plain1, plain2} {
		_, err := exec.Command("ip", "-n", l.ToRs[0].Namespace, "route", "add", p.IP4().String(), "via",
			p.Node.IP4.String()).CombinedOutput()
		must(err)
	}
	must(lab.Eventually(20*time.Second, func() error { return lab.Ping(plain1.Namespace, plain2.IP4()) }))

	const reason = "this kernel has no IPIP (CONFIG_NET_IPIP); pool tunnelled cannot be used on this node"
	must(lab.Eventually(20*time.Second, func() error {
		out, err := n1.Manxctl("routes")
		if err == nil && !strings.Contains(out, reason) {
			err = fmt.Errorf("no route has the reason %q:\n%s", reason, out)
		}
		return err
	}))
	block, err := tunnelled2.IP4().Prefix(26)
	must(err)
	if out, err := n1.Routes("-4"); err != nil || strings.Contains(out, block.String()) {
		t.Errorf("there is a route for %s that does not go through the tunnel: %v\n%s", tunnelled2.IP4(), err, out)
	}
	if out, _ := n1.Manxctl("status"); !strings.Contains(out, "no IPIP") {
		t.Errorf("`manxctl status` does not report it:\n%s", out)
	}
}
