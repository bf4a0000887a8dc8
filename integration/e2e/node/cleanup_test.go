package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

const denyPing = `
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: no-ping}
spec:
  selector: all()
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: ICMP}
  - {action: Allow}
`

// TestCleanup: an ended daemon leaves its rules in force, and "manxd cleanup" removes them.
func TestCleanup(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("x"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--ipv4pool-cidr=10.244.0.0/16")...))
	must(t, n.Ready(limit))
	a, err := n.AddPod("a")
	must(t, err)
	b, err := n.AddPod("b")
	must(t, err)
	must(t, n.Apply(denyPing))
	blocked := func() error {
		if lab.Ping(a.Namespace, b.IP4()) == nil {
			return fmt.Errorf("the ping passes")
		}
		return nil
	}
	eventually(t, blocked)
	must(t, n.Manxd().Stop(limit))
	must(t, blocked())
	out, err := n.Run(filepath.Join(l.Spec.Bin, "manxd"), "cleanup", "--run-dir="+filepath.Join(n.Dir, "run"))
	must(t, err)
	if !strings.Contains(out, "removed the table inet manx") {
		t.Errorf("manxd cleanup printed %q", out)
	}
	again, err := n.Run(filepath.Join(l.Spec.Bin, "manxd"), "cleanup", "--run-dir="+filepath.Join(n.Dir, "run"))
	if err != nil || strings.Contains(again, "removed the table") {
		t.Errorf("a second manxd cleanup, which has nothing to remove, printed %q, %v", again, err)
	}
	if tables, err := n.Run("nft", "list", "tables"); err != nil || strings.Contains(tables, "manx") {
		t.Errorf("tables that are left: %q, %v", tables, err)
	}
}
