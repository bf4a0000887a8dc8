package etcd_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/storetest"
)

const (
	electionKey = "/calico/manx/v1/elections/" + storetest.Election
	// never is longer than any test: a candidate that leads before did not wait for the expiry of a lease.
	never = time.Hour
)

// candidate returns a store with leases of this duration.
func candidate(t *testing.T, c etcd.Config, ttl time.Duration) *etcd.Store {
	c.LeaseTTL = ttl
	return open(t, c)
}

// The deletion of the lease or of the entry ends leadership, and the candidates go on.
func TestSessionThatIsKilled(t *testing.T) {
	server := etcdtest.Start(t)
	a, b, raw := candidate(t, server.Config(), never), candidate(t, server.Config(), never), server.Client(t)
	for _, kill := range []func(*clientv3.GetResponse) error{
		func(r *clientv3.GetResponse) error {
			_, err := raw.Revoke(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease))
			return err
		},
		func(*clientv3.GetResponse) error { _, err := raw.Delete(t.Context(), electionKey); return err },
	} {
		first := storetest.Receive(t, storetest.Campaign(t, a, "a"), "the first leader")
		second := storetest.Campaign(t, b, "b")
		r, err := raw.Get(t.Context(), electionKey)
		if err == nil {
			err = kill(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		storetest.Ended(t, first, "its entry in the datastore is gone")
		storetest.Resigned(t, storetest.Receive(t, second, "the next leader"))
		_ = first.Resign(t.Context())
	}
}

// A leader keeps the lead over a restart of etcd that is shorter than its lease. Observers learn the true state.
func TestElectionOverARestartOfEtcd(t *testing.T) {
	server := etcdtest.Start(t)
	a := candidate(t, server.Config(), never)
	names := candidate(t, server.Config(), never).Observe(t.Context(), storetest.Election)
	want := func(name string) {
		t.Helper()
		if got := storetest.Receive(t, names, "leader "+name); got != name {
			t.Fatalf("the leader is %q, want %q", got, name)
		}
	}
	want("")
	first := storetest.Receive(t, storetest.Campaign(t, a, "a"), "a leader")
	want("a")
	server.Restart(t)
	for end := time.Now().Add(patience); ; {
		if _, err := a.Get(t.Context(), peer("x", "10.0.0.1").Key); errors.Is(err, datastore.ErrNotFound) {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if err := first.Context().Err(); err != nil {
		t.Fatalf("lost over the restart: %v", context.Cause(first.Context()))
	}
	storetest.Resigned(t, first)
	want("")
	second := storetest.Receive(t, storetest.Campaign(t, candidate(t, server.Config(), never), "b"), "the next leader")
	want("b")
	server.Stop()
	server.DataDir = t.TempDir() // another datastore, without a leader
	server.Restart(t)
	storetest.Ended(t, second, "its entry in the datastore is gone")
	want("")
}

// The right to write the datastore suffices for a leader.
func TestElectionWithAuthentication(t *testing.T) {
	server := startCluster(t, 1)[0]
	root := plainClient(t, server)
	ctx := t.Context()
	for i, step := range []func() error{
		func() error { _, err := root.RoleAdd(ctx, "root"); return err },
		func() error { _, err := root.UserAdd(ctx, "root", "r"); return err },
		func() error { _, err := root.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := root.RoleAdd(ctx, "calico"); return err },
		func() error {
			_, err := root.RoleGrantPermission(ctx, "calico", etcd.Root, clientv3.GetPrefixRangeEnd(etcd.Root),
				clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := root.UserAdd(ctx, "node", "n"); return err },
		func() error { _, err := root.UserGrantRole(ctx, "node", "calico"); return err },
		func() error { _, err := root.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
	node := etcd.Config{Endpoints: endpoints(server), Username: "node", Password: "n"}
	a, b := candidate(t, node, 3*time.Second), candidate(t, node, 3*time.Second)
	first := storetest.Receive(t, storetest.Campaign(t, a, "a"), "a leader")
	second := storetest.Campaign(t, b, "b")
	select {
	case <-first.Context().Done():
		t.Fatalf("the lease was not renewed: %v", context.Cause(first.Context()))
	case <-second:
		t.Fatal("two lead")
	case <-time.After(5 * time.Second): // longer than a lease
	}
	storetest.Resigned(t, first)
	storetest.Resigned(t, storetest.Receive(t, second, "the next leader"))
}

// The loss of etcd's leader does not end the lease.
func TestElectionOverTheLossOfAMember(t *testing.T) {
	members := startCluster(t, 3)
	config := etcd.Config{Endpoints: endpoints(members...), RequestTimeout: 2 * time.Second}
	a, b := candidate(t, config, 10*time.Minute), candidate(t, config, 10*time.Minute)
	first := storetest.Receive(t, storetest.Campaign(t, a, "a"), "a leader")
	second := storetest.Campaign(t, b, "b")
	leader(t, members).kill()
	create := func() error { _, err := b.Create(t.Context(), peer("p", "10.0.0.1")); return err }
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if err := create(); err == nil || errors.Is(err, datastore.ErrExists) {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if first.Context().Err() != nil {
		t.Fatal(context.Cause(first.Context()))
	}
	storetest.Resigned(t, first)
	storetest.Resigned(t, storetest.Receive(t, second, "the next leader"))
}
