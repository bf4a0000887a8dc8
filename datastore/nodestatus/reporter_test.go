package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

const root = "/calico/resources/v3/projectcalico.org/caliconodestatuses/"

// world is an etcd with a Reporter of node "n".
type world struct {
	*testing.T
	store   datastore.Store
	client  *clientv3.Client
	facts   atomic.Pointer[Facts] // nil: an error
	queries atomic.Int32
	r       *Reporter
}

func newWorld(t *testing.T) *world {
	server := etcdtest.Start(t)
	w := &world{T: t, store: server.Store(t), client: server.Client(t)}
	w.facts.Store(&someFacts)
	return w
}

func (w *world) run(store datastore.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r := &Reporter{Store: store, Node: "n", Log: zaptest.NewLogger(w, zaptest.Level(zap.ErrorLevel)),
		Retry: 50 * time.Millisecond,
		Facts: func(routes bool) (Facts, error) {
			w.queries.Add(1)
			f := w.facts.Load()
			if f == nil {
				return Facts{}, errors.New("not yet")
			}
			c := *f
			if !routes {
				c.Routes = nil
			}
			return c, nil
		}}
	w.r = r
	go func() {
		defer close(done)
		if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
			w.Errorf("ended with %v", err)
		}
	}()
	w.Cleanup(func() { cancel(); <-done })
}

func (w *world) put(name, node, classes string, period int) int64 {
	w.Helper()
	r, err := w.client.Put(w.Context(), root+name,
		fmt.Sprintf(`{"kind":"CalicoNodeStatus","apiVersion":"projectcalico.org/v3","metadata":{"name":%q,"future":7},`+
			`"spec":{"node":%q,"classes":[%s],"updatePeriodSeconds":%d,"fromTheFuture":true},"status":{"lastUpdated":null}}`, name, node, classes, period))
	if err != nil {
		w.Fatal(err)
	}
	return r.Header.Revision
}

func (w *world) get(name string) (*v3.CalicoNodeStatus, string, int64) {
	w.Helper()
	r, err := w.client.Get(w.Context(), root+name)
	if err != nil {
		w.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return nil, "", 0
	}
	o := codec.Decode(model.ResourceKey(model.KindCalicoNodeStatus, name), r.Kvs[0].Value, r.Kvs[0].ModRevision)
	if o.Err != nil {
		w.Fatal(o.Err)
	}
	return o.Value.(*v3.CalicoNodeStatus), string(r.Kvs[0].Value), r.Kvs[0].ModRevision
}

