package settings

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

func env(t *testing.T, vars map[string]string) Env {
	t.Helper()
	e, err := FromEnv(func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// calico returns the configuration that Calico's kube-controllers have filled in.
func calico(t *testing.T) (c model.KubeControllersConfiguration) {
	t.Helper()
	for _, row := range jsonlines.Read[struct{ Key, Raw string }](t, "../../datastore/codec/testdata/objects.jsonl") {
		if strings.HasSuffix(row.Key, "/kubecontrollersconfigurations/default") {
			if err := json.Unmarshal([]byte(row.Raw), &c); err != nil {
				t.Fatal(err)
			}
			return c
		}
	}
	t.Fatal("no configuration among the objects")
	return c
}

func TestStatusIsThatOfCalico(t *testing.T) {
	c := calico(t)
	e := env(t, map[string]string{envEnabled: "policy,namespace,serviceaccount,workloadendpoint,node,loadbalancer"})
	_, status := Merge(e, c.Spec, false)
	got, _ := json.MarshalIndent(status, "", " ")
	want, _ := json.MarshalIndent(c.Status, "", " ")
	if string(got) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestMerge(t *testing.T) {
	full, def := calico(t).Spec, Default().Spec
	for _, test := range []struct {
		name   string
		env    map[string]string
		spec   model.KubeControllersSpec
		inKube bool
		ok     func(Running) bool
	}{
		{"a controller without a section does not run", nil, model.KubeControllersSpec{}, false, func(r Running) bool {
			return r.Policy == nil && r.Node == nil && r.LoadBalancer == nil && r.PolicyNames
		}},
		{"all run by default", nil, def, false, func(r Running) bool {
			return r.Policy.Period == 5*time.Minute && r.Node.Labels && r.Node.Delete &&
				r.Node.Grace == 15*time.Minute &&
				r.Node.Hosts.AutoCreate == "Disabled" && !r.LoadBalancer.RequestedOnly && r.Compaction == 10*time.Minute
		}},
		{"the environment names those that run", map[string]string{envEnabled: "node,profile"}, def, false,
			func(r Running) bool {
				return r.Policy == nil && r.Node != nil && r.Namespace != nil && r.LoadBalancer == nil
			}},
		{"and may name those without a section", map[string]string{envEnabled: "node"}, model.KubeControllersSpec{},
			false,
			func(r Running) bool { return r.Node.Grace == 15*time.Minute && r.Node.Labels && r.Node.Hosts == nil }},
		{"the environment's periods come first", map[string]string{envPeriod: "30s", envCompaction: "0"}, full, false,
			func(r Running) bool { return r.ServiceAccount.Period == 30*time.Second && r.Compaction == 0 }},
		{"labels by the environment", map[string]string{envSyncLabels: "false"}, full, false,
			func(r Running) bool { return !r.Node.Labels }},
		{"host endpoints by the environment", map[string]string{envHosts: "enabled"}, def, false,
			func(r Running) bool { return r.Node.Hosts.AutoCreate == "Enabled" && len(r.Node.Hosts.Templates) == 0 }},
		{"no host endpoints by the environment", map[string]string{envHosts: "Disabled"}, full, false,
			func(r Running) bool { return r.Node.Hosts == nil }},
		{"in Kubernetes there is nothing to carry", nil, def, true, func(r Running) bool {
			return r.Policy == nil && r.Namespace == nil && !r.Node.Labels && !r.Node.Delete && r.Compaction == 0 &&
				r.LoadBalancer != nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if r, _ := Merge(env(t, test.env), test.spec, test.inKube); !test.ok(r) {
				t.Errorf("runs %+v", r)
			}
		})
	}
}

func TestEnvironmentThatMakesNoSense(t *testing.T) {
	for name, text := range map[string]string{
		envEnabled: "node, policy", envPeriod: "5", envCompaction: "-1m", envSyncLabels: "yes please", envHosts: "on",
		"NODE_WORKERS": "0", "POLICY_WORKERS": "many", envHealth: "ja",
	} {
		_, err := FromEnv(func(n string) (string, bool) { return text, n == name })
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s=%s: %v", name, text, err)
		}
	}
	if _, err := FromEnv(func(n string) (string, bool) { return "flannelmigration", n == envEnabled }); err == nil {
		t.Error("flannelmigration is accepted")
	}
}
