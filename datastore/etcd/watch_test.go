package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/storetest"
)

const patience = storetest.Patience

var create, change = storetest.Create, storetest.Change

func watch(t *testing.T, s datastore.Store, kinds ...model.Kind) *storetest.Mirror {
	return storetest.Watch(t, s, kinds...)
}

func compact(t *testing.T, c *clientv3.Client) {
	t.Helper()
	resp, err := c.Get(context.Background(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(context.Background(), resp.Header.Revision); err != nil {
		t.Fatal(err)
	}
}

// More is set in each watched event of a transaction except the last one.
func TestWatchMarksTheEventsOfATransaction(t *testing.T) {
	server := etcdtest.Start(t)
	s, client := server.Store(t), server.Client(t)
	m := watch(t, s, model.KindBGPPeer)
	m.UntilInSync()
	var ops []clientv3.Op
	for _, k := range []model.Key{model.ResourceKey(model.KindBGPPeer, "a"), model.ResourceKey(model.KindBGPPeer, "b"),
		model.ResourceKey(model.KindTier, "t")} {
		path, err := etcd.Path(k)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, clientv3.OpPut(path, `{"metadata":{"name":"`+k.Name+
			`"},"spec":{"peerIP":"10.0.0.1","asNumber":1}}`))
	}
	if _, err := client.Txn(t.Context()).Then(ops...).Commit(); err != nil {
		t.Fatal(err)
	}
	c := create(t, s, peer("c", "10.0.0.4"))
	m.Until("c", func() bool { return m.State[c.Key] == c.Revision })
	var marks []bool
	for _, e := range m.Seen[1:] {
		marks = append(marks, e.More)
	}
	if !slices.Equal(marks, []bool{true, false, false}) {
		t.Errorf("more to come after the events: %v", marks)
	}
}

func TestWatchOverServerRestart(t *testing.T) {
	server := etcdtest.Start(t)
	s := server.Store(t)
	a := create(t, s, peer("a", "10.0.0.1"))
	m := watch(t, s, model.KindBGPPeer)
	m.UntilInSync()
	server.Stop()
	m.Until("the loss", func() bool { return m.Lost > 0 })
	if err := m.Seen[len(m.Seen)-1].Err; !errors.Is(err, datastore.ErrUnavailable) ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("reason: %v", err)
	}
	server.Restart(t)
	m.UntilInSync()
	b := create(t, s, peer("b", "10.0.0.2"))
	m.UntilState(map[model.Key]int64{a.Key: a.Revision, b.Key: b.Revision})
	if got := m.Of(a.Key); got != fmt.Sprintf("u%d", a.Revision) {
		t.Errorf("a did not change, but its events are %s", got)
	}
}

// The data directory is lost, or restored from a backup: revisions begin again.
func TestWatchOverReplacedDatastore(t *testing.T) {
	server := etcdtest.Start(t)
	s := server.Store(t)
	create(t, s, peer("a", "10.0.0.1"))
	create(t, s, peer("gone", "10.0.0.2"))
	m := watch(t, s, model.KindBGPPeer)
	m.UntilInSync()
	server.Stop()
	server.DataDir = t.TempDir()
	server.Restart(t)
	fresh := server.Store(t)
	a := create(t, fresh, peer("a", "10.9.9.9")) // the same key and even the same revision as before
	m.Until("the new version of a", func() bool {
		var ip string
		for _, e := range m.Seen {
			if e.Key == a.Key && e.Object != nil {
				ip = peerIP(e.Object)
			}
		}
		return ip == "10.9.9.9"
	})
	m.UntilState(map[model.Key]int64{a.Key: a.Revision})
}

// Random writes and deletions, while the server is restarted and its history compacted: in the end the tables hold the
// objects of a list, and each key's events are a subsequence of its changes that ends in its final state.
func TestTablesEqualTheDatastoreAfterRandomChangesAndFailures(t *testing.T) {
	server := etcdtest.Start(t)
	direct := server.Store(t)
	line := newProxy(t, server.Endpoint)
	s := open(t, etcd.Config{Endpoints: []string{line.URL()}})
	m := watch(t, s, model.KindBGPPeer)
	tables := datastore.NewTables(zap.NewNop(), "")
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() { ran <- tables.Run(ctx, s, model.KindBGPPeer, model.KindNode) }()

	random := rand.New(rand.NewSource(7))
	done := map[model.Key]map[int64]bool{} // revisions at which each key was written; negative for deleted
	note := func(k model.Key, revision int64) {
		if done[k] == nil {
			done[k] = map[int64]bool{}
		}
		done[k][revision] = true
	}
	raw := server.Client(t)
	for i := range 600 {
		o := peer(fmt.Sprintf("p%d", random.Intn(12)), fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250))
		stored, err := direct.Get(ctx, o.Key)
		switch {
		case errors.Is(err, datastore.ErrNotFound):
			stored = create(t, direct, o)
			note(o.Key, stored.Revision)
		case err != nil:
			t.Fatal(err)
		case random.Intn(3) == 0:
			path, _ := etcd.Path(o.Key)
			resp, err := raw.Delete(ctx, path)
			if err != nil {
				t.Fatal(err)
			}
			note(o.Key, -resp.Header.Revision)
		default:
			note(o.Key, change(t, direct, stored, peerIP(o)).Revision)
		}
		m.TakeWaiting()
		switch {
		case i%150 == 75:
			server.Restart(t)
		case i%40 == 20:
			line.cut()
		case i%40 == 30:
			line.mend()
		case i%100 == 99:
			compact(t, raw)
		}
	}
	line.mend()
	create(t, direct, peer("end", "10.0.0.1"))
	objects, _, err := direct.List(ctx, model.KindBGPPeer, "")
	if err != nil {
		t.Fatal(err)
	}
	want := map[model.Key]int64{}
	for _, o := range objects {
		want[o.Key] = o.Revision
		note(o.Key, o.Revision)
	}
	m.UntilState(want)
	for k, revisions := range done {
		checkHistory(t, m, k, revisions)
	}
	for snapshot := (*datastore.Snapshot)(nil); ; {
		if snapshot, err = tables.Wait(ctx, snapshot); err != nil {
			t.Fatal(err)
		}
		got := map[model.Key]int64{}
		for o := range snapshot.All(model.KindBGPPeer) {
			got[o.Key] = o.Revision
		}
		if snapshot.InSync() && maps.Equal(got, want) {
			break
		}
	}
	cancel()
	if err := <-ran; !errors.Is(err, context.Canceled) {
		t.Errorf("run ended with %v", err)
	}
	if m.Lost == 0 {
		t.Error("the watch was never disturbed: the test proves nothing")
	}
}

