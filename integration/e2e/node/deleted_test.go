package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestNodeDeleted deletes the Node of a running daemon. The daemon has a configured address, so it does not detect its
// address again. The Node comes back with its labels, and so does the session of the other node.
func TestNodeDeleted(t *testing.T) {
	t.Parallel()
	l := world.NewLab(t, lab.Spec{Name: world.LabName("d"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"},
		{Name: "n2"}}})
	n1, n2 := l.Nodes[0], l.Nodes[1]
	must(t, n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools")...))
	must(t, n2.StartManxd(append(lab.UseDatastore(n1), "--no-default-pools", "--ip="+n2.IP4.String()+"/24")...))
	session := func(up bool) {
		t.Helper()
		eventually(t, func() error {
			out, err := n1.Manxctl("node", "status")
			if got := strings.Contains(out, n2.IP4.String()) && strings.Contains(out, "Established"); got != up {
				return fmt.Errorf("the session with n2 is up %t, want %t: %v\n%s", got, up, err, out)
			}
			return nil
		})
	}
	session(true)
	must(t, n1.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: Node\n"+
		"metadata: {name: n2, labels: {rack: '7'}}\n"+
		"spec: {bgp: {ipv4Address: %s/24}}\n", n2.IP4)))
	eventually(t, func() error {
		out, err := n2.Manxctl("get", "node", "n2", "-o", "yaml")
		if !strings.Contains(out, "rack:") {
			return fmt.Errorf("no label: %v\n%s", err, out)
		}
		return nil
	})
	_, err := n1.Manxctl("delete", "node", "n2")
	must(t, err)
	session(false)
	session(true)
	out, err := n1.Manxctl("get", "node", "n2", "-o", "yaml")
	must(t, err)
	world.Contains(t, "the Node that is back", out, "rack:", n2.IP4.String())
}
