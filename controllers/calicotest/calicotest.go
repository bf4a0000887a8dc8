// Package calicotest provides the objects of Calico's own programs for tests, and runs a controller until it is idle.
package calicotest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
)

// Objects returns all objects that Calico's programs have left in etcd.
func Objects(t testing.TB) model.Set {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(checkout(t), "datastore/codec/testdata/objects.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var list []*model.Object
	for line := range strings.Lines(string(text)) {
		var row struct{ Key, Raw string }
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		if key, ok, err := etcd.ParsePath(row.Key); ok && err == nil {
			list = append(list, codec.Decode(key, []byte(row.Raw), 1))
		}
	}
	return model.NewSet(list...)
}

// checkout returns the folder of the module. Builds with -trimpath do not contain it.
func checkout(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("no go.mod in this folder and those above it", err)
	return ""
}

// Settle runs a controller until it has nothing more to do for the content of the stores. It writes through a store
// that may be another view of store.
func Settle(t testing.TB, c loop.Controller, store, source *memory.Store, through datastore.Store) {
	t.Helper()
	for range 20 {
		before := store.Writes()
		decideAll(c, store, source, through)
		if store.Writes() == before {
			return
		}
	}
	t.Fatalf("%s does not come to an end", c.Name())
}

// decideAll decides all units from the current content of the stores.
func decideAll(c loop.Controller, store, source *memory.Store, through datastore.Store) {
	a, b := memory.NewView(store).Tables.Snapshot(), memory.NewView(source).Tables.Snapshot()
	for ch := range a.Changes(nil) {
		c.Touched(ch, false)
	}
	state := loop.State{Store: a, Source: b}
	seen := map[model.Key]bool{}
	for _, unit := range c.All(state) {
		if !seen[unit] {
			seen[unit] = true
			for _, change := range c.Decide(state, unit) {
				_, _ = change.Apply(context.Background(), through)
			}
		}
	}
}

// Run runs a controller concurrently with a test until stop is called.
func Run(t testing.TB, c loop.Controller, store, source datastore.Store) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	kinds, sourceKinds := c.Kinds()
	a, b := datastore.NewTables(zap.NewNop(), ""), datastore.NewTables(zap.NewNop(), "")
	done := make(chan struct{})
	go func() { _ = a.Run(ctx, store, kinds...) }()
	if len(sourceKinds) > 0 {
		go func() { _ = b.Run(ctx, source, sourceKinds...) }()
	} else {
		b.Apply(datastore.Event{Type: datastore.EventInSync})
	}
	go func() {
		defer close(done)
		r := &loop.Runner{Controller: c, Store: store, Log: zap.NewNop(), Retry: 10 * time.Millisecond}
		_ = r.Run(ctx, a, b)
	}()
	return func() { cancel(); <-done }
}

// Patience bounds waits for expected events; test machines are slow.
const Patience = 60 * time.Second

// Eventually waits until the condition holds.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain: ", what)
		}
	}
}
