package ipam

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// ending is a store that ends the caller's context with its last response.
type ending struct {
	Store
	remaining int
	end       context.CancelFunc
}

func (e *ending) countDown() {
	if e.remaining--; e.remaining == 0 {
		e.end()
	}
}

func (e *ending) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	defer e.countDown()
	return e.Store.Get(ctx, key)
}

func (e *ending) List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error) {
	defer e.countDown()
	return e.Store.List(ctx, kind, namespace)
}

// An operation whose context ends while it reads does not act on a part of the data: it ends with an error, or
// completes.
func TestContextEndsWithAnAnswer(t *testing.T) {
	for n := 1; n <= 20; n++ {
		op := operation{before: list(assign("a", "old", 1))}
		store, now := prepared(t, op, time.Unix(1000, 0), time.Unix(1120, 0))
		ctx, cancel := context.WithCancel(t.Context())
		a := New(&ending{store, n, cancel}, nil, now)
		r, err := a.AutoAssign(ctx, Request{Host: "a", Handle: "h", Num4: 1, Use: workload})
		if err == nil && r.Short() != nil {
			t.Errorf("end at answer %d: no error and no address", n)
		}
		cancel()

		ctx, cancel = context.WithCancel(t.Context())
		addrs, err := New(&ending{store, n, cancel}, nil, now).IPsByHandle(ctx, "old")
		if err == nil && len(addrs) != 1 || err != nil && errors.Is(err, model.ErrNotFound) {
			t.Errorf("end at answer %d: the handle has %v, %v", n, addrs, err)
		}
		cancel()
	}
}
