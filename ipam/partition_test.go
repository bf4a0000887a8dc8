package ipam

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

// callTimeout bounds a call while a member may be cut off, which does not answer.
const callTimeout = 300 * time.Millisecond

// shaky is a store on a cluster with faults. A fault comes before one of the
// writes; from then on, calls end soon.
type shaky struct {
	Store
	mu     sync.Mutex // handle and block may be written at the same time
	at     int        // the write before which the fault comes
	writes int
	fault  func()
	// disturbed: the fault has come, or the cluster failed for a reason of its own, as an election on a busy machine.
	disturbed bool
}

func (s *shaky) call(ctx context.Context, write int, do func(context.Context) error) error {
	s.mu.Lock()
	if s.writes += write; write > 0 && s.writes == s.at && s.fault != nil {
		s.fault()
		s.disturbed = true
	}
	if s.disturbed {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	s.mu.Unlock()
	err := do(ctx)
	if errors.Is(err, model.ErrUnavailable) {
		s.mu.Lock()
		s.disturbed = true
		s.mu.Unlock()
	}
	return err
}

func (s *shaky) Get(ctx context.Context, k model.Key) (o *model.Object, err error) {
	err = s.call(ctx, 0, func(ctx context.Context) (err error) { o, err = s.Store.Get(ctx, k); return err })
	return o, err
}

func (s *shaky) List(ctx context.Context, k model.Kind, ns string) (o []*model.Object, rev int64, err error) {
	err = s.call(ctx, 0, func(ctx context.Context) (err error) { o, rev, err = s.Store.List(ctx, k, ns); return err })
	return o, rev, err
}

func (s *shaky) Create(ctx context.Context, in *model.Object) (o *model.Object, err error) {
	err = s.call(ctx, 1, func(ctx context.Context) (err error) { o, err = s.Store.Create(ctx, in); return err })
	return o, err
}

func (s *shaky) Update(ctx context.Context, in *model.Object) (o *model.Object, err error) {
	err = s.call(ctx, 1, func(ctx context.Context) (err error) { o, err = s.Store.Update(ctx, in); return err })
	return o, err
}

func (s *shaky) Delete(ctx context.Context, k model.Key, rev int64) (o *model.Object, err error) {
	err = s.call(ctx, 1, func(ctx context.Context) (err error) { o, err = s.Store.Delete(ctx, k, rev); return err })
	return o, err
}

// patient repeats the reads of the model itself, which go on during a partition.
type patient struct{ Store }

func (p patient) read(ctx context.Context, do func(context.Context) error) error {
	for end := time.Now().Add(time.Minute); ; {
		short, cancel := context.WithTimeout(ctx, callTimeout)
		err := do(short)
		cancel()
		if !errors.Is(err, model.ErrUnavailable) || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

func (p patient) Get(ctx context.Context, k model.Key) (o *model.Object, err error) {
	err = p.read(ctx, func(ctx context.Context) (err error) { o, err = p.Store.Get(ctx, k); return err })
	return o, err
}

func (p patient) List(ctx context.Context, k model.Kind, ns string) (o []*model.Object, rev int64, err error) {
	err = p.read(ctx, func(ctx context.Context) (err error) { o, rev, err = p.Store.List(ctx, k, ns); return err })
	return o, rev, err
}

// clusterRun is a run of the model on a cluster with faults.
type clusterRun struct {
	*modelRun
	cluster *etcdtest.Cluster
	store   Store // of the operations

	moves, partitions, requests, responses int
}

// step does one operation. Before one of its writes, the leader may move, a member may be cut off, for the operations
// that follow, too, or the connection of the client may break with a request or a response.
func (r *clusterRun) step() {
	r.now = r.now.Add(time.Duration(r.rng.IntN(30)) * time.Second)
	r.touched = nil
	var fault func()
	count, more := new(int), 0
	who := r.rng.IntN(clusterSize)
	switch r.rng.IntN(16) {
	case 0, 1, 2:
		fault, count = func() { r.cluster.MoveLeader(r.t.Context(), who) }, &r.moves
	case 3:
		fault, count, more = func() { r.cluster.CutOff(who) }, &r.partitions, r.rng.IntN(3)
	case 4, 5, 6:
		fault, count = r.cluster.DropRequest, &r.requests
	case 7, 8, 9:
		fault, count = r.cluster.DropResponse, &r.responses
	}
	store := &shaky{Store: r.store, at: 1 + r.rng.IntN(4), fault: fault}
	a, host := New(store, nil, r.clock), r.host()
	r.operation(a, host, func() bool { return store.disturbed })
	if !store.disturbed {
		return
	}
	*count++
	interrupted := r.touched
	for range more {
		r.operation(a, r.host(), func() bool { return true })
	}
	r.note("that had %d moves, %d partitions, %d dropped requests, %d dropped responses", r.moves, r.partitions,
		r.requests, r.responses)
	r.cluster.Heal(r.t)
	r.readStrict()
	switch r.rng.IntN(3) {
	case 0:
		r.restart(host)
	case 1:
		r.deleteAgain(host, interrupted)
	}
	r.loosen()
	r.invariants()
}

// deleteAgain does what the plugin does when the runtime deletes the containers of an interrupted operation: it leaves
// none of their addresses, without the garbage collector.
func (r *clusterRun) deleteAgain(host string, handles []string) {
	for _, h := range handles {
		if r.loose[h] { // an earlier operation of another host may have left something
			continue
		}
		maps.DeleteFunc(r.live, func(_ netip.Addr, has string) bool { return has == h })
		_, err := New(r.modelRun.store, nil, r.clock).ReleaseFromHost(r.t.Context(), host, h)
		r.note("delete %s again: %v", h, err)
		for a, has := range readState(r.t, r.modelRun.store).owner {
			if has == h {
				r.t.Errorf("%s is leaked: it is assigned to %s after its release, %v", a, h, err)
			}
		}
	}
}

const clusterSize = 3

// TestModelOnCluster runs a slice of the model on a cluster of etcd servers, whose leader moves, whose members are cut
// off, and whose clients lose their connections in the middle of writes.
func TestModelOnCluster(t *testing.T) {
	operations, seed := modelSize(t, 30)
	t.Log("seed ", seed)
	cluster := etcdtest.StartCluster(t, clusterSize)
	store := cluster.Store(t)
	r := &clusterRun{modelRun: newModelRun(t, patient{store}, seed).createNodes(), cluster: cluster,
		store: store}
	start := time.Now()
	for i := 1; r.counted < operations && !t.Failed(); i++ {
		if r.step(); i%500 == 0 {
			r.recover()
		}
	}
	r.finish()
	t.Logf("%d moves of the leader, %d partitions, %d requests and %d responses dropped; %s", r.moves, r.partitions,
		r.requests, r.responses, time.Since(start))
}
