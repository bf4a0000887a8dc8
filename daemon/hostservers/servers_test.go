package hostservers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// The servers of a host: those of its settings, the API servers behind the Service "kubernetes", and name servers.
// Those that were only discovered do not count in an IP pool: a tenant or a workload may be behind them.
func TestServersOfAHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("# made by hand\nnameserver 192.0.2.53\nnameserver fe80::53%eth0\n"+
		"nameserver 10.244.0.10\nsearch example.org\nnameserver\nnameserver cow\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tables := datastore.NewTables(zap.NewNop(), "n1")
	put := func(k model.Key, v any) datastore.Event {
		return datastore.Event{Type: datastore.EventUpdate, Key: k, Object: model.NewObject(k, v), Revision: 1}
	}
	tables.Apply(
		put(model.ResourceKey(model.KindIPPool, "pods"), &model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.244.0.0/16"}}),
		put(model.Key{Kind: model.KindEndpointSlice, Namespace: "default", Name: "kubernetes"}, &model.EndpointSlice{
			Ports: []model.SlicePort{{Port: new(int32(6443))}, {}}, Endpoints: []model.Endpoint{
				{Addresses: []string{"198.51.100.6", "10.244.3.3"}}}}),
		put(model.Key{Kind: model.KindEndpointSlice, Namespace: "evil", Name: "kubernetes"}, &model.EndpointSlice{
			Endpoints: []model.Endpoint{{Addresses: []string{"198.51.100.7"}}}}),
		datastore.Event{Type: datastore.EventInSync, Revision: 1})
	s := New(deps.Deps{Tables: tables, Kube: &rest.Config{Host: "https://localhost"}}, "http://10.244.0.1:2379")
	s.resolvConf = file
	want := map[netip.Addr]string{}
	for text, what := range map[string]string{"192.0.2.53": "a name server of this host",
		"fe80::53": "a name server of this host", "198.51.100.6": "the Kubernetes API", "10.244.0.1": "the datastore"} {
		want[netip.MustParseAddr(text)] = what
	}
	if got := s.Addresses(); !maps.Equal(got, want) {
		t.Errorf("before names are resolved: %v, want %v", got, want)
	}
	s.resolve(t.Context(), "localhost")
	s.resolve(t.Context(), "no-such-name.invalid")
	want[netip.MustParseAddr("127.0.0.1")] = "the Kubernetes API"
	got := s.Addresses()
	delete(got, netip.IPv6Loopback()) // some hosts have it, too
	if !maps.Equal(got, want) {
		t.Errorf("after names are resolved: %v, want %v", got, want)
	}
	endpoints := slices.DeleteFunc(s.Endpoints(), func(a netip.AddrPort) bool {
		return a.Addr() == netip.IPv6Loopback()
	})
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	if got := fmt.Sprint(endpoints); got != "[10.244.0.1:2379 10.244.3.3:6443 127.0.0.1:443 198.51.100.6:6443]" {
		t.Errorf("the endpoints are %s", got)
	}
}

// The addresses are set at once, when the datastore has been read, and each minute.
func TestServersAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := datastore.NewTables(zap.NewNop(), "n1")
		s := &Servers{configured: map[string]string{"192.0.2.1": "the datastore"}, tables: tables}
		ctx, cancel := context.WithCancel(t.Context())
		var sets atomic.Int32
		ended := make(chan error)
		go func() {
			ended <- s.Follow(ctx, func(map[netip.Addr]string, []netip.AddrPort) {
				sets.Add(1)
			})
		}()
		expect := func(when string, want int32) {
			t.Helper()
			synctest.Wait()
			if got := sets.Load(); got != want {
				t.Errorf("%s: set %d times, want %d", when, got, want)
			}
		}
		expect("at first", 1)
		tables.Apply(datastore.Event{Type: datastore.EventInSync, Revision: 1})
		expect("when the datastore was read", 2)
		time.Sleep(serversInterval) // in the bubble's time
		expect("a minute later", 3)
		cancel()
		if err := <-ended; err == nil {
			t.Error("it ends without an error")
		}
	})
}
