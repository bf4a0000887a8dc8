package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
)

const (
	election    = "controllers"
	electionKey = "/calico/manx/v1/elections/" + election
	// never is longer than any test waits: who leads before it is over did not wait for a lease to run out.
	never = time.Hour
)

// candidate is a store whose leases last so long.
func candidate(t *testing.T, c etcd.Config, ttl time.Duration) *etcd.Store {
	c.LeaseTTL = ttl
	return open(t, c)
}

// campaign lets a candidate try to lead; what it wins comes over the channel.
func campaign(t *testing.T, s datastore.Elector, name string) <-chan datastore.Leadership {
	won := make(chan datastore.Leadership, 1)
	go func() {
		l, err := s.Campaign(t.Context(), election, name)
		if err != nil {
			if t.Context().Err() == nil {
				t.Errorf("%s: %v", name, err)
			}
			return
		}
		won <- l
	}()
	return won
}

// receive waits for what must come.
func receive[T any](t *testing.T, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("waiting for %s: nothing", what)
	}
	return v
}

func ended(t *testing.T, l datastore.Leadership, want string) {
	t.Helper()
	receive(t, l.Context().Done(), "the end of leadership")
	if err := context.Cause(l.Context()); !errors.Is(err, datastore.ErrNotLeading) || !strings.Contains(err.Error(), want) {
		t.Errorf("leadership ended with %v, want %q", err, want)
	}
}

// resigned fails unless the leader could resign and its context has ended.
func resigned(t *testing.T, l datastore.Leadership) {
	t.Helper()
	if err := l.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	ended(t, l, "")
}

func TestOneOfTwoLeadsAndResigningHandsOverAtOnce(t *testing.T) {
	server := etcdtest.Start(t)
	a, b := candidate(t, server.Config(), never), candidate(t, server.Config(), never)
	first := receive(t, campaign(t, a, "a"), "the first leader")
	second := campaign(t, b, "b")
	select {
	case <-second:
		t.Fatal("two lead")
	case <-first.Context().Done():
		t.Fatal(context.Cause(first.Context()))
	case <-time.After(500 * time.Millisecond):
	}
	resigned(t, first)
	last := receive(t, second, "the next leader")
	resigned(t, last)
	resigned(t, last) // as often as one likes
	again := receive(t, campaign(t, a, "a"), "the first again")
	if r, err := server.Client(t).Get(t.Context(), electionKey); err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "a" {
		t.Errorf("stored is %v, %v", r, err)
	}
	resigned(t, again)
	if r, err := server.Client(t).Leases(t.Context()); err != nil || len(r.Leases) > 0 {
		t.Errorf("leases are left: %v, %v", r, err)
	}
}

// However often the lead is taken, given back and lost with its line, there is never more than one leader.
func TestNeverTwoLead(t *testing.T) {
	server := etcdtest.Start(t)
	line := newProxy(t, server.Endpoint)
	var leaders, terms atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	lead := func(s datastore.Elector, name string) error {
		for {
			l, err := s.Campaign(ctx, election, name)
			if err != nil {
				return err
			}
			if n := leaders.Add(1); n != 1 {
				t.Errorf("%d lead", n)
			}
			terms.Add(1)
			select {
			case <-l.Context().Done():
			case <-time.After(150 * time.Millisecond):
			}
			leaders.Add(-1)
			if err := l.Resign(ctx); err != nil && !errors.Is(err, datastore.ErrUnavailable) && ctx.Err() == nil {
				t.Errorf("%s cannot resign: %v", name, err)
			}
		}
	}
	far := server.Config()
	far.Endpoints, far.RequestTimeout = []string{line.URL()}, time.Second
	for i, c := range []etcd.Config{server.Config(), server.Config(), far} {
		s := candidate(t, c, 2*time.Second)
		go func() { done <- lead(s, fmt.Sprint("n", i)) }()
	}
	reached := func(n int32) {
		t.Helper()
		for end := time.Now().Add(patience); terms.Load() < n; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("only %d terms", terms.Load())
			}
		}
	}
	for n := int32(1); n <= 3; n++ {
		reached(8*n - 4)
		line.cut()
		reached(8*n - 2)
		line.mend()
		reached(8 * n)
	}
	cancel()
	for range 3 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// A leader whose line is cut has stopped before another leads; when the line is back he may lead again.
func TestLeaderThatIsCutOff(t *testing.T) {
	server := etcdtest.Start(t)
	line := newProxy(t, server.Endpoint)
	a := candidate(t, etcd.Config{Endpoints: []string{line.URL()}, RequestTimeout: time.Second}, 2*time.Second)
	b := candidate(t, server.Config(), 2*time.Second)
	first := receive(t, campaign(t, a, "a"), "the first leader")
	renewed := time.After(4 * time.Second) // longer than a lease
	second := campaign(t, b, "b")
	select {
	case <-renewed:
	case <-first.Context().Done():
		t.Fatalf("the lease was not renewed: %v", context.Cause(first.Context()))
	case <-second:
		t.Fatal("two lead")
	}
	line.cut()
	next := receive(t, second, "the next leader")
	if first.Context().Err() == nil {
		t.Error("the next one leads before the first has stopped")
	}
	ended(t, first, "did not renew the lease in time")
	if err := first.Resign(t.Context()); !errors.Is(err, datastore.ErrUnavailable) {
		t.Errorf("resigning without a line: %v", err)
	}
	back := campaign(t, a, "a")
	line.mend()
	resigned(t, next)
	resigned(t, receive(t, back, "the first leader again"))
}

