package kubeapi_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/cni/kubeapi"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

func TestAPI(t *testing.T) {
	server := apiserver.Start(t)
	api, err := kubeapi.New(server.Config(apiserver.Admin))
	if err != nil {
		t.Fatal(err)
	}
	server.Request(t, http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "shop",
		"annotations": map[string]string{"cni.projectcalico.org/ipv4pools": `["other"]`}}})
	server.Request(t, http.MethodPost, "/api/v1/namespaces/shop/serviceaccounts",
		map[string]any{"metadata": map[string]any{"name": "robot"}})
	server.Request(t, http.MethodPost, "/api/v1/namespaces/shop/pods",
		map[string]any{"metadata": map[string]any{"name": "web",
			"labels": map[string]string{"app": "web"}}, "spec": map[string]any{"serviceAccountName": "robot",
			"automountServiceAccountToken": false,
			"containers":                   []any{map[string]any{"name": "c", "image": "i"}}}})
	pod, err := api.Pod(t.Context(), "shop", "web")
	if err != nil || pod.Labels["app"] != "web" || pod.Spec.ServiceAccountName != "robot" {
		t.Errorf("pod: %+v, %v", pod, err)
	}
	namespace, err := api.Namespace(t.Context(), "shop")
	if err != nil || namespace.Annotations["cni.projectcalico.org/ipv4pools"] != `["other"]` {
		t.Errorf("namespace: %+v, %v", namespace, err)
	}
	if _, err := api.Pod(t.Context(), "shop", "../../../nodes"); !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("a pod that does not exist: %v", err)
	}
	token, err := api.RequestToken(t.Context(), "shop", "robot", "", time.Hour)
	if err != nil || strings.Count(token.Token, ".") != 2 || time.Until(token.Expires) < 30*time.Minute {
		t.Errorf("token: %+v, %v", token, err)
	}
	if _, err := api.RequestToken(t.Context(), "shop", "nobody", "", time.Hour); !errors.Is(err,
		datastore.ErrNotFound) {
		t.Errorf("a token for nobody: %v", err)
	}
	server.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": "n1"}})
	bound, err := api.RequestToken(t.Context(), "shop", "robot", "n1", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if kubeapi.Refused(t.Context(), server.Config(apiserver.Admin), bound.Token) {
		t.Error("the server refuses a token that is bound to a Node")
	}
	server.Request(t, http.MethodDelete, "/api/v1/nodes/n1", nil)
	config := server.Config(apiserver.Admin)
	for end := time.Now().Add(time.Minute); !kubeapi.Refused(t.Context(), config, bound.Token); {
		if time.Sleep(100 * time.Millisecond); time.Now().After(end) { // the server keeps answers for 10 s
			t.Fatal("the server accepts a token whose Node is gone")
		}
	}
	server.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": "n1"}})
	server.Flags = []string{"--feature-gates=ServiceAccountTokenNodeBinding=false"} // as before Kubernetes 1.31
	server.AddUsers(t, "stranger")
	if _, err := api.RequestToken(t.Context(), "shop", "robot", "n1", time.Hour); !errors.Is(err, kubeapi.ErrNotBound) {
		t.Errorf("a server that binds no token to a Node: %v", err)
	}
	stranger, err := kubeapi.New(server.Config("stranger"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.RequestToken(t.Context(), "shop", "robot", "", time.Hour); !errors.Is(err,
		datastore.ErrUnauthorized) ||
		!strings.Contains(err.Error(), "stranger") {
		t.Errorf("a stranger: %v", err)
	}
	server.Stop()
	if _, err := api.Namespace(t.Context(), "shop"); !errors.Is(err, datastore.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}
