package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The API is away for longer than any limit of the daemon's requests and watches: nothing on the node depends on the
// time of its return. An hour adds only more of the same attempts, since no state of the node expires.
func TestAPIAway(t *testing.T) {
	w := newWorld(t)
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
	t.Run("a restart meanwhile keeps routes and rules, and says what it waits for", func(t *testing.T) {
		w.n2.Manxd().Kill()
		must(t, w.n2.StartManxd())
		t.Log(awaitStatus(t, w.n2, "waiting for it", "not connected"))
		time.Sleep(12 * time.Second) // longer than any wait of a start; nothing may change
		w.connected(t)
		unchanged(t, w.n2, before[1])
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
