package main_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

const plannedCluster = `{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: pods},
 spec: {cidr: 10.99.0.0/24}}
---
{apiVersion: projectcalico.org/v3, kind: BGPConfiguration, metadata: {name: default},
 spec: {asNumber: 64512, nodeToNodeMeshEnabled: false}}
---
{apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: tor-a},
 spec: {peerIP: 10.0.0.254, asNumber: 65001, nodeSelector: "rack == 'a'",
  password: {secretKeyRef: {name: bgp, key: a}}}}
---
{apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: tor-b},
 spec: {peerIP: 10.0.0.253, asNumber: 65002, nodeSelector: "rack == 'b'"}}
---
{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n1, labels: {rack: a}},
 spec: {bgp: {ipv4Address: 10.0.0.1/24}}}
---
{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n2, labels: {rack: a}},
 spec: {bgp: {ipv4Address: 10.0.0.2/24}}}
---
{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n3, labels: {rack: b}},
 spec: {bgp: {ipv4Address: 10.0.0.3/24}}}
---
{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: web, namespace: shop},
 spec: {selector: "app == 'web'", ingress: [{action: Allow, protocol: TCP, destination: {ports: [80]}}]}}
---
`

// TestPlanAllNodes compares files with a live datastore: a line for each node that changes, the totals, and the exit
// code; nothing is written, and what the files lack stays.
func TestPlanAllNodes(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	s.mustPipe(plannedCluster, "create", "-f", "-")
	address := assign(t, server.Store(t), "n3", "10.99.0.0/24", "shop/web")
	s.mustPipe(strings.NewReplacer("NS", "shop", "POD", "web", "10.0.0.1/32", address+"/32", "node-1", "n3").
		Replace(endpoint), "create", "-f", "-")
	plan := func(change string, more ...string) result {
		return s.pipe(change, append([]string{"plan", "-f", "-", "--against", "cluster"}, more...)...)
	}
	const same = "3 nodes, 0 changed: 0 sessions reset, 0 new, 0 removed; 0 policies changed, on 0 nodes; 0 routes " +
		"withdrawn, 0 announced\n"
	plan(plannedCluster, "--all-nodes").want(t, 0, same)
	// The TTL of a session resets it; a node keeps the address that its file lacks; a policy has other rules.
	change := resource("BGPPeer", "name: tor-a", `peerIP: 10.0.0.254, asNumber: 65009, nodeSelector: "rack == 'a'", `+
		"password: {secretKeyRef: {name: bgp, key: a}}") + resource("Node", "name: n1, labels: {rack: a}", "") +
		strings.Replace(plannedCluster[strings.Index(plannedCluster, "{apiVersion: projectcalico.org/v3, kind: Netw"):],
			"[80]", "[81]", 1)
	plan(change, "--all-nodes").want(t, 3, "n1: 1 session reset (10.0.0.254)\nn2: 1 session reset (10.0.0.254)\n"+
		"n3: 1 policy changed (NetworkPolicy/shop/web)\n"+
		"3 nodes, 3 changed: 2 sessions reset, 0 new, 0 removed; 1 policy changed, on 1 node; 0 routes withdrawn, "+
		"0 announced\n")
	// Another mode of a pool: how the nodes get there, and what may be lost.
	plan(resource("IPPool", "name: pods", "cidr: 10.99.0.0/24, vxlanMode: Always"), "--all-nodes").wantLines(t, 3,
		"IPPool pods: none to VXLAN Always", "1. 3 nodes get an address of vxlan.calico (n1, n2, n3)",
		"packets may be lost: with rp_filter 1 on an uplink, from the first node's switch to the last one's")
	// The block of n3 is not announced any more, and n4 is new.
	change = resource("IPPool", "name: pods", "cidr: 10.99.0.0/24, disableBGPExport: true") + resource("Node",
		"name: n4, labels: {rack: b}", "bgp: {ipv4Address: 10.0.0.4/24}")
	r := plan(change, "--all-nodes")
	r.wantLines(t, 3, "4 nodes, 4 changed: 0 sessions reset, 1 new, 0 removed; 0 policies changed, on 0 nodes; 1 "+
		"route withdrawn, 0 announced")
	if !strings.Contains(r.out, "n3: 1 route withdrawn (10.99.0.") || !strings.Contains(r.out, "n4: new node; 1 "+
		"selector with other members (addresses of all nodes); 1 session new (10.0.0.253)") {
		t.Errorf("printed\n%s", r.out)
	}
	var data struct {
		Nodes []struct {
			Node            string
			RoutesWithdrawn []string
			SessionsAdded   []string
			SessionsReset   []string
		}
		Totals struct{ Nodes, NodesChanged, RoutesWithdrawn int }
	}
	if r := plan(change, "--all-nodes", "-o", "json"); r.code != 3 || json.Unmarshal([]byte(r.out), &data) != nil ||
		len(data.Nodes) != 4 || len(data.Nodes[2].RoutesWithdrawn) != 1 ||
		data.Nodes[3].SessionsAdded[0] != "10.0.0.253" ||
		data.Nodes[0].SessionsReset == nil || data.Totals.NodesChanged != 4 || data.Totals.RoutesWithdrawn != 1 {
		t.Errorf("%+v: %+v", r, data)
	}
	// One node in full, and passwords: the key counts, the password is neither read nor shown.
	changed := strings.Replace(plannedCluster, "key: a}", "key: b}", 1)
	secret := "---\n{apiVersion: v1, kind: Secret, metadata: {name: bgp}, stringData: {b: verysecret}}\n"
	r = plan(changed+secret, "--node=n2")
	if r.code != 3 || !strings.Contains(r.out, "~ session 10.0.0.254 (resets the session)\n      password: set -> "+
		"another one\n") || !strings.Contains(r.err, "the Secrets of the files (1) are left out") ||
		strings.Contains(r.out+r.err, "verysecret") {
		t.Errorf("%+v", r)
	}
	plan(changed, "--node=n9").want(t, 1, "",
		`node "n9" is not in the files or the datastore; the nodes are: n1, n2, n3`)
	s.run("get", "nodes", "-o", "name").want(t, 0, "node/n1\nnode/n2\nnode/n3\n") // nothing was written

	// Files against files have the summary, too; mistakes are named.
	dir := t.TempDir()
	now := filepath.Join(dir, "now.yaml")
	if err := os.WriteFile(now, []byte(plannedCluster), 0o600); err != nil {
		t.Fatal(err)
	}
	none := shell{t: t}
	none.pipe(strings.Replace(plannedCluster, "65002", "65003", 1), "plan", "--all-nodes", "-f", "-", "--against", now).
		want(t, 3, "n3: 1 session reset (10.0.0.253)\n3 nodes, 1 changed: 1 session reset, 0 new, 0 removed; 0 "+
			"policies changed, on 0 nodes; 0 routes withdrawn, 0 announced\n")
	// What the change leaves out is said once, whatever the number of nodes; what was left out before is not repeated.
	twice := resource("BGPPeer", "name: tor-c", "peerIP: 10.0.0.252, asNumber: 65003, filters: [lost]")
	for state, times := range map[string]int{now: 1, "now-too": 0} {
		if times == 0 {
			state = filepath.Join(dir, state)
			if err := os.WriteFile(state, []byte(plannedCluster+twice), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r = none.pipe(plannedCluster+twice, "plan", "--all-nodes", "-f", "-", "--against", state)
		if strings.Count(r.err, "lost") != times || strings.Count(r.err, "\n") != times {
			t.Errorf("%d times: %q", times, r.err)
		}
	}
	none.run("plan", "--all-nodes", "-f", now).want(t, 2, "",
		"name the state now with --against FILE or --against cluster")
	none.run("plan", "--all-nodes", "--node=n1", "-f", now).want(t, 2, "", "use either --node or --all-nodes")
	none.run("plan", "--all-nodes", "-f", now, "--against=cluster").want(t, 1, "", "no datastore is set")
	none.run("plan", "--all-nodes", "-f", now, "--against=cluster", "--against", now).want(t, 2, "",
		"the whole state now")
}

// testPluginPlan compares with the API of a cluster, whose NetworkPolicies and Namespaces are Kubernetes' own.
func testPluginPlan(t *testing.T, w *nodesWorld) {
	const web = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: default},
 spec: {podSelector: {matchLabels: {k8s-app: manx-node}}, ingress: [{ports: [{port: 80}]}]}}
`
	const policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
	w.server.Request(t, http.MethodPost, policies, map[string]any{
		"metadata": map[string]any{"name": "web"},
		"spec": map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"k8s-app": "manx-node"}},
			"ingress": []any{map[string]any{"ports": []any{map[string]any{"port": 80}}}}}})
	s := shell{t, []string{"KUBECONFIG=" + w.server.Kubeconfig(t, "sre"), "PATH=" + w.plugin + ":" + os.Getenv("PATH")}}
	plan := func(change string) result {
		return s.program(filepath.Join(apiserver.Programs(), "kubectl"), change, "manx", "plan", "--all-nodes",
			"-f", "-", "--against", "cluster")
	}
	plan(web).wantLines(t, 0, "6 nodes, 0 changed: 0 sessions reset, 0 new, 0 removed; 0 policies changed, on 0 "+
		"nodes; 0 routes withdrawn, 0 announced")
	plan(strings.Replace(web, "port: 80", "port: 81", 1)).wantLines(t, 3,
		"n2: 1 policy changed (NetworkPolicy/default/knp.default.web)",
		"6 nodes, 1 changed: 0 sessions reset, 0 new, 0 removed; 1 policy changed, on 1 node; 0 routes withdrawn, 0 "+
			"announced")
	w.kubectl(t, "oncall", "plan", "--all-nodes", "-f", "/dev/null", "--against", "cluster").want(t, 1, "", "forbidden")
}
