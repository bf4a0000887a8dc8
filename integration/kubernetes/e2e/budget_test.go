package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// testPolicyAboveBudget is a tenant who may write policies in one namespace and nothing else. Its policy of 2,000
// selectors, each of which matches all pods, makes no sets. It closes the tenant's own pod in its direction, until it
// is small; pods of others, new ones too, are not affected.
func (w *world) testPolicyAboveBudget(t *testing.T) {
	const tenant = "evil"
	w.apply(t, "/api/v1/namespaces", map[string]any{"kind": "Namespace", "apiVersion": "v1",
		"metadata": map[string]any{"name": tenant}})
	w.apply(t, rbac+"/namespaces/"+tenant+"/roles", map[string]any{"kind": "Role",
		"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": map[string]any{"name": "policies"},
		"rules": []any{map[string]any{"apiGroups": []string{"networking.k8s.io", "crd.projectcalico.org"},
			"resources": []string{"networkpolicies"}, "verbs": []string{"*"}}}})
	w.apply(t, rbac+"/namespaces/"+tenant+"/rolebindings", map[string]any{"kind": "RoleBinding",
		"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": map[string]any{"name": "policies"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "policies"},
		"subjects": []any{map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "user"}}})
	e := w.addPodOf(t, w.n1, tenant, "e")
	e.echo(t, 7)
	until(t, "b reaches e", func() error { return w.b.dial(e, 7) })

	const kubernetes = "/apis/networking.k8s.io/v1/namespaces/evil/networkpolicies"
	const calico = "/apis/crd.projectcalico.org/v1/namespaces/evil/networkpolicies"
	for _, x := range []struct {
		kind, path string
		policy     func(rules int) map[string]any
	}{
		{"KubernetesNetworkPolicy", kubernetes, func(rules int) map[string]any {
			var peers []any
			for i := range rules {
				without := map[string]any{"key": fmt.Sprint("a", i), "operator": "DoesNotExist"}
				peers = append(peers, map[string]any{"namespaceSelector": map[string]any{},
					"podSelector": map[string]any{"matchExpressions": []any{without}}})
			}
			return map[string]any{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
				"metadata": map[string]any{"name": "large"}, "spec": map[string]any{"podSelector": map[string]any{},
					"ingress": []any{map[string]any{"from": peers}}}}
		}},
		{"NetworkPolicy", calico, func(rules int) map[string]any {
			var list []any
			for i := range rules {
				list = append(list, map[string]any{"action": "Allow", "source": map[string]any{
					"namespaceSelector": "all()", "selector": fmt.Sprintf("!has(a%d)", i)}})
			}
			return map[string]any{"apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkPolicy",
				"metadata": map[string]any{"name": "large"}, "spec": map[string]any{"selector": "all()",
					"types": []string{"Ingress"}, "ingress": list}}
		}},
	} {
		must(t, w.asTenant(t, http.MethodPost, x.path, x.policy(2000)))
		notice := x.kind + " evil/large: it drops all packets in its directions: with it the policies of namespace evil"
		awaitStatus(t, w.n1, notice, "--policy-max-sets is 1024")
		if err := w.b.dial(e, 7); err == nil {
			t.Errorf("%s: the pod of the author is open", x.kind)
		}
		if err := errors.Join(e.dial(w.b, 7), w.b.dial(w.a, 7)); err != nil {
			t.Errorf("%s: the author's pod is closed in the other direction, or the pod of others: %v", x.kind, err)
		}
		fresh := w.addPod(t, w.n1, strings.ToLower(x.kind))
		fresh.echo(t, 7)
		until(t, "b reaches a new pod", func() error { return w.b.dial(fresh, 7) })
		if sets, err := w.n1.Run("nft", "list", "sets", "table", "inet", "manx"); err != nil ||
			strings.Count(sets, "set ") > 100 {
			t.Errorf("%s: %d sets in the kernel, %v", x.kind, strings.Count(sets, "set "), err)
		}
		explained, err := w.n1.Manxctl("explain", "default/b", "evil/e", "tcp/7")
		if err != nil || !strings.Contains(explained, "DENIED by") ||
			!strings.Contains(explained, x.kind+"/evil/large ingress: above the budget of its namespace") ||
			!strings.Contains(explained, "): it drops all packets in its directions: with it the policies") {
			t.Errorf("%v\n%s", err, explained)
		}
		if page, err := w.n1.Get("/metrics"); err != nil || !strings.Contains(page, "manx_policy_above_budget 1\n") ||
			!strings.Contains(page, `manx_kubernetes_requests_total{code="200",verb="watch"}`) {
			t.Errorf("no metric of it, or of watches, %v", err)
		}
		must(t, w.asTenant(t, http.MethodPatch, x.path+"/large", map[string]any{"spec": x.policy(2)["spec"]}))
		until(t, "b reaches e again", func() error { return w.b.dial(e, 7) })
		until(t, "the notice ends", func() error {
			if out := status(w.n1); strings.Contains(out, "evil/large") {
				return errors.New(out)
			}
			return nil
		})
		must(t, w.asTenant(t, http.MethodDelete, x.path+"/large", nil))
		w.server.Request(t, http.MethodDelete, pods(fresh.name), nil)
	}
}

// asTenant sends a request with the rights of the tenant.
func (w *world) asTenant(t *testing.T, verb, path string, body any) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := w.server.Raw(t, "user").Verb(verb).AbsPath(path)
	if body != nil {
		raw, err := json.Marshal(body)
		must(t, err)
		r.Body(raw).SetHeader("Content-Type", "application/json")
		if verb == http.MethodPatch {
			r.SetHeader("Content-Type", "application/merge-patch+json")
		}
	}
	return r.Do(ctx).Error()
}
