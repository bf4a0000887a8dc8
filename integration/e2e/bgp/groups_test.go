package bgp

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// groupResources separate the nodes with the label calico=1 from those with calico=2: each group has its own full mesh
// and its own pool, the first without encapsulation, the second with tunnels.
const groupResources = `
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false, asNumber: 64512}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: group-1}
spec: {nodeSelector: calico == '1', peerSelector: calico == '1'}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: group-2}
spec: {nodeSelector: calico == '2', peerSelector: calico == '2'}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: plain}
spec: {cidr: 10.244.0.0/16, nodeSelector: calico == '1'}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: tunnelled}
spec: {cidr: 10.245.0.0/16, ipipMode: Always, nodeSelector: calico == '2'}
`

// TestGroupsOfNodes keeps two groups of nodes apart. On a kernel without IPIP, the nodes of the second group cannot
// reach each other, and report this. Everything else works, too.
func TestGroupsOfNodes(t *testing.T) { testGroups(t) }

// TestVMGroupsOfNodes does the same on a kernel with IPIP.
func TestVMGroupsOfNodes(t *testing.T) {
	if !testGroups(t) {
		t.Skip("this kernel has no IPIP; `make test-vm` runs it on one that has")
	}
}

// testGroups returns whether the kernel has IPIP.
func testGroups(t *testing.T) (tunnels bool) {
	// The nodes of the first group share a switch; those of the second have a router between them without routes to
	// pods.
	l := world.NewLab(t, lab.Spec{Name: world.LabName("g"), PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}, {Name: "n4", Rack: 1}}})
	tunnels = exec.Command("ip", "-n", l.ToRs[0].Namespace, "link", "add", "tunl0", "type", "ipip").Run() == nil ||
		exec.Command("ip", "-n", l.ToRs[0].Namespace, "link", "show", "tunl0").Run() == nil
	n1 := l.Nodes[0]
	must(t, n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools")...))
	must(t, n1.Ready(limit))
	must(t, n1.Apply(groupResources))
	for _, n := range l.Nodes[1:] {
		must(t, n.StartManxd(append(lab.UseDatastore(n1), "--no-default-pools")...))
	}
	pods := make([]*lab.Pod, len(l.Nodes))
	group := func(i int) int { return 1 + i/2 }
	for i, n := range l.Nodes {
		must(t, n.Ready(limit))
		eventually(t, func() error { // the node writes its object, too
			return n1.EditNode(n.Name, func(r lab.Resource) { r.Label("calico", fmt.Sprint(group(i))) })
		})
	}
	for i, n := range l.Nodes {
		partner := l.Nodes[i^1].IP4.String()
		eventually(t, func() error {
			list := world.Peers(t, n)
			if len(list) != 1 || list[0].GetAddress() != partner || list[0].GetState() != "Established" {
				return fmt.Errorf("%s: want one session, with %s: %v", n.Name, partner, list)
			}
			return nil
		})
		p, err := n.AddPod("pod-" + n.Name)
		must(t, err)
		if want := fmt.Sprintf("10.24%d.", 3+group(i)); !strings.HasPrefix(p.IP4().String(), want) {
			t.Errorf("%s has %s, want an address of its group's pool, %s", p.Name, p.IP4(), want)
		}
		pods[i] = p
	}

	for i, from := range pods {
		for j, to := range pods {
			switch {
			case i == j || group(i) != group(j):
			case group(i) == 2 && !tunnels:
				awaitGroupNotice(t, from.Node)
			default:
				eventually(t, func() error { return lab.Ping(from.Namespace, to.IP4()) })
			}
		}
	}
	for i, from := range pods {
		for j, to := range pods {
			if group(i) == group(j) {
				continue
			}
			if err := lab.Ping(from.Namespace, to.IP4()); err == nil {
				t.Errorf("%s of group %d reaches %s of group %d", from.Name, group(i), to.Name, group(j))
			}
		}
		for _, family := range []string{"proto bird", "proto 80"} {
			out, err := from.Node.Run("ip", append([]string{"route", "show"}, strings.Fields(family)...)...)
			must(t, err)
			if other := fmt.Sprintf("10.24%d.", 6-group(i)); strings.Contains(out, other) {
				t.Errorf("%s of group %d has a route to the other group's pods:\n%s", from.Node.Name, group(i), out)
			}
		}
	}
	for _, from := range l.Nodes {
		for _, to := range l.Nodes {
			must(t, lab.Ping(from.Namespace, to.IP4))
		}
	}
	return tunnels
}

// awaitGroupNotice waits until a node reports that its group's pool needs a feature that the kernel lacks.
func awaitGroupNotice(t *testing.T, n *lab.Node) {
	t.Helper()
	const reason = "this kernel has no IPIP (CONFIG_NET_IPIP); pool tunnelled cannot be used on this node"
	eventually(t, func() error {
		out, err := n.Manxctl("routes")
		if err == nil && !strings.Contains(out, reason) {
			err = fmt.Errorf("no route of %s has the reason %q:\n%s", n.Name, reason, out)
		}
		return err
	})
}
