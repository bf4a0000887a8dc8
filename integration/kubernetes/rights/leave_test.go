package rights_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/rights"
	"github.com/manxnet/manx/integration/kubernetes/twonodes"
)

// The program that the chart runs with cleanup=true removes the finalizers of pools and tiers with the rights of its
// account, and uses each of them.
func TestLeave(t *testing.T) {
	t.Parallel()
	bin, dir := twonodes.Require(t), t.TempDir()
	log, policy := filepath.Join(dir, "audit.log"), filepath.Join(dir, "policy.yaml")
	must(t, os.WriteFile(policy, []byte(rights.Policy(rights.Cleanup)), 0o600))
	s := apiserver.Start(t, "--audit-policy-file="+policy, "--audit-log-path="+log, "--audit-log-mode=blocking-strict")
	s.InstallCRDs(t, form.V3)
	documents, grants := leaving.objects(t)
	cleanup := program(t, s, bin, documents)
	const calico = "/apis/projectcalico.org/v3/"
	for plural, o := range map[string]string{
		"ippools": `{"apiVersion":"projectcalico.org/v3","kind":"IPPool","metadata":{"name":"x",
			"finalizers":["projectcalico.org/ippool-finalizer"]},"spec":{"cidr":"10.77.0.0/24"}}`,
		"tiers": `{"apiVersion":"projectcalico.org/v3","kind":"Tier","metadata":{"name":"x",
			"finalizers":["projectcalico.org/tier-controller","example.com/other"]},"spec":{"order":5}}`} {
		s.Request(t, http.MethodPost, calico+plural, []byte(o))
	}
	if out := cleanup(); !strings.Contains(out, "removed 2 finalizers") {
		t.Error(out)
	}
	for plural, want := range map[string]bool{"ippools": false, "tiers": true} {
		raw := string(s.Request(t, http.MethodGet, calico+plural+"/x", nil))
		if strings.Contains(raw, "projectcalico.org/ippool-finalizer") || strings.Contains(raw, "tier-controller") ||
			strings.Contains(raw, "example.com/other") != want {
			t.Errorf("left: %s", raw)
		}
	}
	// A second time, as after a restart of its pod, it takes the Lease over.
	if out := cleanup(); !strings.Contains(out, "removed 0 finalizers") {
		t.Error(out)
	}
	raw, err := os.ReadFile(log)
	must(t, err)
	calls, err := rights.Calls(bytes.NewReader(raw), nil)
	must(t, err)
	for _, c := range rights.Denied(calls) {
		t.Errorf("denied: %v", c)
	}
	table, err := rights.NewTable(rights.Rows, leaving.api())
	must(t, err)
	for _, g := range rights.Unused(table.Of(rights.Leave, grants), calls) {
		t.Errorf("granted and not used: %v", g)
	}
}

// program installs the account of the chart's Job, and returns a function that runs the program of the Job with it.
func program(t *testing.T, s *apiserver.Server, bin string, documents [][]byte) func() string {
	t.Helper()
	var command []string
	for _, d := range documents {
		var o struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						ServiceAccountName string
						Containers         []struct{ Command []string }
					}
				}
			}
		}
		must(t, json.Unmarshal(d, &o))
		switch {
		case o.Kind != "Job" && o.Kind != "DaemonSet": // nobody runs them here
			twonodes.Create(t, s, d)
		case o.Spec.Template.Spec.ServiceAccountName == "manx-cleanup":
			command = o.Spec.Template.Spec.Containers[0].Command
		}
	}
	if len(command) < 2 {
		t.Fatal("the chart has nothing that uses the account")
	}
	twonodes.Create(t, s, []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`))
	return func() string {
		c := exec.Command(filepath.Join(bin, filepath.Base(command[0])), append(slices.Clone(command[1:]),
			"--datastore=kubernetes", "--node-name=manx-cleanup-x",
			"--nodename-file="+filepath.Join(t.TempDir(), "nodename"),
			"--kubeconfig="+s.KubeconfigWith(t, s.URL, s.AccountToken(t, namespace, "manx-cleanup", "n1")))...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
}

// Where the chart does not know the group of the cluster's objects, the program finds it. In crd.projectcalico.org
// there are no finalizers.
func TestLeaveFindsTheGroup(t *testing.T) {
	t.Parallel()
	bin := twonodes.Require(t)
	unknown := leaving
	unknown.values = []string{"cleanup=true"}
	documents, _ := unknown.objects(t)
	for want, groups := range map[string][]form.Group{"are in crd.projectcalico.org/v1": {form.V1},
		"removed 0 finalizers": {form.V1, form.V3}} {
		s := apiserver.Start(t)
		for _, g := range groups {
			s.InstallCRDs(t, g)
		}
		if len(groups) > 1 {
			s.Request(t, http.MethodPost, "/apis/projectcalico.org/v3/clusterinformations", []byte(
				`{"apiVersion":"projectcalico.org/v3","kind":"ClusterInformation","metadata":{"name":"default"}}`))
		}
		if out := program(t, s, bin, documents)(); !strings.Contains(out, want) {
			t.Errorf("with %v: %s", groups, out)
		}
	}
}