// checkHistory fails for an event without a write, for a repeated event, and for one out of order.
func checkHistory(t *testing.T, m *storetest.Mirror, k model.Key, revisions map[int64]bool) {
	t.Helper()
	last := int64(0)
	exists := false
	for _, e := range m.Seen {
		if e.Key != k {
			continue
		}
		if e.Revision <= last {
			t.Errorf("%s: event of revision %d after %d: %s", k, e.Revision, last, m.Of(k))
		}
		switch last = e.Revision; e.Type {
		case datastore.EventUpdate:
			if !revisions[e.Revision] {
				t.Errorf("%s: update of revision %d was invented", k, e.Revision)
			}
			exists = true
		case datastore.EventDelete:
			if !exists {
				t.Errorf("%s: delete of what is not there: %s", k, m.Of(k))
			}
			exists = false
		}
	}
}

// A writer changes a peer, then a tier, over and over. In spite of any failure, no snapshot shows the second change of
// a pair without the first, or differs by more than one change from a state that existed.
func TestSnapshotsOfSeveralKindsAreOfOneRevision(t *testing.T) {
	server := etcdtest.Start(t)
	direct := server.Store(t)
	line := newProxy(t, server.Endpoint)
	s := open(t, etcd.Config{Endpoints: []string{line.URL()}})
	tables := datastore.NewTables(zap.NewNop(), "")
	go tables.Run(t.Context(), s, model.KindBGPPeer, model.KindTier)

	const last = 300
	p := create(t, direct, peer("p", "10.0.0.1"))
	tier := create(t, direct, model.NewObject(model.ResourceKey(model.KindTier, "t"), new(model.Tier)))
	firstKey, secondKey := p.Key, tier.Key
	written := make(chan error, 1)
	var reached atomic.Int64
	go func() {
		var err error
		for i := 1; i <= last && err == nil; i++ {
			for i%60 == 10 && reached.Load() < int64(i-1) && t.Context().Err() == nil {
				time.Sleep(time.Millisecond) // so that each cut interrupts a reader
			}
			for _, o := range []**model.Object{&p, &tier} {
				c := (*o).Clone()
				c.Metadata().SetAnnotations(map[string]string{"n": fmt.Sprint(i)})
				if *o, err = direct.Update(t.Context(), c); err != nil {
					break
				}
			}
			switch i % 60 {
			case 20:
				line.cut()
			case 40:
				line.mend()
			}
		}
		line.mend()
		written <- err
	}()
	number := func(s *datastore.Snapshot, k model.Key) (n int) {
		if o := s.Get(k); o != nil {
			fmt.Sscan(o.Metadata().GetAnnotations()["n"], &n)
		}
		return n
	}
	different := 0
	for seen := (*datastore.Snapshot)(nil); ; different++ {
		var err error
		if seen, err = tables.Wait(t.Context(), seen); err != nil {
			t.Fatal(err)
		}
		first, second := number(seen, firstKey), number(seen, secondKey)
		if first != second && first != second+1 {
			t.Fatalf("revision %d: peer %d with tier %d", seen.Revision(), first, second)
		}
		reached.Store(int64(second))
		if second == last {
			break
		}
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if different < 5 || tables.Status().Restarts == 0 {
		t.Errorf("only %d snapshots, %d restarts: the test proves nothing", different, tables.Status().Restarts)
	}
}

// A watch without changes shows that the datastore answers.
func TestQuietWatchIsAlive(t *testing.T) {
	t.Parallel() // it waits for half a heartbeat
	m := watch(t, etcdtest.Start(t).Store(t), model.KindBGPPeer)
	m.UntilInSync()
	m.Until("an answer", func() bool { return m.Alive > 0 })
}
