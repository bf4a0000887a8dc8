package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/storetest"
)

// Two concurrent compactors remove history and keep the current state, and watches go on.
func TestCompact(t *testing.T) {
	server := etcdtest.Start(t)
	store, client := server.Store(t), server.Client(t)
	mirror := storetest.Watch(t, store, model.KindIPAMHandle)
	mirror.UntilInSync()
	want := map[model.Key]int64{}
	for i := range 3 {
		o, err := store.Create(t.Context(), model.NewObject(model.HandleKey(fmt.Sprint("h", i)),
			&model.Handle{Block: map[string]int{"10.0.0.0/26": 1}}))
		if err != nil {
			t.Fatal(err)
		}
		want[o.Key] = o.Revision
	}
	if _, err := client.Get(t.Context(), "/x", clientv3.WithRev(2)); err != nil {
		t.Fatal("the past is gone too early:", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		other := server.Store(t)
		go func() { ended <- other.Compact(ctx, 50*time.Millisecond) }()
	}
	deadline := time.Now().Add(storetest.Patience)
	for {
		_, err := client.Get(t.Context(), "/x", clientv3.WithRev(2))
		if errors.Is(err, rpctypes.ErrCompacted) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was compacted:", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	o, err := store.Create(t.Context(), model.NewObject(model.HandleKey("last"),
		&model.Handle{Block: map[string]int{"10.0.0.0/26": 1}}))
	if err != nil {
		t.Fatal(err)
	}
	want[o.Key] = o.Revision
	mirror.UntilState(want)
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
