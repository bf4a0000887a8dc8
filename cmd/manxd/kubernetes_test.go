package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/node"
)

func TestKubernetesInternalIP(t *testing.T) {
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/api/v1/nodes/n1":
			fmt.Fprint(w, `{"kind":"Node","metadata":{"name":"n1"},"status":{"addresses":[
				{"type":"Hostname","address":"n1"},{"type":"ExternalIP","address":"203.0.113.1"},
				{"type":"InternalIP","address":"10.0.0.1"},{"type":"InternalIP","address":"10.0.0.2"}]}}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","message":"nodes \"other\" not found"}`)
		}
	}))
	defer api.Close()
	kubeconfig := writeKubeconfig(t, api, "secret")

	lookup := addressOf(t, kubeconfig, "n1")
	if ip, err := lookup(t.Context(), node.IPv4); err != nil || ip.String() != "10.0.0.1" {
		t.Errorf("%s, %v", ip, err)
	}
	for _, c := range []struct {
		what, kubeconfig, node string
		family                 node.Family
		want                   string
	}{
		{"no address of the family", kubeconfig, "n1", node.IPv6, "no InternalIP of IPv6"},
		{"no such node", kubeconfig, "other", node.IPv4, `nodes "other" not found`},
		{"a wrong token", writeKubeconfig(t, api, "wrong"), "n1", node.IPv4, "401 Unauthorized"},
	} {
		lookup := addressOf(t, c.kubeconfig, c.node)
		if _, err := lookup(t.Context(), c.family); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
	// A missing kubeconfig is an error only for a setting that needs it.
	o := options{datastore: datastoreOptions{kube: kubernetes.Config{Kubeconfig: filepath.Join(t.TempDir(), "none")}}}
	if api, err := o.kubernetesAPI(zap.NewNop()); api != nil || err != nil {
		t.Errorf("a missing kubeconfig that nothing needs: %v", err)
	}
	o.node.ipMethod = "kubernetes-internal-ip"
	if _, err := o.kubernetesAPI(zap.NewNop()); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing kubeconfig: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	o.datastore.kube.Kubeconfig = ""
	if api, err := o.kubernetesAPI(zap.NewNop()); api != nil || err != nil {
		t.Errorf("outside of a cluster: %v", err)
	}
	o.datastore.kind = connect.Kubernetes
	if _, err := o.kubernetesAPI(zap.NewNop()); !errors.Is(err, kubernetes.ErrNoKubernetes) {
		t.Errorf("outside of a cluster, with the datastore there: %v", err)
	}
}

func addressOf(t *testing.T, kubeconfig, name string) node.KubernetesAddress {
	t.Helper()
	config, err := kubernetes.Config{Kubeconfig: kubeconfig}.REST()
	if err != nil {
		t.Fatal(err)
	}
	lookup, err := kubernetesAddress(config, name)
	if err != nil {
		t.Fatal(err)
	}
	return lookup
}

func writeKubeconfig(t *testing.T, api *httptest.Server, token string) string {
	t.Helper()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%s", certificate-authority: %s}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, api.URL, ca, token)
	path := filepath.Join(dir, "kubeconfig")
	for file, content := range map[string][]byte{ca: cert, path: []byte(text)} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}
