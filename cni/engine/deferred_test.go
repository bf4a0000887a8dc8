package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/datastore"
)

// setDisconnected makes the datastore unavailable, or available again.
func (n *node) setDisconnected(yes bool) {
	n.store.setHook(func(string) error {
		if yes {
			return datastore.ErrUnavailable
		}
		return nil
	})
	n.disconnected = yes
}

// deferring makes a new engine, as another manxd would, with a folder for DELs that wait for the datastore.
func (n *node) deferring() (folder string) {
	n.t.Helper()
	n.start()
	folder = filepath.Join(n.dir, "deferred")
	c := n.engine.Config
	c.Deferred = folder
	warm := c.Open
	c.Open = func(ctx context.Context, conf *cni.Config) (engine.Store, func(), error) {
		if n.disconnected { // tables that lost their datastore are not in sync and are not read
			return n.store, func() {}, nil
		}
		return warm(ctx, conf)
	}
	n.engine = engine.New(c)
	return folder
}

// records returns the files in a folder.
func (n *node) records(folder string) int {
	n.t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	return len(entries)
}

// catchUp lets the engine finish the deferred work.
func (n *node) catchUp(folder string) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan struct{})
	go func() { n.engine.CatchUp(ctx); close(done) }()
	for end := time.Now().Add(time.Minute); n.records(folder) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatal("what was deferred is not finished")
		}
	}
	cancel()
	<-done
}

// A DEL succeeds while the datastore is away. Until the datastore is back, the address stays assigned. A manxd that
// starts meanwhile has the list of the deferred releases.
func TestDelWithoutDatastore(t *testing.T) {
	n := newNode(t)
	folder := n.deferring()
	a := n.add("one")
	n.finish("one", a)
	n.setDisconnected(true)
	response, err := n.call(cni.StepDel, "one", nil, nil)
	n.must(err)
	if response == nil || !response.Deferred || response.HostIf != "" {
		t.Errorf("Del answers %+v, want deferred, and no interface that may be another container's by now", response)
	}
	if n.records(folder) != 0 {
		t.Error("something is to be released although the container is not detached yet")
	}
	_, err = n.call(cni.StepRelease, "one", response, nil)
	n.must(err)
	if _, err := n.call(cni.StepAdd, "two", nil, nil); err == nil {
		t.Error("an ADD succeeds without datastore")
	}
	if n.leftovers() == "" || n.records(folder) != 1 {
		t.Errorf("%d DELs are deferred, and there are: %s", n.records(folder), n.leftovers())
	}
	n.deferring() // another process
	n.setDisconnected(false)
	n.catchUp(folder)
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// The datastore comes back between the two steps of a DEL: Release does both.
func TestDatastoreIsBackBeforeRelease(t *testing.T) {
	n := newNode(t)
	folder := n.deferring()
	n.finish("one", n.add("one"))
	n.setDisconnected(true)
	response, err := n.call(cni.StepDel, "one", nil, nil)
	n.must(err)
	n.setDisconnected(false)
	_, err = n.call(cni.StepRelease, "one", response, nil)
	n.must(err)
	if left := n.leftovers(); left != "" || n.records(folder) != 0 {
		t.Errorf("left behind, with %d DELs deferred:\n%s", n.records(folder), left)
	}
}

// A container that is attached again before its DEL was finished keeps its address.
func TestAttachedAgainBeforeTheDelIsFinished(t *testing.T) {
	n := newNode(t)
	folder := n.deferring()
	a := n.add("one")
	n.finish("one", a)
	n.setDisconnected(true)
	n.del("one")
	n.setDisconnected(false)
	b := n.add("one")
	n.finish("one", b)
	n.catchUp(folder)
	if a.Addresses[0] != b.Addresses[0] || n.leftovers() == "" {
		t.Errorf("had %v, has %v; the datastore has: %s", a.Addresses, b.Addresses, n.leftovers())
	}
	n.del("one")
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// A DEL that cannot be recorded fails, so that the runtime repeats it. An unreadable record is dropped.
func TestDeferredIsNotForgotten(t *testing.T) {
	n := newNode(t)
	folder := n.deferring()
	n.finish("one", n.add("one"))
	n.must(os.WriteFile(folder, nil, 0o600)) // no folder can be made here
	n.setDisconnected(true)
	if _, err := n.call(cni.StepRelease, "one", &cni.Attachment{Deferred: true}, nil); err == nil {
		t.Error("a DEL succeeds that is written down nowhere")
	}
	n.must(os.Remove(folder))
	n.del("one")
	n.must(os.WriteFile(filepath.Join(folder, "0123"), []byte("{"), 0o600))
	n.setDisconnected(false)
	n.catchUp(folder)
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
