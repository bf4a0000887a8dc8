// Package etcdtest runs an etcd server for a test.
package etcdtest

import (
	"context"
	"fmt"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
	"github.com/manxnet/manx/integration/ports"
)

// Server is an embedded etcd server on a free loopback port, open to every program of this host, with its data in a
// directory of the test.
type Server struct {
	DataDir string
	// Endpoint is the server's URL. It stays the same over Restart.
	Endpoint string
	embedded *embedded.Server
}

// Start runs a fresh server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	// The path of a unix socket is short; the names of tests are not.
	dir, err := os.MkdirTemp("", "etcdtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &Server{DataDir: dir}
	s.start(t, fmt.Sprintf("127.0.0.1:%d", ports.Free(t, "127.0.0.1")))
	s.Endpoint = "http://" + s.embedded.Address()
	t.Cleanup(func() { s.Stop() })
	return s
}

func (s *Server) start(t testing.TB, listen string) {
	t.Helper()
	e, err := embedded.Start(context.Background(),
		embedded.Config{DataDir: s.DataDir, Listen: listen, Insecure: true, MinFreeBytes: 1}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	s.embedded = e
}

// Stop ends the server. Its data stays.
func (s *Server) Stop() {
	if s.embedded != nil {
		s.embedded.Close()
		s.embedded = nil
	}
}

// Restart starts the server again, after Stop or instead of it, with the same data and endpoint.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	s.start(t, s.Endpoint[len("http://"):])
}

// Config returns the client configuration of the server.
func (s *Server) Config() etcd.Config { return etcd.Config{Endpoints: []string{s.Endpoint}} }

// Store opens a store that is closed when the test ends.
func (s *Server) Store(t testing.TB) *etcd.Store {
	t.Helper()
	store, err := etcd.Open(context.Background(), s.Config(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// Client returns an etcd client, like another program's. It is closed when the test ends.
func (s *Server) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}
