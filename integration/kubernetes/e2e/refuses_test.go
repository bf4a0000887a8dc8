package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// TestAPIRefuses has one cluster. Each test restores it.
func TestAPIRefuses(t *testing.T) {
	w := newWorld(t)
	w.settle(t)
	for _, test := range []struct {
		name string
		run  func(*world, *testing.T)
	}{
		{"one kind is throttled while others are served", (*world).testOneKindThrottled},
		{"everything is throttled", (*world).testThrottled},
		{"the API is overloaded", (*world).testOverloaded},
		{"the API does not answer in time", (*world).testSlow},
		{"a token is replaced in its kubeconfig", (*world).testToken},
		{"the certificate authority is replaced", (*world).testAuthority},
		{"the right to read one kind is taken away", (*world).testRights},
		{"a tenant's policy is above the budget", (*world).testPolicyAboveBudget},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(w, t) }) {
			break
		}
	}
}

// awaitHealthy waits until n2 is healthy again.
func (w *world) awaitHealthy(t *testing.T, before string) {
	t.Helper()
	w.proxies[1].intercept(nil)
	must(t, w.n2.Ready(patience))
	w.connected(t)
	unchanged(t, w.n2, before)
}

// checkIntervals fails if a part of manxd repeated a request sooner than the server allowed, and returns how often the
// tables of the datastore came again. Each part has a User-Agent of its own, and sends one request after the other; a
// part that follows two selections of one kind makes two requests.
func checkIntervals(t *testing.T, list []request, interval time.Duration) int {
	t.Helper()
	type requestKey struct{ userAgent, verb, path, selectors string }
	last, repeated := map[requestKey]time.Time{}, map[string]int{}
	for _, r := range list {
		if !r.local {
			continue
		}
		e := requestKey{r.userAgent, r.verb, r.path, r.selectors}
		if before, ok := last[e]; ok {
			repeated[r.userAgent]++
			if gap := r.at.Sub(before); gap < interval {
				t.Errorf("%s of %s (%s) comes again after %s, want at least %s", r.verb, r.path, r.userAgent, gap,
					interval)
			}
		}
		last[e] = r.at
	}
	t.Logf("requests that came again, by who made them: %v", repeated)
	count := 0
	for userAgent, n := range repeated {
		if !strings.HasPrefix(userAgent, "manxd/") {
			t.Errorf("a client has the User-Agent %q", userAgent)
		}
		if strings.HasSuffix(userAgent, "/datastore") {
			count += n
		}
	}
	return count
}

func tooMany(w http.ResponseWriter, _ *http.Request) bool {
	w.Header().Set("Retry-After", "3")
	// as priority and fairness does
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
	return true
}

func (w *world) testOneKindThrottled(t *testing.T) {
	before, f := kernelState(t, w.n2), w.proxies[1]
	start := time.Now()
	f.intercept(func(rw http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/api/v1/pods":
			return tooMany(rw, r)
		case r.URL.Path == "/api/v1/services" && r.Method == http.MethodGet && time.Since(start) < 20*time.Second:
			// Its watch ends all the time, as with a server that restarts: each new watch is a sign of life.
			time.Sleep(300 * time.Millisecond)
			return writeStatus(rw, http.StatusGone, "Expired", "too old resource version")
		}
		return false
	})
	awaitStatus(t, w.n2, "too many requests")
	time.Sleep(15 * time.Second) // in which requests are counted
	var pods []request
	for _, r := range f.logged() {
		if r.path == "/api/v1/pods" {
			pods = append(pods, r)
		}
	}
	if n := checkIntervals(t, pods, 3*time.Second); n < 2 {
		t.Errorf("the tables came again for pods %d times in 15 s", n)
	}
	w.awaitHealthy(t, before)
}

func (w *world) testThrottled(t *testing.T) {
	before, f := kernelState(t, w.n2), w.proxies[1]
	f.intercept(tooMany)
	t.Log(awaitStatus(t, w.n2, "the last state is kept", "too many requests"))
	f.clearLog()
	time.Sleep(15 * time.Second) // in which requests are counted
	if n := checkIntervals(t, f.logged(), 3*time.Second); n < 40 {
		t.Errorf("the tables came again %d times in 15 s, of more than 20 kinds", n)
	}
	w.connected(t)
	w.awaitHealthy(t, before)
}

func (w *world) testOverloaded(t *testing.T) {
	before := kernelState(t, w.n2)
	w.proxies[1].intercept(func(rw http.ResponseWriter, _ *http.Request) bool {
		return writeStatus(rw, http.StatusServiceUnavailable, "ServiceUnavailable", "etcd has no leader")
	})
	t.Log(awaitStatus(t, w.n2, "the last state is kept", "etcd has no leader"))
	w.connected(t)
	w.awaitHealthy(t, before)
}

func (w *world) testSlow(t *testing.T) {
	before := kernelState(t, w.n2)
	w.proxies[1].intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	})
	t.Log(awaitStatus(t, w.n2, "the last state is kept", "does not answer in time"))
	w.connected(t)
	w.awaitHealthy(t, before)
}

// unauthorized refuses a token.
func unauthorized(token string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		return r.Header.Get("Authorization") == "Bearer "+token &&
			writeStatus(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
	}
}

