package main_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// TestKubernetesAPI uses a real API server: its log has the version of manxctl, and a Profile made from a Namespace can
// be applied unchanged, and a change of it is refused. A Node can be applied again and again.
func TestKubernetesAPI(t *testing.T) {
	server := apiserver.Start(t)
	server.InstallCRDs(t, form.V1)
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(server.Config(apiserver.Admin))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	agents := map[string]bool{}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		mu.Lock()
		defer mu.Unlock()
		agents[r.In.UserAgent()] = true
		r.SetURL(target)
	}})
	defer proxy.Close()
	s := shell{t: t, env: []string{"DATASTORE_TYPE=kubernetes", "K8S_API_ENDPOINT=" + proxy.URL, "HOME=" + t.TempDir()}}
	shown := s.run("get", "profile", "kns.default", "-o", "yaml")
	if shown.code != 0 || !strings.Contains(shown.out, `/"`) && !strings.Contains(shown.out, "/\n") {
		t.Fatalf("%+v, want a resourceVersion with a slash", shown)
	}
	for agent := range agents {
		if !strings.HasPrefix(agent, "manxctl/dev (") {
			t.Errorf("User-Agent %q has no version", agent)
		}
	}
	if len(agents) == 0 {
		t.Error("nothing came to the server")
	}
	if same := s.pipe(shown.out, "apply", "-f", "-"); same.code != 0 || !strings.Contains(same.out, "unchanged") {
		t.Errorf("applied as it is shown: %+v", same)
	}
	another := strings.Replace(shown.out, "metadata:\n", "metadata:\n  labels: {a: b}\n", 1)
	refused := s.pipe(another, "apply", "-f", "-")
	if refused.code != 1 || strings.Contains(refused.err, "remove the field") {
		t.Errorf("%+v, want the reason of the datastore", refused)
	}
	t.Log(refused.err)
	applyToKubernetes(t, server)
	unlockDuringMigration(t, s, server)
}

// unlockDuringMigration shows that the lock of a migration between the groups of custom resources stays.
func unlockDuringMigration(t *testing.T, s shell, server *apiserver.Server) {
	const group, version = "migration.projectcalico.org", "v1beta1"
	path := "/apis/" + group + "/" + version + "/datastoremigrations"
	server.Define(t, form.Resource{Group: group, Version: version, Plural: "datastoremigrations",
		Kind: "DatastoreMigration"})
	server.Request(t, http.MethodPatch, "/apis/"+string(form.V1)+"/clusterinformations/default", map[string]any{
		"spec": map[string]any{"datastoreReady": false}})
	server.Request(t, http.MethodPost, path, map[string]any{"apiVersion": group + "/" + version,
		"kind": "DatastoreMigration", "metadata": map[string]any{"name": "v1-to-v3"},
		"status": map[string]any{"phase": "Migrating"}})
	s.run("datastore", "unlock").want(t, 1, "", "Warning: the Kubernetes API is reached without TLS",
		"the datastore stays locked: the DatastoreMigration v1-to-v3 is Migrating")
	server.Request(t, http.MethodPatch, path+"/v1-to-v3", map[string]any{"status": map[string]any{"phase": "Failed"}})
	s.run("datastore", "unlock").want(t, 0, "Datastore unlocked.\n", "Warning: the Kubernetes API")
}
