package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestBandwidth sets limits of a pod with manxctl and removes them; the kernel follows.
func TestBandwidth(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("q"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--no-default-pools")...))
	must(t, n.Ready(limit))
	must(t, n.Apply("{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: four}, spec: {cidr: "+
		"10.244.0.0/16}}"))
	_, err := n.AddPod("limited")
	must(t, err)
	yaml, err := n.Manxctl("get", "workloadendpoints", "-A", "-o", "yaml")
	must(t, err)
	if !strings.Contains(yaml, "  spec:\n") {
		t.Fatalf("endpoint without spec:\n%s", yaml)
	}
	queues := func() string {
		out, err := n.Run("tc", "qdisc", "show")
		if err != nil {
			t.Skipf("tc: %v", err)
		}
		return out
	}
	if q := queues(); strings.Contains(q, "tbf") {
		t.Fatalf("limits before there are any:\n%s", q)
	}
	must(t, n.Apply(strings.Replace(yaml, "  spec:\n",
		"  spec:\n    qosControls: {ingressBandwidth: 10000000, ingressBurst: 800000, egressBandwidth: 20000000, "+
			"egressBurst: 800000}\n", 1)))
	eventually(t, func() error {
		q := queues()
		for _, want := range []string{"dev cali", "rate 10Mbit burst 100000b", "dev bwcali",
			"rate 20Mbit burst 100000b", "qdisc ingress ffff:"} {
			if !strings.Contains(q, want) {
				out, _ := n.Manxctl("status")
				if strings.Contains(out, "not supported by this kernel") {
					t.Skipf("the kernel cannot limit bandwidth:\n%s", out)
				}
				return fmt.Errorf("lacks %q:\n%s\n%s", want, q, out)
			}
		}
		return nil
	})
	yaml, err = n.Manxctl("get", "workloadendpoints", "-A", "-o", "yaml")
	must(t, err)
	var without strings.Builder
	for line := range strings.Lines(yaml) {
		if field := strings.TrimSpace(line); !strings.HasPrefix(field, "qosControls:") &&
			!strings.HasPrefix(field, "ingressB") && !strings.HasPrefix(field, "egressB") {
			without.WriteString(line)
		}
	}
	must(t, n.Apply(without.String()))
	eventually(t, func() error {
		if q := queues(); strings.Contains(q, "tbf") || strings.Contains(q, "bwcali") ||
			strings.Contains(q, "qdisc ingress") {
			return fmt.Errorf("limits are left:\n%s", q)
		}
		return nil
	})
}
