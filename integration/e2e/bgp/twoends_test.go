package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// TestBothEndsHaveSettingsOfTheirOwn: two nodes whose BGPPeers name each other. Each end uses its own BGPPeer, for any
// order of the names. The session also comes up with an unused port.
func TestBothEndsHaveSettingsOfTheirOwn(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("b"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"},
		{Name: "n2"}}})
	n1, n2 := l.Nodes[0], l.Nodes[1]
	must(t, n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools")...))
	must(t, n1.Ready(limit))
	must(t, n1.Apply(`
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.244.0.0/16, blockSize: 28, ipipMode: Never}
---
apiVersion: projectcalico.org/v3
kind: BGPFilter
metadata: {name: nothing}
spec: {importV4: [{action: Reject}]}
`))
	must(t, n2.StartManxd(lab.UseDatastore(n1)...))
	must(t, n2.Ready(limit))
	for _, n := range l.Nodes {
		_, err := n.AddPod(n.Name + "-p1") // so that it has a block
		must(t, err)
	}
	peering := func(name string, of, to *lab.Node, port, more string) string {
		return fmt.Sprintf("\n---\napiVersion: projectcalico.org/v3\nkind: BGPPeer\nmetadata: {name: %s}\nspec: "+
			"{node: %s, peerIP: %q, asNumber: 64512%s}\n", name, of.Name, to.IP4.String()+port, more)
	}
	up := func(n *lab.Node, to netip.Addr, first string) {
		t.Helper()
		world.AwaitPeer(t, n, to, "up, by "+first, func(p *manxv1.Peer) bool {
			return p.GetPhase() == "Established" && p.GetRequestedBy()[0] == "BGPPeer/"+first && p.GetType() == "node"
		})
	}
	learned := func(n *lab.Node, want bool) {
		t.Helper()
		eventually(t, func() error {
			out, err := n.Run("ip", "-4", "route", "show", "proto", "12")
			if has := strings.Contains(out, "10.244.") && strings.Contains(out, " via "); err != nil || has != want {
				return fmt.Errorf("%s: learned routes %t, want %t: %v\n%s", n.Name, has, want, err, out)
			}
			return nil
		})
	}

	must(t, n1.Apply(peering("a", n1, n2, "", "")+peering("b", n2, n1, "", ", filters: [nothing]")))
	up(n1, n2.IP4, "a")
	up(n2, n1.IP4, "b")
	learned(n1, true)
	learned(n2, false)
	out, err := n2.Manxctl("status")
	must(t, err)
	if strings.Contains(out, "dropped") {
		t.Errorf("its own settings are reported as a conflict:\n%s", out)
	}

	// n2 has the greater address: with a port in its BGPPeer it does not reach n1, and n1 connects.
	if _, err := n1.Manxctl("delete", "bgppeer", "a", "b"); err != nil {
		t.Fatal(err)
	}
	must(t, n1.Apply(peering("c", n2, n1, ":1790", "")))
	up(n1, n2.IP4, "c")
	up(n2, n1.IP4, "c")
	learned(n2, true)
	if p := world.Peer(t, n2, n1.IP4); !p.GetPassive() || p.GetPort() != 1790 {
		t.Errorf("n2: %v", p)
	}
}
