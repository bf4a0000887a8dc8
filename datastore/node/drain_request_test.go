package node

import (
	"context"
	"errors"
	"maps"
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

// A daemon without BGP notes that, ends the drains that were withdrawn, and leaves those that are requested. One with
// BGP removes the note.
func TestNoteBGPOff(t *testing.T) {
	const off, peers = "BGP is off (here)", "192.0.2.7"
	for _, c := range []struct {
		rule         string
		before, want map[string]string
	}{
		{"in service", nil, nil},
		{"draining", map[string]string{model.AnnotationDrain: "a", model.AnnotationDrainPeers: peers},
			map[string]string{model.AnnotationDrain: "a", model.AnnotationDrainPeers: peers}},
		{"drained", map[string]string{model.AnnotationDrain: "a", model.AnnotationDrained: "b",
			model.AnnotationDrainPeers: peers, model.AnnotationDrainedPeers: peers}, map[string]string{
			model.AnnotationDrain: "a", model.AnnotationDrained: "b", model.AnnotationDrainPeers: peers,
			model.AnnotationDrainedPeers: peers}},
		{"returning", map[string]string{model.AnnotationDrained: "b", model.AnnotationDrainedPeers: peers}, nil},
		{"another note", map[string]string{model.AnnotationBGPOff: "BGP is off (there)"}, nil},
	} {
		x := newTunnelTest(t)
		read := func() *model.Object {
			o, err := x.store.Get(t.Context(), model.ResourceKey(model.KindNode, "n"))
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		o := read()
		o.Value.(*model.Node).Annotations = maps.Clone(c.before)
		if _, err := x.store.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if err := NoteBGPOff(t.Context(), &racingStore{x.store, 1}, read().Value.(*model.Node), off); err != nil {
			t.Errorf("%s: %v", c.rule, err)
		}
		o = read()
		want := map[string]string{model.AnnotationBGPOff: off}
		maps.Copy(want, c.want)
		if got := o.Value.(*model.Node).Annotations; !maps.Equal(got, want) {
			t.Errorf("%s: annotations are %v, want %v", c.rule, got, want)
		}
		if err := NoteBGPOff(t.Context(), x.store, o.Value.(*model.Node), off); err != nil ||
			read().Revision != o.Revision {
			t.Errorf("%s: the same is written again, %v", c.rule, err)
		}
	}
}
