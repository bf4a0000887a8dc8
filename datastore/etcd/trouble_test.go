package etcd_test

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

// closedPort returns an address where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// silentPort accepts connections and sends nothing.
func silentPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestUnreachableDatastoreNamesEachEndpointAndWhy(t *testing.T) {
	a, b := "http://"+closedPort(t), "http://"+silentPort(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{a, b}}, zap.NewNop())
	if !errors.Is(err, datastore.ErrUnavailable) {
		t.Fatal(err)
	}
	for _, want := range []string{a + ": dial tcp", "connection refused",
		b + ": accepts connections, but does not answer"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

func TestOneOfSeveralEndpointsIsEnough(t *testing.T) {
	server := etcdtest.Start(t)
	s := open(t, etcd.Config{Endpoints: []string{"http://" + closedPort(t), server.Endpoint}})
	a := create(t, s, peer("a", "10.0.0.1"))
	m := watch(t, s, a.Key.Kind)
	m.UntilState(map[model.Key]int64{a.Key: a.Revision})
}

func TestOperationsWhileTheDatastoreIsDown(t *testing.T) {
	server := etcdtest.Start(t)
	config := server.Config()
	config.RequestTimeout = time.Second
	s := open(t, config)
	a := create(t, s, peer("a", "10.0.0.1"))
	server.Stop()
	for op, f := range map[string]func() error{
		"get":    func() error { _, err := s.Get(t.Context(), a.Key); return err },
		"list":   func() error { _, _, err := s.List(t.Context(), a.Key.Kind, ""); return err },
		"create": func() error { _, err := s.Create(t.Context(), peer("b", "10.0.0.1")); return err },
		"update": func() error { _, err := s.Update(t.Context(), a); return err },
		"delete": func() error { _, err := s.Delete(t.Context(), a.Key, 0); return err },
	} {
		err := f()
		var e *datastore.KeyError
		if !errors.Is(err, datastore.ErrUnavailable) || !errors.As(err, &e) || e.Op != op ||
			!strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", op, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Get(ctx, a.Key); !errors.Is(err, context.Canceled) || errors.Is(err, datastore.ErrUnavailable) {
		t.Errorf("given up by the caller: %v", err)
	}
	server.Restart(t)
	for end := time.Now().Add(patience); ; {
		if _, err := s.Get(t.Context(), a.Key); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("after restart: %v", err)
		}
	}
}

func TestSlowDatastore(t *testing.T) {
	server := etcdtest.Start(t)
	line := newProxy(t, server.Endpoint)
	line.setDelay(200 * time.Millisecond)
	s := open(t, etcd.Config{Endpoints: []string{line.URL()}})
	m := watch(t, s, model.KindBGPPeer)
	m.UntilInSync()
	a := create(t, s, peer("a", "10.0.0.1"))
	m.UntilState(map[model.Key]int64{a.Key: a.Revision})
	if m.Lost > 0 {
		t.Error("slow is not lost")
	}
}

func TestNothingLeaks(t *testing.T) {
	server := etcdtest.Start(t)
	line := newProxy(t, server.Endpoint)
	use := func() {
		s, err := etcd.Open(context.Background(), etcd.Config{Endpoints: []string{line.URL()}}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		tables := datastore.NewTables(zap.NewNop(), "")
		ctx, cancel := context.WithCancel(context.Background())
		ran := make(chan struct{})
		go func() {
			tables.Run(ctx, s, model.KindNode)
			close(ran)
		}()
		if _, err := tables.WaitInSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		line.cut()
		for tables.Snapshot().InSync() {
			<-tables.Changed()
		}
		line.mend()
		if _, err := tables.WaitInSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		cancel()
		<-ran
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	use()
	settle := func(count func() int, limit int) int {
		for end := time.Now().Add(patience); count() > limit && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
		return count()
	}
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	goroutines, open := runtime.NumGoroutine(), files()
	for range 4 {
		use()
	}
	if n := settle(runtime.NumGoroutine, goroutines); n > goroutines {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines, were %d\n%s", n, goroutines, stacks[:runtime.Stack(stacks, true)])
	}
	if n := settle(files, open); n > open {
		t.Errorf("%d files are open, were %d", n, open)
	}
}

// The embedded server leaves nothing behind either.
func TestEmbeddedLeaksNothing(t *testing.T) {
	dir := t.TempDir()
	use := func() {
		e, err := embedded.Start(t.Context(),
			embedded.Config{DataDir: dir, Listen: "127.0.0.1:0", Insecure: true, MinFreeBytes: 1}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		s := open(t, e.Config())
		s.List(t.Context(), model.KindNode, "")
		s.Close()
		e.Close()
	}
	use()
	count := func() (n int) {
		entries, _ := os.ReadDir("/proc/self/fd")
		return len(entries)
	}
	before, files := runtime.NumGoroutine(), count()
	for range 3 {
		use()
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if runtime.NumGoroutine() <= before && count() <= files {
			return
		}
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("%d goroutines, were %d; %d files, were %d\n%s", runtime.NumGoroutine(), before, count(), files,
		stacks[:runtime.Stack(stacks, true)])
}