func (w *world) await(what, name string, cond func(*v3.CalicoNodeStatus) bool) {
	w.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		s, raw, _ := w.get(name)
		if s != nil && cond(s) {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("timeout while waiting for %s: %s is %s", what, name, raw)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func established(n int) func(*v3.CalicoNodeStatus) bool {
	return func(s *v3.CalicoNodeStatus) bool {
		return !s.Status.LastUpdated.IsZero() && s.Status.BGP.NumberEstablishedV4 == n
	}
}

func TestOwnObjectsAreFilledIn(t *testing.T) {
	w := newWorld(t)
	other := w.put("other", "m", `"BGP"`, 1)
	w.put("before", "n", `"BGP"`, 0)
	w.run(w.store)
	w.await("an object that was there before", "before", established(1))
	w.put("after", "n", `"Agent","Routes"`, 3600)
	w.await("a new object", "after", func(s *v3.CalicoNodeStatus) bool {
		return s.Status.Agent.BIRDV4.State == v3.BGPDaemonStateReady && len(s.Status.Routes.RoutesV4) == 3
	})
	_, raw, _ := w.get("after")
	for _, kept := range []string{`"fromTheFuture":true`, `"future":7`, `"updatePeriodSeconds":3600`} {
		if !strings.Contains(raw, kept) {
			t.Errorf("%s is lost: %s", kept, raw)
		}
	}
	if _, _, now := w.get("other"); now != other {
		t.Error("the status of another node was touched")
	}
}

// An object that cannot be decoded, or is not valid, is shown until it is repaired or gone. The others are filled in.
func TestUnusableObjectsAreShown(t *testing.T) {
	w := newWorld(t)
	put := func(name, text string) {
		t.Helper()
		if _, err := w.client.Put(t.Context(), root+name, text); err != nil {
			t.Fatal(err)
		}
	}
	put("cut", `{"kind":"CalicoNodeStatus","apiVersion":"projectcalico.org/v3","metadata":{"name":"cut"},"spec":{"no`)
	put("list", `{"kind":"CalicoNodeStatus","apiVersion":"projectcalico.org/v3","metadata":{"name":"list"},"spec":[]}`)
	w.put("good", "n", `"BGP"`, 0)
	w.run(w.store)
	w.await("the object beside them", "good", established(1))
	want := func(names ...string) {
		t.Helper()
		var have map[model.Key]error
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			have = w.r.Unusable()
			found := len(have) == len(names)
			for _, n := range names {
				found = found && have[model.ResourceKey(model.KindCalicoNodeStatus, n)] != nil
			}
			if found {
				return
			}
		}
		t.Fatalf("unusable are %v, want %q", have, names)
	}
	want("cut", "list")
	w.put("cut", "n", `"BGP"`, 0)
	w.await("the repaired object", "cut", established(1))
	want("list")
	if _, err := w.client.Delete(t.Context(), root+"list"); err != nil {
		t.Fatal(err)
	}
	want()
}

func TestWithoutObjectsNothingIsGathered(t *testing.T) {
	w := newWorld(t)
	w.run(w.store)
	w.put("other", "m", `"BGP"`, 1)
	w.put("mine", "n", `"BGP"`, 0)
	w.await("the own object", "mine", established(1)) // so the earlier events have been read
	if n := w.queries.Load(); n != 1 {
		t.Errorf("facts were gathered %d times for one report", n)
	}
}

func TestPeriod(t *testing.T) {
	w := newWorld(t)
	w.put("often", "n", `"BGP"`, 1)
	w.put("once", "n", `"BGP"`, 0)
	w.run(w.store)
	w.await("the first report", "often", established(1))
	w.await("the first report", "once", established(1))
	_, _, first := w.get("once")
	w.facts.Store(&Facts{Running: true})
	w.await("the next report", "often", established(0))
	if _, _, now := w.get("once"); now != first {
		t.Error("reported again although updatePeriodSeconds is 0")
	}
	w.put("once", "n", `"BGP","Agent"`, 0) // spec changed
	w.await("a report of what changed", "once", func(s *v3.CalicoNodeStatus) bool {
		return established(0)(s) && s.Status.Agent.BIRDV4.State == v3.BGPDaemonStateReady
	})
	w.put("often", "n", `"BGP"`, 0)
	w.await("the last report", "often", established(0))
	_, _, last := w.get("often")
	w.put("clock", "n", `"BGP"`, 1)
	w.await("a report of another object", "clock", established(0))
	s, _, _ := w.get("clock")
	w.await("and its next", "clock", func(x *v3.CalicoNodeStatus) bool {
		return x.Status.LastUpdated.After(s.Status.LastUpdated.Time)
	})
	if _, _, now := w.get("often"); now != last {
		t.Error("reported although updatePeriodSeconds became 0")
	}
}

func TestDeletedOrMovedObjectIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.put("gone", "n", `"BGP"`, 1)
	w.put("moved", "n", `"BGP"`, 1)
	w.run(w.store)
	w.await("the first report", "gone", established(1))
	w.await("the first report", "moved", established(1))
	if _, err := w.client.Delete(w.Context(), root+"gone"); err != nil {
		t.Fatal(err)
	}
	moved := w.put("moved", "m", `"BGP"`, 1)
	w.put("clock", "n", `"BGP"`, 1)
	w.await("a report of another object", "clock", established(1))
	s, _, _ := w.get("clock")
	w.await("two more", "clock", func(x *v3.CalicoNodeStatus) bool {
		return x.Status.LastUpdated.Sub(s.Status.LastUpdated.Time) >= 2*time.Second
	})
	if s, _, _ := w.get("gone"); s != nil {
		t.Error("a deleted object came back")
	}
	if _, _, now := w.get("moved"); now != moved {
		t.Error("an object that is about another node now was touched")
	}
}

// racingStore lets another program write an object right before each of the first updates.
type racingStore struct {
	datastore.Store
	left  atomic.Int32
	write func()
}

func (r *racingStore) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	if r.left.Add(-1) >= 0 {
		r.write()
	}
	return r.Store.Update(ctx, o)
}