// The token of a kubeconfig expires, and another one comes in its place.
func (w *world) testToken(t *testing.T) {
	before := kernelState(t, w.n2)
	w.server.AddUsers(t, "next")
	w.bind(t, "next")
	w.proxies[1].intercept(unauthorized(apiserver.Token(daemon)))
	t.Log(awaitStatus(t, w.n2, "the last state is kept", "Unauthorized"))
	w.connected(t)
	w.kubeconfig(t, w.n2, "kubeconfig", w.lines[1].URL, apiserver.Token("next"), w.ca)
	must(t, w.n2.Ready(patience))
	unchanged(t, w.n2, before)
	w.kubeconfig(t, w.n2, "kubeconfig", w.lines[1].URL, apiserver.Token(daemon), w.ca)
	w.proxies[1].intercept(unauthorized(apiserver.Token("next")))
	must(t, w.n2.Ready(patience))
	w.awaitHealthy(t, before)
}

// bind gives a user the rights of the daemon.
func (w *world) bind(t *testing.T, user string) {
	t.Helper()
	w.server.Request(t, http.MethodPost, rbac+"/clusterrolebindings", map[string]any{"kind": "ClusterRoleBinding",
		"metadata": map[string]any{"name": user}, "roleRef": map[string]any{"kind": "ClusterRole", "name": "manx-node",
			"apiGroup": "rbac.authorization.k8s.io"},
		"subjects": []any{map[string]any{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}}})
}

// The API's certificate has an authority that the kubeconfig lacks at first.
func (w *world) testAuthority(t *testing.T) {
	before := kernelState(t, w.n2)
	next := newAuthority(t, "next authority")
	w.proxies[1].intercept(nil)
	w.proxies[1].setCertificate(certificateOf(t, next))
	t.Log(awaitStatus(t, w.n2, "the last state is kept", "certificate signed by unknown authority"))
	w.connected(t)
	w.kubeconfig(t, w.n2, "kubeconfig", w.lines[1].URL, apiserver.Token(daemon), next)
	must(t, w.n2.Ready(patience))
	unchanged(t, w.n2, before)
	// The old authority is not accepted any more.
	w.proxies[1].setCertificate(certificateOf(t, w.ca))
	awaitStatus(t, w.n2, "the last state is kept", "certificate signed by unknown authority")
	w.kubeconfig(t, w.n2, "kubeconfig", w.lines[1].URL, apiserver.Token(daemon), w.ca)
	w.awaitHealthy(t, before)
}

// Without the right to read NetworkPolicies, the last ones stay in force, and all other kinds are followed.
func (w *world) testRights(t *testing.T) {
	f := w.proxies[1]
	w.server.Request(t, http.MethodPost, networkPolicies, onlyFrom("hold", "b", "nobody", 7))
	until(t, "the policy", func() error { return closed(w, 7) })
	var role map[string]any
	must(t, json.Unmarshal(w.server.Request(t, http.MethodGet, rbac+"/clusterroles/manx-node", nil), &role))
	whole, err := json.Marshal(role)
	must(t, err)
	less := strings.Replace(string(whole), `"networking.k8s.io"`, `"taken.away"`, 1)
	w.server.Request(t, http.MethodPatch, rbac+"/clusterroles/manx-node", []byte(onlyRules(t, less)))
	f.intercept(nil) // running watches are not checked for rights
	t.Log(awaitStatus(t, w.n2, "the last state is kept", "KubernetesNetworkPolicy", `resource "networkpolicies"`))
	w.server.Request(t, http.MethodDelete, networkPolicies+"/hold", nil) // this node is not notified
	w.apply(t, "/apis/crd.projectcalico.org/v1/globalnetworkpolicies", map[string]any{"kind": "GlobalNetworkPolicy",
		"apiVersion": "crd.projectcalico.org/v1", "metadata": map[string]any{"name": "default.eight"},
		"spec": map[string]any{"tier": "default", "selector": "app == 'b'", "types": []string{"Egress"},
			"egress": []any{map[string]any{"action": "Deny", "protocol": "TCP",
				"destination": map[string]any{"ports": []any{8}}}, map[string]any{"action": "Allow"}}}})
	until(t, "a policy of another kind", func() error { return hasPolicy(w, "eight") })
	must(t, closed(w, 7))
	// A daemon that starts without the right allows nothing either.
	w.n2.Manxd().Kill()
	must(t, w.n2.StartManxd())
	t.Log(awaitStatus(t, w.n2, "cannot be read", `resource "networkpolicies"`))
	time.Sleep(5 * time.Second) // nothing may be opened
	must(t, closed(w, 7))
	w.server.Request(t, http.MethodPatch, rbac+"/clusterroles/manx-node", []byte(onlyRules(t, string(whole))))
	must(t, w.n2.Ready(patience))
	w.connected(t)
}

// onlyRules is a patch that sets the rules of a role.
func onlyRules(t *testing.T, role string) string {
	t.Helper()
	var r struct {
		Rules json.RawMessage `json:"rules"`
	}
	must(t, json.Unmarshal([]byte(role), &r))
	return `{"rules":` + string(r.Rules) + `}`
}

// closed is an error if a reaches b at a port.
func closed(w *world, port int) error {
	if w.a.dial(w.b, port) == nil {
		return fmt.Errorf("a reaches b at port %d", port)
	}
	return nil
}
