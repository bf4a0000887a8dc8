package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const undoneSettings = `apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec:
  healthPort: 9099
  bpfEnabled: true
  policySyncPathPrefix: /var/run/nodeagent
---
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: node.n1}
spec: {bpfEnabled: false}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: web}
spec:
  selector: all()
  ingress:
  - action: Allow
  - action: Allow
    http: {methods: [GET]}
---
apiVersion: projectcalico.org/v3
kind: Node
metadata: {name: n1}
spec: {bgp: {ipv4Address: 10.0.0.1/24}}
---
apiVersion: projectcalico.org/v3
kind: Node
metadata: {name: n2}
spec: {bgp: {ipv4Address: 10.0.0.2/24}}
`

// A setting that Manx does not have is a warning of apply and its dry run, with the line, and of plan, for the nodes on
// which it is in force. One that holds nodes is an error of a check, unless it is accepted.
func TestUndoneSettingsAreWarnings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte(undoneSettings), 0o600); err != nil {
		t.Fatal(err)
	}
	const bpf = `FelixConfiguration/default: spec.bpfEnabled = "true" is not done: `
	const sync = `FelixConfiguration/default: spec.policySyncPathPrefix = "/var/run/nodeagent" is not done: `
	const held = "; nodes with it do not become ready unless --accept-settings=bpfEnabled of manxd accepts that"
	http := "Warning: " + file + ":22: GlobalNetworkPolicy/web: spec.ingress[1].http = "
	warnings := []string{"Warning: " + file + ":7: " + sync, "Warning: " + file + ":6: " + bpf, http}
	errs := []string{"Warning: " + file + ":7: " + sync, http, "Error: " + file + ":6: " + bpf}
	for _, c := range []struct {
		args  []string
		code  int
		lines []string
	}{
		{[]string{"apply", "-f", file, "--dry-run"}, 1, errs},
		{[]string{"validate", "-f", file}, 1, errs},
		{[]string{"validate", "-f", file, "--accept-settings=bpfEnabled"}, 0, warnings},
		{[]string{"plan", "-f", file, "--node=n2"}, 0, []string{bpf, sync}},
		{[]string{"plan", "-f", file, "--node=n1"}, 0, []string{sync}},
	} {
		r := shell{t: t}.run(c.args...)
		got := strings.Split(strings.TrimSpace(r.err), "\n")
		if r.code != c.code || len(got) != len(c.lines) || r.code == 1 && !strings.HasSuffix(got[2], held) {
			t.Errorf("%v: %d\n%s", c.args, r.code, r.err)
			continue
		}
		for i, line := range c.lines {
			if !strings.HasPrefix(got[i], line) {
				t.Errorf("%v: %q, want %q", c.args, got[i], line)
			}
		}
	}
}
