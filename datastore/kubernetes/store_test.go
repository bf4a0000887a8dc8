package kubernetes_test

import (
	"net/http"
	"os"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/storetest"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// openAt opens a store over a URL as admin.
func openAt(t *testing.T, server *apiserver.Server, url string, c kubernetes.Config) *kubernetes.Store {
	t.Helper()
	s, err := kubernetes.OpenREST(t.Context(), c, server.ConfigAt(url, apiserver.Admin), logger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func logger(t *testing.T) *zap.Logger {
	if os.Getenv("MANX_TEST_LOG") == "" {
		return zap.NewNop()
	}
	log, err := zap.NewDevelopment()
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// clear removes all custom resources and Leases.
func clear(t *testing.T, server *apiserver.Server, g form.Group) {
	t.Helper()
	server.Request(t, http.MethodDelete, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", nil)
	for _, r := range apiserver.CRDs(g) {
		if r.Namespaced {
			server.Request(t, http.MethodDelete, "/apis/"+r.Group+"/"+r.Version+"/namespaces/default/"+r.Plural, nil)
		} else {
			server.Request(t, http.MethodDelete, "/apis/"+r.Group+"/"+r.Version+"/"+r.Plural, nil)
		}
	}
}

// The distribution's etcd is too old for watches that begin with the existing objects: everything is read in pages.
func TestStoreInPages(t *testing.T) {
	t.Parallel() // it waits for most of its time
	runStoreTests(t, form.V1, apiserver.Start(t))
}

func TestStoreByStreams(t *testing.T) {
	t.Parallel() // the same
	runStoreTests(t, form.V3, apiserver.StartOn(t, etcdtest.Start(t).Endpoint))
}

// runStoreTests runs the tests of every store on a server with a group of custom resources.
func runStoreTests(t *testing.T, g form.Group, server *apiserver.Server) {
	server.InstallCRDs(t, g)
	storetest.Run(t, func(t *testing.T) storetest.System {
		clear(t, server, g)
		line := apiserver.NewLine(t, server.URL)
		var again atomic.Int64
		return storetest.System{
			Open: func(t *testing.T) datastore.Backend {
				return openAt(t, server, server.URL, kubernetes.Config{LeaseTTL: storetest.LongLease})
			},
			OpenRemote: func(t *testing.T) datastore.Backend {
				return openAt(t, server, line.URL, kubernetes.Config{LeaseTTL: storetest.ShortLease,
					Rewatched: func() { again.Add(1) }})
			},
			Cut: line.Cut, Mend: line.Mend,
			Forget:    func(t *testing.T) { server.Forget(t) },
			Rewatched: func() int { return int(again.Load()) },
		}
	})
}
