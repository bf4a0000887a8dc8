package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// racingStore is a store in which another program writes the Node between each Get and the first Update.
type racingStore struct {
	datastore.Store
	races int
}

func (r *racingStore) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	if r.races > 0 {
		r.races--
		other, err := r.Get(ctx, o.Key)
		if err != nil {
			return nil, err
		}
		other.Value.(*model.Node).Labels = map[string]string{"races": "1"}
		if _, err := r.Store.Update(ctx, other); err != nil {
			return nil, err
		}
	}
	return r.Store.Update(ctx, o)
}

func TestDrainRequestsSurviveOtherWriters(t *testing.T) {
	x := newTunnelTest(t)
	store := &racingStore{x.store, 2}
	if before, err := RequestDrain(t.Context(), store, "n", 90*time.Second); err != nil || before != model.InService {
		t.Fatalf("drain: %q, %v", before, err)
	}
	o, err := x.store.Get(t.Context(), model.ResourceKey(model.KindNode, "n"))
	if err != nil {
		t.Fatal(err)
	}
	n := o.Value.(*model.Node)
	if n.Annotations[model.AnnotationDrainTimeout] != "1m30s" || n.DrainPhase() != model.Draining ||
		n.Labels["races"] != "1" {
		t.Errorf("the Node is %+v", n.ObjectMeta)
	}
	store.races = 1
	if before, err := CancelDrain(t.Context(), store, "n"); err != nil || before != model.Draining {
		t.Errorf("return: %q, %v", before, err)
	}
	if _, err := RequestDrain(t.Context(), store, "nobody", 0); !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("a missing node: %v", err)
	}
	if _, err := RequestDrain(t.Context(), store, "n", -time.Second); err == nil {
		t.Error("a timeout below zero is accepted")
	}
}
