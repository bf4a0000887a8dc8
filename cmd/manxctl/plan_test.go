package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const planFiles = "testdata/plan/"

// TestPlan pins the output of plan, in all forms.
func TestPlan(t *testing.T) {
	s := shell{t: t}
	cluster := []string{"plan", "--node=n1", "-f", planFiles + "cluster"}
	changed := append(append([]string{}, cluster...), "-f", planFiles+"change.yaml", "--against", planFiles+"cluster")
	for _, c := range []struct {
		name string
		code int
		args []string
	}{
		{"plan", 0, cluster},
		{"plan-json", 0, append(cluster, "-o", "json")},
		{"plan-yaml", 0, append(cluster, "-o", "yaml")},
		{"plan-reflector", 0, []string{"plan", "--node=rr1", "-f", planFiles + "cluster"}},
		{"plan-kubernetes-node", 0, []string{"plan", "--node=k1", "--router-id=hash", "-f", planFiles + "cluster"}},
		{"plan-against", 3, changed},
		{"plan-against-json", 3, append(changed, "-o", "json")},
		{"plan-against-yaml", 3, append(changed, "-o", "yaml")},
		{"plan-against-same", 0, append(cluster, "--against", planFiles+"cluster")},
		{"plan-against-same-json", 0, append(cluster, "-o", "json", "--against", planFiles+"cluster")},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.run(c.args...)
			if r.code != c.code {
				t.Fatalf("exit code %d, want %d\n%s%s", r.code, c.code, r.out, r.err)
			}
			golden(t, c.name, r.out)
			golden(t, strings.TrimSuffix(strings.TrimSuffix(c.name, "-json"), "-yaml")+"-stderr", r.err)
		})
	}
}

// TestPlanJSONShape holds the promise of the JSON form: every key, in this order, and no null.
func TestPlanJSONShape(t *testing.T) {
	const alone = `{"kind":"Node","metadata":{"name":"n1"},"spec":{"bgp":{"ipv4Address":"10.0.0.1/24"}}}`
	const other = `{"kind":"Node","metadata":{"name":"n2"},"spec":{"bgp":{"ipv4Address":"10.0.0.2/24"}}}`
	s := shell{t: t}
	for in, want := range map[string]string{
		alone: `{"node":"n1","bgp":{"localAS":64512,"routerID":"10.0.0.1","listenPort":179,"sessions":[],"conflicts":[],"originated":[],"exports":{}}}`,
		alone + other: `{"node":"n1","bgp":{"localAS":64512,"routerID":"10.0.0.1","listenPort":179,"sessions":[` +
			`{"address":"10.0.0.2","port":179,"family":"ipv4","localAS":64512,"peerAS":64512,"type":"mesh","passive":true,` +
			`"sourceAddress":"10.0.0.1","multihopTTL":64,"ttlSecurity":0,"password":"none","reflectorClient":false,"restartSeconds":120,` +
			`"keepaliveSeconds":0,"allowOwnAS":0,"nextHop":"auto","filters":[],"from":["BGPConfiguration/default"]}` +
			`],"conflicts":[],"originated":[],"exports":{"10.0.0.2":[]}}}`,
	} {
		out := s.mustPipe(in, "plan", "--node=n1", "-f", "-", "-o", "json")
		var compact strings.Builder
		for _, line := range strings.Split(out, "\n") { // keeps the order of keys
			compact.WriteString(strings.Replace(strings.TrimSpace(line), `": `, `":`, 1))
		}
		if compact.String() != want {
			t.Errorf("got  %s\nwant %s", compact.String(), want)
		}
	}
}

func TestPlanRefusals(t *testing.T) {
	s := shell{t: t}
	const missing = "no-such-file.yaml"
	for _, c := range []struct {
		rule string
		code int
		err  string
		args []string
	}{
		{"a node is needed", 2, "--node", []string{"-f", planFiles + "cluster"}},
		{"files are needed", 2, "-f FILE", []string{"--node=n1"}},
		{"an unknown format", 2, "output format", []string{"--node=n1", "-f", planFiles + "cluster", "-o", "toml"}},
		{"standard input twice", 2, "standard input", []string{"--node=n1", "-f", "-", "--against", "-"}},
		{"an unknown flag", 2, "unknown flag", []string{"--nod=n1"}},
		{"an unknown node", 1, "the nodes are: k1, n1, n10, n9, rr1",
			[]string{"--node=n2", "-f", planFiles + "cluster"}},
		{"an unknown node in both states", 1, "the nodes are: k1, n1",
			[]string{"--node=n2", "-f", planFiles + "cluster", "--against", planFiles + "cluster"}},
		{"no nodes at all", 1, "no node that can be used", []string{"--node=n1", "-f", planFiles + "change.yaml"}},
		{"a file that is missing", 1, missing, []string{"--node=n1", "-f", missing}},
	} {
		if r := s.run(append([]string{"plan"}, c.args...)...); r.code != c.code || r.out != "" ||
			!strings.Contains(r.err, c.err) {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s%s", c.rule, r.code, c.code, c.err, r.out, r.err)
		}
	}
}

