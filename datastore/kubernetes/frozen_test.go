package kubernetes_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// An API server that does not reach its etcd still lists what its cache has. A daemon that starts meanwhile must not
// take that for the state of the cluster: it would prune what came later.
func TestServerWithoutItsEtcdIsNotBelieved(t *testing.T) {
	t.Parallel() // it waits for most of its time
	server := apiserver.Start(t)
	server.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": "n1"}})
	s := openAt(t, server, server.URL, kubernetes.Config{})
	thaw := server.Freeze(t)
	defer thaw()
	cached, err := server.Raw(t, apiserver.Admin).Get().AbsPath("/api/v1/nodes").Param("resourceVersion", "0").
		Do(t.Context()).Raw()
	if err != nil || !strings.Contains(string(cached), `"n1"`) {
		t.Fatalf("the server's cache has no Node: %s, %v", cached, err)
	}
	lost := false
	for e := range s.Watch(t.Context(), model.KindNode) {
		switch e.Type {
		case datastore.EventLost:
			lost = true
			thaw()
		case datastore.EventInSync:
			if !lost {
				t.Error("in sync without etcd")
			}
			return
		}
	}
	t.Error("the watch ended")
}