// Whoever takes the lease or the entry away by hand ends leadership, and the candidates go on.
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
		first := receive(t, campaign(t, a, "a"), "the first leader")
		second := campaign(t, b, "b")
		r, err := raw.Get(t.Context(), electionKey)
		if err == nil {
			err = kill(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		ended(t, first, "its entry in the datastore is gone")
		resigned(t, receive(t, second, "the next leader"))
		_ = first.Resign(t.Context())
	}
}

// A leader keeps the lead over a restart of etcd that is shorter than its lease; those who look on learn what is so.
func TestElectionOverARestartOfEtcd(t *testing.T) {
	server := etcdtest.Start(t)
	a := candidate(t, server.Config(), never)
	names := candidate(t, server.Config(), never).Observe(t.Context(), election)
	want := func(name string) {
		t.Helper()
		if got := receive(t, names, "leader "+name); got != name {
			t.Fatalf("the leader is %q, want %q", got, name)
		}
	}
	want("")
	first := receive(t, campaign(t, a, "a"), "a leader")
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
	resigned(t, first)
	want("")
	second := receive(t, campaign(t, candidate(t, server.Config(), never), "b"), "the next leader")
	want("b")
	server.Stop()
	server.DataDir = t.TempDir() // another datastore, in which nobody leads
	server.Restart(t)
	ended(t, second, "its entry in the datastore is gone")
	want("")
}

// Who looks on over a line that is cut learns the newest leader when it is back.
func TestObserveOverALostConnection(t *testing.T) {
	server := etcdtest.Start(t)
	line := newProxy(t, server.Endpoint)
	a := candidate(t, server.Config(), never)
	ctx, cancel := context.WithCancel(t.Context())
	names := open(t, etcd.Config{Endpoints: []string{line.URL()}}).Observe(ctx, election)
	if got := receive(t, names, "the first name"); got != "" {
		t.Errorf("%q leads", got)
	}
	first := receive(t, campaign(t, a, "a"), "a leader")
	if got := receive(t, names, "its name"); got != "a" {
		t.Errorf("%q leads, want a", got)
	}
	line.cut()
	resigned(t, first)
	resigned(t, receive(t, campaign(t, a, "brief"), "a brief leader"))
	last := receive(t, campaign(t, a, "c"), "the last leader")
	line.mend()
	if got := receive(t, names, "the last name"); got != "c" {
		t.Errorf("%q leads, want c", got)
	}
	cancel()
	if _, ok := <-names; ok {
		t.Error("a name after the end")
	}
	resigned(t, last)
}

// To lead, a user needs no more rights than to write the datastore.
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
	first := receive(t, campaign(t, a, "a"), "a leader")
	second := campaign(t, b, "b")
	select {
	case <-first.Context().Done():
		t.Fatalf("the lease was not renewed: %v", context.Cause(first.Context()))
	case <-second:
		t.Fatal("two lead")
	case <-time.After(5 * time.Second): // longer than a lease
	}
	resigned(t, first)
	resigned(t, receive(t, second, "the next leader"))
}

// The loss of the etcd member that leads the others is no loss of the lease.
func TestElectionOverTheLossOfAMember(t *testing.T) {
	members := startCluster(t, 3)
	config := etcd.Config{Endpoints: endpoints(members...), RequestTimeout: 2 * time.Second}
	a, b := candidate(t, config, 10*time.Minute), candidate(t, config, 10*time.Minute)
	first := receive(t, campaign(t, a, "a"), "a leader")
	second := campaign(t, b, "b")
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
	resigned(t, first)
	resigned(t, receive(t, second, "the next leader"))
}

func TestElectionsThatCannotBe(t *testing.T) {
	server := etcdtest.Start(t)
	s := open(t, server.Config())
	for name, who := range map[string]string{"": "a", "a/b": "a", "A": "a", "x": ""} {
		if l, err := s.Campaign(t.Context(), name, who); err == nil || l != nil {
			t.Errorf("election %q of %q: %v", name, who, err)
		}
	}
	// Leadership ends with the store and with the context of the campaign; the latter ends a campaign, too.
	ctx, cancel := context.WithCancel(t.Context())
	l, err := s.Campaign(ctx, "x", "a")
	if err != nil {
		t.Fatal(err)
	}
	waiting, give := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer give()
	if _, err := s.Campaign(waiting, "x", "b"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a campaign that was given up: %v", err)
	}
	cancel()
	if err := l.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	if l, err = s.Campaign(t.Context(), "x", "a"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	receive(t, l.Context().Done(), "the end of leadership")
}