func TestConflict(t *testing.T) {
	for _, races := range []int32{1, 2, 3, 4} { // from 3 on the report is abandoned and repeated later
		t.Run(fmt.Sprint(races), func(t *testing.T) {
			w := newWorld(t)
			n := 0
			r := &racingStore{Store: w.store, write: func() {
				n++
				_, raw, _ := w.get("x")
				raw = strings.Replace(raw, fmt.Sprintf(`"future":%d`, 6+n), fmt.Sprintf(`"future":%d`, 7+n), 1)
				if _, err := w.client.Put(context.Background(), root+"x", raw); err != nil {
					t.Error(err)
				}
			}}
			r.left.Store(races)
			w.put("x", "n", `"BGP"`, 0)
			w.run(r)
			w.await("the report", "x", established(1))
			if _, raw, _ := w.get("x"); !strings.Contains(raw, fmt.Sprintf(`"future":%d`, 7+races)) {
				t.Errorf("the changes of another program are lost: %s", raw)
			}
		})
	}
}

func TestNothingIsWrittenWithoutFacts(t *testing.T) {
	w := newWorld(t)
	w.facts.Store(nil)
	revision := w.put("x", "n", `"BGP"`, 0)
	w.run(w.store)
	deadline := time.Now().Add(20 * time.Second)
	for w.queries.Load() < 3 {
		if time.Now().After(deadline) {
			t.Fatal("the report is not tried again")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if _, _, now := w.get("x"); now != revision {
		t.Error("something was written")
	}
	w.facts.Store(&someFacts)
	w.await("the report", "x", established(1))
}

// A status that was removed, as by calicoctl replace, is filled in again. A status that another program writes is left
// alone.
func TestStatusOfOthers(t *testing.T) {
	w := newWorld(t)
	w.put("x", "n", `"BGP"`, 0)
	w.run(w.store)
	w.await("the report", "x", established(1))
	_, raw, _ := w.get("x")
	theirs := strings.Replace(raw, `"numberEstablishedV4":1`, `"numberEstablishedV4":42`, 1)
	if _, err := w.client.Put(t.Context(), root+"x", theirs); err != nil {
		t.Fatal(err)
	}
	queries := w.queries.Load()
	w.put("next", "n", `"BGP"`, 0)
	w.await("a later report", "next", established(1))
	if s, _, _ := w.get("x"); s.Status.BGP.NumberEstablishedV4 != 42 || w.queries.Load() != queries+1 {
		t.Errorf("reported over the status of another program: %+v", s.Status.BGP)
	}
	w.put("x", "n", `"BGP"`, 0)
	w.await("a new report", "x", established(1))
}

// The datastore goes away while a report is due: it is made when the datastore is back.
func TestOutage(t *testing.T) {
	server := etcdtest.Start(t)
	w := &world{T: t, store: server.Store(t), client: server.Client(t)}
	w.facts.Store(&someFacts)
	w.put("often", "n", `"BGP"`, 1)
	w.put("once", "n", `"BGP"`, 0)
	w.run(w.store)
	w.await("the first report", "often", established(1))
	w.await("the first report", "once", established(1))
	_, _, revision := w.get("once")
	server.Stop()
	w.facts.Store(&Facts{Running: true})
	queries := w.queries.Load()
	deadline := time.Now().Add(20 * time.Second)
	for w.queries.Load() == queries && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	server.Restart(t)
	w.await("a report after the outage", "often", established(0))
	if _, _, now := w.get("once"); now != revision {
		t.Error("an object with period 0 was reported again after an outage")
	}
}

// After the datastore was restored to an earlier state, the object with the older revision is the current one.
func TestDatastorePutBackToAnEarlierState(t *testing.T) {
	r := &Reporter{Node: "n", objects: map[model.Key]*reported{}}
	key := model.ResourceKey(model.KindCalicoNodeStatus, "s")
	take := func(revision int64, classes ...v3.NodeStatusClassType) string {
		o := model.NewObject(key, &v3.CalicoNodeStatus{Spec: v3.CalicoNodeStatusSpec{Node: "n", Classes: classes}})
		o.Revision = revision
		r.take(datastore.Event{Type: datastore.EventUpdate, Key: key, Object: o, Revision: revision})
		return fmt.Sprint(r.objects[key].object.Revision)
	}
	got := take(50)
	got += " " + take(40) // late: the own write is newer
	r.take(datastore.Event{Type: datastore.EventLost, Err: errors.New("down")})
	got += " " + take(7)
	r.take(datastore.Event{Type: datastore.EventInSync, Revision: 8})
	if got += " " + take(6); got != "50 50 7 7" {
		t.Errorf("revisions that count: %s", got)
	}
}
