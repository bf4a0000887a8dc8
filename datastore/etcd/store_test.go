package etcd_test

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/storetest"
)

func peer(name, ip string) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindBGPPeer, name),
		&model.BGPPeer{Spec: model.BGPPeerSpec{PeerIP: ip, ASNumber: 64512}})
}

func peerIP(o *model.Object) string { return o.Value.(*model.BGPPeer).Spec.PeerIP }

// runStoreTests runs the tests of every store on an etcd, which has an endpoint besides.
func runStoreTests(t *testing.T, direct etcd.Config, endpoint string) {
	plain := rawClient(t, direct)
	direct.LeaseTTL = storetest.LongLease
	storetest.Run(t, func(t *testing.T) storetest.System {
		if _, err := plain.Delete(t.Context(), etcd.Root, clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		line := newProxy(t, endpoint)
		var again atomic.Int64
		remote := etcd.Config{Endpoints: []string{line.URL()}, RequestTimeout: 5 * time.Second,
			LeaseTTL: storetest.ShortLease, Rewatched: func() { again.Add(1) }}
		return storetest.System{
			Open:       func(t *testing.T) datastore.Backend { return open(t, direct) },
			OpenRemote: func(t *testing.T) datastore.Backend { return open(t, remote) },
			Cut:        line.cut, Mend: line.mend,
			Forget:    func(t *testing.T) { compact(t, plain) },
			Rewatched: func() int { return int(again.Load()) },
		}
	})
}

// rawClient returns a plain etcd client.
func rawClient(t *testing.T, c etcd.Config) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// The distribution's server is an older version than the embedded one.
func TestStoreOnDistributionServer(t *testing.T) {
	config := etcd.Config{Endpoints: endpoints(startCluster(t, 1)...)}
	t.Parallel() // only here: the server has its ports
	runStoreTests(t, config, config.Endpoints[0])
}

// The embedded server is reached over its unix socket, as on its own host, and over TCP, as from other hosts.
func TestStoreOnEmbeddedServer(t *testing.T) {
	server := etcdtest.Start(t)
	socket := "unix://" + filepath.Join(server.DataDir, embedded.SocketName)
	t.Parallel()
	runStoreTests(t, etcd.Config{Endpoints: []string{socket}}, server.Endpoint)
}
