package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/datastore/model"
)

// The API is away for longer than any limit of the daemon's requests and watches: nothing on the node depends on the
// time of its return. An hour adds only more of the same attempts, since no state of the node expires.
func TestAPIAway(t *testing.T) {
	w := newWorld(t)
	w.protectMesh(t)
	w.settle(t)
	w.server.Request(t, http.MethodPost, networkPolicies, onlyFrom("hold", "b", "a", 7))
	until(t, "the policy", func() error { return hasPolicy(w, "hold") })
	w.connected(t)
	before := []string{kernelState(t, w.n1), kernelState(t, w.n2)}
	t.Run("the last state is kept", func(t *testing.T) {
		for _, l := range w.lines {
			l.Cut()
		}
		t.Log(awaitStatus(t, w.n2, "connection lost, the last state is kept"))
		time.Sleep(25 * time.Second) // longer than the limit of a request and the longest pause between two attempts
		w.connected(t)
		unchanged(t, w.n1, before[0])
		unchanged(t, w.n2, before[1])
	})
	t.Run("restarts meanwhile keep routes, rules and the session, and say what they wait for", func(t *testing.T) {
		for range 2 {
			for _, n := range w.Nodes {
				n.Manxd().Kill()
			}
			for _, n := range w.Nodes {
				must(t, n.StartManxd())
			}
			for _, n := range w.Nodes {
				awaitStatus(t, n, "BGP and routes follow the state of", "1 session: 1 Established")
			}
		}
		time.Sleep(12 * time.Second) // longer than any wait of a start; nothing may change
		t.Log(awaitStatus(t, w.n2, "waiting for it", "not connected", "1 session: 1 Established"))
		w.connected(t)
		unchanged(t, w.n1, before[0])
		unchanged(t, w.n2, before[1])
	})
	t.Run("passwords do not survive the machine", func(t *testing.T) {
		kept := filepath.Join(w.n2.Dir, "run", "bgp-passwords.json")
		content, err := os.ReadFile(kept)
		must(t, err)
		if !strings.Contains(string(content), meshPassword) {
			t.Errorf("no password is kept in memory: %s", content)
		}
		if content, err := os.ReadFile(filepath.Join(w.n2.Dir, "data", "last-state.json")); err != nil ||
			strings.Contains(string(content), meshPassword) {
			t.Errorf("the file on disk has the password, or does not exist: %v", err)
		}
		w.n2.Manxd().Kill()
		must(t, os.Remove(kept))
		must(t, w.n2.StartManxd())
		t.Log(awaitStatus(t, w.n2, "the Kubernetes API has not answered yet", "1 session: 1 "))
		if out := status(w.n2); strings.Contains(out, "Established") {
			t.Errorf("a session without its password:\n%s", out)
		}
	})
	t.Run("what was deleted meanwhile goes, nothing else", func(t *testing.T) {
		w.server.Request(t, http.MethodDelete, networkPolicies+"/hold", nil)
		w.server.Request(t, http.MethodPost, networkPolicies, onlyFrom("later", "b", "nobody", 7))
		for _, l := range w.lines {
			l.Mend()
		}
		w.ready(t)
		until(t, "the policy that came meanwhile", func() error {
			if w.a.dial(w.b, 7) == nil {
				return fmt.Errorf("a still reaches b")
			}
			return nil
		})
		w.server.Request(t, http.MethodDelete, networkPolicies+"/later", nil)
		w.connected(t)
		rules, err := w.n2.Run("nft", "list", "table", "inet", "manx")
		must(t, err)
		if strings.Contains(rules, "hold") {
			t.Errorf("the policy that was deleted meanwhile is still there:\n%s", rules)
		}
		unchanged(t, w.n1, before[0])
	})
}

const meshPassword = "between nodes"

// protectMesh gives the session between the nodes a password, from a Secret that the daemon may read, and the nodes
// run folders in memory.
func (w *world) protectMesh(t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes {
		run := filepath.Join(n.Dir, "run")
		must(t, os.MkdirAll(run, 0o755))
		must(t, unix.Mount("tmpfs", run, "tmpfs", 0, "mode=755"))
		t.Cleanup(func() { must(t, unix.Unmount(run, unix.MNT_DETACH)) })
	}
	meta := map[string]any{"name": "bgp", "namespace": "kube-system"}
	w.server.Request(t, http.MethodPost, "/api/v1/namespaces/kube-system/secrets", map[string]any{"kind": "Secret",
		"apiVersion": "v1", "metadata": meta, "stringData": map[string]string{"mesh": meshPassword}})
	w.server.Request(t, http.MethodPost, rbac+"/namespaces/kube-system/roles", map[string]any{"kind": "Role",
		"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta, "rules": []any{map[string]any{
			"apiGroups": []string{""}, "resources": []string{"secrets"}, "resourceNames": []string{"bgp"},
			"verbs": []string{"list", "watch"}}}})
	w.server.Request(t, http.MethodPost, rbac+"/namespaces/kube-system/rolebindings", map[string]any{
		"kind": "RoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta,
		"roleRef": map[string]string{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "bgp"},
		"subjects": []any{map[string]string{"kind": "ServiceAccount", "name": "manx-node",
			"namespace": "kube-system"}}})
	c := &model.BGPConfiguration{}
	c.Spec.NodeMeshPassword = &v3.BGPPassword{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "bgp"}, Key: "mesh"}}
	_, err := w.store.Create(t.Context(),
		model.NewObject(model.ResourceKey(model.KindBGPConfiguration, "default"), c))
	must(t, err)
}

const networkPolicies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"

// onlyFrom is a NetworkPolicy that allows connections to the pods of one app only from the pods of another app, at a
// port.
func onlyFrom(name, to, from string, port int) map[string]any {
	app := func(v string) map[string]any { return map[string]any{"matchLabels": map[string]string{"app": v}} }
	return map[string]any{"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"podSelector": app(to), "policyTypes": []string{"Ingress"},
			"ingress": []any{map[string]any{
				"from":  []any{map[string]any{"podSelector": app(from)}},
				"ports": []any{map[string]any{"port": port}}}}}}
}

// hasPolicy is an error until n2 has the rules of a policy.
func hasPolicy(w *world, name string) error {
	rules, err := w.n2.Run("nft", "list", "table", "inet", "manx")
	if err == nil && !strings.Contains(rules, name) {
		err = fmt.Errorf("no policy %q in:\n%s", name, rules)
	}
	return err
}
