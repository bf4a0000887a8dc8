package loop_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/controllers/mirror"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// counted counts the decisions.
type counted struct {
	loop.Controller
	mu sync.Mutex
	n  map[model.Key]int
}

func (c *counted) Decide(s loop.State, unit model.Key) []change.Change {
	c.mu.Lock()
	c.n[unit]++
	c.mu.Unlock()
	return c.Controller.Decide(s, unit)
}

func (c *counted) sum() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.n {
		n += x
	}
	return n
}

func namespace(name, label string) *model.Object {
	n := &model.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": label}}}
	return model.NewObject(model.ResourceKey(model.KindNamespace, name), n)
}

// Of a thousand namespaces only the changed one is decided.
func TestCostFollowsTheChange(t *testing.T) {
	source, store := memory.New(), memory.New()
	for i := range 1000 {
		source.Put(namespace(fmt.Sprint("n", i), "a"))
	}
	c := &counted{Controller: mirror.Namespaces(source), n: map[model.Key]int{}}
	stop := calicotest.Run(t, c, store, source)
	defer stop()
	calicotest.Eventually(t, "all are carried", func() bool { return store.Writes() == 1000 })
	settled := func() bool {
		n := c.sum()
		return n >= 2000 // each once for the source and once for its own write
	}
	calicotest.Eventually(t, "it has come to rest", settled)
	before := c.sum()
	source.Put(namespace("n7", "b"))
	calicotest.Eventually(t, "the change is carried", func() bool { return store.Writes() == 1001 })
	if n := c.sum() - before; n > 5 {
		t.Errorf("one change was decided %d times", n)
	}
}

// failing refuses writes of one object while it is set.
type failing struct {
	datastore.Store
	mu  sync.Mutex
	key model.Key
}

var errRefused = errors.New("refused")

func (f *failing) refuses(key model.Key) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.key == key
}

// An object that cannot be written delays no other one, and is tried again.
func TestOneFailureKeepsNoOther(t *testing.T) {
	source, store := memory.New(namespace("bad", "x"), namespace("good", "x")), memory.New()
	f := &refusing{failing{Store: store, key: model.ResourceKey(model.KindProfile, "kns.bad")}}
	stop := calicotest.Run(t, mirror.Namespaces(source), f, source)
	defer stop()
	has := func(name string) bool {
		_, err := store.Get(t.Context(), model.ResourceKey(model.KindProfile, name))
		return err == nil
	}
	calicotest.Eventually(t, "the good one is there", func() bool { return has("kns.good") })
	if has("kns.bad") {
		t.Fatal("the refused one is there")
	}
	f.mu.Lock()
	f.key = model.Key{}
	f.mu.Unlock()
	calicotest.Eventually(t, "the other one follows", func() bool { return has("kns.bad") })
}

type refusing struct{ failing }

func (f *refusing) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	if f.refuses(o.Key) {
		return nil, errRefused
	}
	return f.Store.Create(ctx, o)
}