// TestPlanOfANewNode compares with a state without the node.
func TestPlanOfANewNode(t *testing.T) {
	s := shell{t: t}
	r := s.run("plan", "--node=n1", "-f", planFiles+"cluster", "--against", planFiles+"change.yaml", "-o", "json")
	var diff struct {
		Added struct{ Sessions []struct{ Address string } }
	}
	if err := json.Unmarshal([]byte(r.out), &diff); err != nil || r.code != 3 || len(diff.Added.Sessions) == 0 {
		t.Errorf("exit code %d, %v: %+v\n%s", r.code, err, diff, r.err)
	}
}

// TestPlanKeepsPasswordsSecret searches the whole output of plan for passwords.
func TestPlanKeepsPasswordsSecret(t *testing.T) {
	files, err := os.ReadFile(planFiles + "cluster/bgp.yml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(files), "c2VjcmV0Cg==") {
		t.Fatal("there is no Secret with the value \"secret\" in the files")
	}
	other := strings.Replace(string(files), "c2VjcmV0Cg==", "b3RoZXIK", 1)
	s := shell{t: t}
	for _, format := range []string{"text", "json", "yaml"} {
		r := s.pipe(other, "plan", "--node=n1", "-f", "-", "-f", planFiles+"cluster/nodes.yaml",
			"--against", planFiles+"cluster/bgp.yml", "--against", planFiles+"cluster/nodes.yaml", "-o", format)
		if r.code != 3 || !strings.Contains(r.out, "another one") || !strings.Contains(r.out, "resets") {
			t.Errorf("%s: the new password is not reported: exit code %d\n%s", format, r.code, r.out)
		}
		for _, value := range []string{"b3RoZXIK", "c2VjcmV0", `"other"`, `"secret"`} {
			if strings.Contains(r.out+r.err, value) {
				t.Errorf("%s: %q is shown:\n%s%s", format, value, r.out, r.err)
			}
		}
	}
}

// TestPlanPrintsTextsOfOthersInLines: a tenant's policy neither controls the terminal nor forges lines of a plan.
func TestPlanPrintsTextsOfOthersInLines(t *testing.T) {
	node := resource("Node", "name: n1", "bgp: {ipv4Address: 10.0.0.1/24}")
	now := filepath.Join(t.TempDir(), "now.yaml")
	if err := os.WriteFile(now, []byte(node), 0o600); err != nil {
		t.Fatal(err)
	}
	evil := `app != 'x\u001b[2J\nNode n9: forged'`
	then := node + resource("NetworkPolicy", "name: web, namespace: shop", `selector: all(), ingress: [{action: Allow, `+
		`source: {selector: "`+evil+`"}}]`) +
		resource("WorkloadEndpoint", "name: n1-k8s-p-eth0, namespace: shop", "orchestrator: k8s, node: n1, pod: p, "+
			"endpoint: eth0, interfaceName: cali1, ipNetworks: [10.9.0.1/32]") +
		resource("BGPPeer", `name: tor`, `peerIP: 10.0.0.9, asNumber: 65001, nodeSelector: "`+evil+` ("`)
	for _, scope := range []string{"--node=n1", "--all-nodes"} {
		r := shell{t: t}.pipe(then, "plan", scope, "-f", "-", "--against", now)
		if r.code != 3 || strings.Contains(r.out+r.err, "\x1b") || strings.Contains(r.out+r.err, "\nNode n9") ||
			!strings.Contains(r.out, "x [2J Node n9: forged") {
			t.Errorf("%s: exit code %d\n%q\n%q", scope, r.code, r.out, r.err)
		}
	}
}
