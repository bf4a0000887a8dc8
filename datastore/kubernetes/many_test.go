package kubernetes_test

import (
	"net/http"
	"slices"
	"strconv"
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
	case query.Get("limit") == "1":
		how = kind + " one"
	case query.Get("resourceVersion") == "0":
		how = kind + " cached"
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

// fetched returns how many Nodes the server has read from its etcd for lists.
func fetched(t *testing.T, server *apiserver.Server) (n int) {
	t.Helper()
	const metric = `apiserver_storage_list_fetched_objects_total{resource="nodes"} `
	for line := range strings.Lines(string(server.Request(t, http.MethodGet, "/metrics", nil))) {
		if text, ok := strings.CutPrefix(line, metric); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(f)
		}
	}
	t.Fatalf("the server has no metric %s", metric)
	return 0
}

// TestManyAtOnce: a kind with many objects in a large cluster is read as one compressed list, which the server serves
// from its cache, whatever its etcd supports.
func TestManyAtOnce(t *testing.T) {
	const nodes = 120
	for name, c := range map[string]struct {
		etcd bool // a current version
		want []string
		read int // Nodes from etcd
	}{
		"etcd of today": {true, []string{"nodes list, compressed", "pods list"}, 0},
		"old etcd":      {false, []string{"nodes cached, compressed", "nodes one", "pods cached", "pods one"}, 1},
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
			before := fetched(t, server)
			if n := inSyncOnce(t, s, model.KindNode, model.KindWorkloadEndpoint); n != nodes {
				t.Errorf("%d objects, want %d", n, nodes)
			}
			if n := fetched(t, server) - before; n != c.read {
				t.Errorf("the server has read %d Nodes from its etcd, want %d", n, c.read)
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
