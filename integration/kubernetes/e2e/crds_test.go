package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/kubernetes/form"
)

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// Definitions come late, one has an unused version, and one is deleted while the daemon runs.
func TestDefinitions(t *testing.T) {
	w := newWorld(t, "none")
	for i, n := range w.Nodes {
		must(t, n.StartManxd(w.arguments(i)...))
	}
	t.Log(awaitStatus(t, w.n1, ".projectcalico.org", "CustomResourceDefinition"))
	w.server.Request(t, http.MethodPost, definitions, otherVersion("bgpfilters", "BGPFilter", "v1beta1"))
	w.server.InstallCRDs(t, form.V1, "ippools", "bgppeers", "bgpconfigurations", "blockaffinities", "ipamblocks",
		"ipamhandles", "ipamconfigs", "clusterinformations", "felixconfigurations", "globalnetworkpolicies", "tiers")
	w.ready(t)
	w.a, w.b = w.addPod(t, w.n1, "a"), w.addPod(t, w.n2, "b")
	w.a.echo(t, 7)
	w.b.echo(t, 7)
	w.connected(t)
	out := awaitStatus(t, w.n2, "lacks CustomResourceDefinitions", "bgpfilters.crd.projectcalico.org", "networksets")
	t.Log(out)
	if strings.Contains(out, "ippools") {
		t.Errorf("an existing definition is reported as missing:\n%s", out)
	}
	t.Run("a definition is removed, which deletes its objects", func(t *testing.T) {
		w.apply(t, crds+"globalnetworkpolicies", map[string]any{"kind": "GlobalNetworkPolicy", "apiVersion": group,
			"metadata": map[string]any{"name": "default.none"}, "spec": map[string]any{"tier": "default",
				"selector": "app == 'b'", "types": []string{"Ingress"}}})
		until(t, "the policy", func() error { return closed(w, 7) })
		w.server.DeleteCRD(t, form.V1, "globalnetworkpolicies")
		w.connected(t) // the API reports each object as deleted
		t.Log(awaitStatus(t, w.n2, "globalnetworkpolicies.crd.projectcalico.org"))
	})
	t.Run("the API does not know a kind for a while, and does not say that objects are deleted", func(t *testing.T) {
		before := kernelState(t, w.n2)
		w.proxies[1].intercept(func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.HasPrefix(r.URL.Path, crds) {
				http.Error(rw, "404 page not found", http.StatusNotFound)
				return true
			}
			return false
		})
		// The line of the datastore names the first kind, the notice all kinds.
		t.Log(awaitStatus(t, w.n2, "the last state is kept of BGPConfiguration, BlockAffinity, ClusterInformation",
			"ippools.crd.projectcalico.org"))
		time.Sleep(3 * time.Second) // nothing may change
		w.connected(t)
		unchanged(t, w.n2, before)
		w.proxies[1].intercept(nil)
		w.ready(t)
		unchanged(t, w.n2, before)
	})
}

// otherVersion is a definition without the used version.
func otherVersion(plural, kind, version string) map[string]any {
	return map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + ".crd.projectcalico.org"},
		"spec": map[string]any{"group": "crd.projectcalico.org", "scope": "Cluster",
			"names": map[string]any{"plural": plural, "singular": strings.ToLower(kind), "kind": kind},
			"versions": []any{map[string]any{"name": version, "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}}
}
