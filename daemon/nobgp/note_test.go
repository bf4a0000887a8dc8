package nobgp

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// The Node gets the note as soon as there is one, and again when another program removes it.
func TestNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const off = "BGP is off (here)"
		store, tables := memory.New(), datastore.NewTables(zap.NewNop(), "n1")
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		group.Go(func() { _ = tables.Run(ctx, store, model.KindNode) })
		n := &Note{deps.Deps{Tables: tables, Log: zap.NewNop(), Node: deps.Node{Name: "n1"}}, store, off}
		group.Go(func() { _ = n.Run(ctx) })
		time.Sleep(time.Minute)
		for range 2 {
			for _, name := range []string{"n1", "n2"} {
				store.Put(model.NewObject(model.ResourceKey(model.KindNode, name),
					&model.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
			}
			time.Sleep(time.Minute)
			for name, want := range map[string]string{"n1": off, "n2": ""} {
				o, err := store.Get(ctx, model.ResourceKey(model.KindNode, name))
				if err != nil {
					t.Fatal(err)
				}
				if got := o.Value.(*model.Node).Annotations[model.AnnotationBGPOff]; got != want {
					t.Errorf("node %s: the note is %q, want %q", name, got, want)
				}
			}
		}
	})
}
