package engine_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// handleFirst holds the write of the block until the handle was written, and then lets it fail with err.
func (n *node) handleFirst(err error) {
	written := make(chan struct{})
	var once sync.Once
	n.store.after = func(call string) {
		if call == "create IPAMHandle" {
			once.Do(func() { close(written) })
		}
	}
	failed := false // only once
	n.store.setHook(func(call string) error {
		if call != "update IPAMBlock" || failed {
			return nil
		}
		failed = err != nil
		select {
		case <-written:
			return err
		case <-time.After(time.Minute):
			n.t.Error("the handle is not written beside the block")
			return err
		}
	})
}

// The handle is written while the write of the block is under way, and the endpoint after both.
func TestHandleIsWrittenBesideTheBlock(t *testing.T) {
	n := newNode(t)
	n.finish("first", n.add("first"))
	n.store.take()
	n.handleFirst(nil)
	n.finish("second", n.add("second"))
	calls := n.store.take()
	endpoint, block := slices.Index(calls, "create WorkloadEndpoint"), slices.Index(calls, "update IPAMBlock")
	if block < 0 || endpoint < block {
		t.Errorf("calls are %q, want the endpoint after the block", calls)
	}
	n.store.setHook(nil)
	n.del("second")
	n.del("first")
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// The handle was written before the block's write failed: a second try follows a conflict and counts the address once.
// Another error fails the ADD, and its DEL leaves nothing.
func TestBlockFailsAfterTheHandle(t *testing.T) {
	for _, failure := range []error{datastore.ErrConflict, datastore.ErrUnavailable} {
		t.Run(failure.Error(), func(t *testing.T) {
			n := newNode(t)
			n.finish("first", n.add("first"))
			n.handleFirst(failure)
			a, err := n.call(cni.StepAdd, "second", nil, nil)
			n.store.setHook(nil)
			if err == nil {
				n.finish("second", a)
				h, err := n.plain.Get(t.Context(), model.HandleKey("net.second"))
				n.must(err)
				for block, count := range h.Value.(*model.Handle).Block {
					if count != 1 {
						t.Errorf("the handle counts %d addresses in %s, want 1", count, block)
					}
				}
			} else if !strings.Contains(err.Error(), "datastore did not answer") {
				t.Error(err)
			}
			if conflict := failure == datastore.ErrConflict; conflict != (err == nil) {
				t.Errorf("ADD: %v", err)
			}
			n.del("second")
			n.del("first")
			if left := n.leftovers(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

// An ADD that fails after the write of its block waits for its handle, and releases both.
func TestHandleEndsBeforeTheRelease(t *testing.T) {
	n := newNode(t)
	n.finish("first", n.add("first"))
	begun, hold := make(chan struct{}), make(chan struct{})
	n.store.setHook(func(call string) error {
		if call == "create IPAMHandle" {
			close(begun)
			<-hold
		}
		return nil
	})
	conf := map[string]any{"require_mtu_file": true} // the file's absence is found after the assignment
	failed := make(chan error, 1)
	go func() {
		_, err := n.call(cni.StepAdd, "second", nil, conf)
		failed <- err
	}()
	<-begun
	n.waitFor("update IPAMBlock")
	close(hold)
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "MTU") {
		t.Errorf("ADD: %v", err)
	}
	n.del("first")
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// waitFor waits until a call was made.
func (n *node) waitFor(call string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	for !slices.Contains(n.store.seen(), call) {
		select {
		case <-ctx.Done():
			n.t.Fatalf("no call %s: %q", call, n.store.seen())
		case <-time.After(time.Millisecond):
		}
	}
}

// The plugin gets the parameters of the wiring before the block is written. They equal those of the response, except
// for the addresses. It gets none where the addresses may be of other families, or if the container was attached
// before.
func TestParametersComeBeforeTheBlock(t *testing.T) {
	n := newNode(t)
	n.finish("first", n.add("first"))
	both := map[string]any{"ipam": map[string]any{"type": "calico-ipam", "assign_ipv6": "true"}, "mtu": 1300}
	var early, attachment *cni.Attachment
	add := func(container, args string, conf map[string]any) {
		t.Helper()
		early, n.begin = nil, func(a *cni.Attachment) { early = a }
		defer func() { n.begin = nil }()
		var err error
		attachment, err = n.callWithArgs(args, cni.StepAdd, container, nil, conf)
		n.must(err)
	}
	n.store.setHook(func(call string) error {
		if call == "update IPAMBlock" && early == nil && n.begin != nil {
			t.Error("the block is written before the plugin has the parameters")
		}
		return nil
	})
	add("second", "", both)
	if early == nil || len(early.Addresses) > 0 || !early.IPv4 || !early.IPv6 {
		t.Fatalf("early: %+v", early)
	}
	same := *attachment
	same.Addresses, same.Assigned, same.Fresh, same.IPv4, same.IPv6 = nil, nil, nil, true, true
	if !reflect.DeepEqual(*early, same) {
		t.Errorf("early: %+v\nthe answer: %+v", early, attachment)
	}
	n.store.setHook(nil)
	n.finish("second", attachment)
	for what, again := range map[string]func(){
		"a container that is attached": func() { add("second", "", both) },
		"a given address":              func() { add("third", "IP=10.65.0.99", nil) },
	} {
		if again(); early != nil {
			t.Errorf("%s has early parameters", what)
		}
	}
	conf := map[string]any{"require_mtu_file": true}
	early, n.begin = nil, func(a *cni.Attachment) { early = a }
	if _, err := n.call(cni.StepAdd, "fourth", nil, conf); err == nil || early != nil {
		t.Errorf("without MTU: %v, early %+v", err, early)
	}
}
