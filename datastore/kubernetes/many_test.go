package kubernetes_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// requestLog records the requests about nodes and pods, and the compressed responses.
type requestLog struct {
	mu   sync.Mutex
	list []string
}

// loggingTransport is one of the transports to the server.
type loggingTransport struct {
	*requestLog
	next http.RoundTripper
}

func (a loggingTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	resp, err := a.next.RoundTrip(q)
	kind := q.URL.Path[strings.LastIndex(q.URL.Path, "/")+1:]
	if kind != "nodes" && kind != "pods" || err != nil {
		return resp, err
	}
	how := kind + " list"
	query := q.URL.Query()
	switch {
	case query.Has("sendInitialEvents"):
		how = kind + " watch with all"
	case query.Has("watch"): // it begins after the existing objects, maybe after this test
		return resp, err
	case query.Has("limit"):
		how = kind + " page"
	}
	if resp.Uncompressed {
		how += ", compressed"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, how)
	return resp, err
}

// inSyncOnce follows kinds until they are in sync, and returns the number of their objects.
func inSyncOnce(t *testing.T, s *kubernetes.Store, kinds ...model.Kind) (n int) {
	t.Helper()
	waiting := len(kinds)
	for e := range s.Watch(t.Context(), kinds...) {
		switch e.Type {
		case datastore.EventUpdate:
			n++
		case datastore.EventLost:
			t.Fatal(e.Err)
		case datastore.EventInSync:
			if waiting--; waiting == 0 {
				return n
			}
		}
	}
	t.Fatal("the watch ended")
	return 0
}

// TestManyAtOnce: a kind with many objects in a large cluster is read as one compressed list if the server can serve
// the list from its cache, and otherwise page by page.
func TestManyAtOnce(t *testing.T) {
	const nodes = 120
	for name, c := range map[string]struct {
		etcd bool // a current version
		want []string
	}{
		"etcd of today": {true, []string{"nodes list, compressed", "pods list"}},
		"old etcd":      {false, []string{"nodes page, compressed", "pods page"}},
	} {
		t.Run(name, func(t *testing.T) {
			var server *apiserver.Server
			if c.etcd {
				server = apiserver.StartOn(t, etcdtest.Start(t).Endpoint)
			} else {
				server = apiserver.Start(t)
			}
			for i := range nodes {
				server.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"metadata": map[string]any{
					"name": "node-" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) +
						strings.Repeat("y", i/26),
					"annotations": map[string]string{"note": strings.Repeat("as others ", 300)}}})
			}
			config := server.Config(apiserver.Admin)
			a := &requestLog{}
			config.Wrap(func(way http.RoundTripper) http.RoundTripper { return loggingTransport{a, way} })
			s, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, config, logger(t))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close() //nolint:errcheck // it was read
			if n := inSyncOnce(t, s, model.KindNode, model.KindWorkloadEndpoint); n != nodes {
				t.Errorf("%d objects, want %d", n, nodes)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			slices.Sort(a.list)
			if !slices.Equal(a.list, c.want) {
				t.Errorf("requested %q, want %q", a.list, c.want)
			}
		})
	}
}
