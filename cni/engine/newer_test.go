package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// web makes a request about a container of the pod default/web.
func (n *node) web(step cni.Step, container string, a *cni.Attachment) (*cni.Attachment, error) {
	return n.callWithArgs("K8S_POD_NAMESPACE=default;K8S_POD_NAME=web", step, container, a, nil)
}

// attachWeb returns an ADD as the plugin makes it: an ADD that cannot be finished is undone.
func (n *node) attachWeb(container string) (*cni.Attachment, error) {
	a, err := n.web(cni.StepAdd, container, nil)
	if err == nil {
		_, err = n.web(cni.StepFinish, container, a)
		if err != nil {
			_, undone := n.web(cni.StepAbort, container, a)
			err = errors.Join(err, undone)
		}
	}
	return a, err
}

func (n *node) detachWeb(container string) {
	n.t.Helper()
	for _, step := range []cni.Step{cni.StepDel, cni.StepRelease} {
		if _, err := n.web(step, container, nil); err != nil {
			n.t.Errorf("%s of %s: %v", step, container, err)
		}
	}
}

// hasWeb fails unless exactly one address is assigned, to the container of the endpoint.
func (n *node) hasWeb(container string, a *cni.Attachment) {
	n.t.Helper()
	o, err := n.plain.Get(context.Background(), model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default",
		Name: "node--1-k8s-web-eth0"})
	n.must(err)
	e := o.Value.(*model.WorkloadEndpoint)
	if have := strings.Join(e.Spec.IPNetworks, ","); e.Spec.ContainerID != container ||
		have != a.Addresses[0].String()+"/32" || e.Spec.MAC != a.MAC {
		n.t.Errorf("the endpoint is that of %s with %s, want %s with %+v", e.Spec.ContainerID, have, container, a)
	}
	left := n.leftovers()
	if strings.Count(left, "ordinal") != 1 || strings.Count(left, string(model.KindIPAMHandle)) != 1 ||
		!strings.Contains(left, "net."+container) {
		n.t.Errorf("there are, for one container:\n%s", left)
	}
}

// A pod is restarted while the ADD of its old container is still running. The endpoint belongs to the newer container
// in any order of their writes, and whenever the old one is detached. Nothing of the old one is left.
func TestTwoContainersOfAPod(t *testing.T) {
	n := newNode(t)
	for _, x := range []struct {
		name string
		run  func(t *testing.T) *cni.Attachment // returns the attachment of the newer container
	}{
		{"the old one first", func(*testing.T) *cni.Attachment {
			_, err := n.attachWeb("old")
			n.must(err)
			a, err := n.attachWeb("new")
			n.must(err)
			return a
		}},
		{"the old one writes its endpoint last", func(t *testing.T) *cni.Attachment {
			held, resume := make(chan struct{}), make(chan struct{})
			var first sync.Once
			n.store.setHook(func(call string) error {
				if call == "create WorkloadEndpoint" {
					mine := false
					first.Do(func() { mine = true })
					if mine {
						close(held)
						<-resume
					}
				}
				return nil
			})
			old := make(chan error, 1)
			go func() { _, err := n.attachWeb("old"); old <- err }()
			<-held
			a, err := n.attachWeb("new")
			close(resume)
			n.must(err)
			if err := <-old; err == nil || !strings.Contains(err.Error(), "newer container") {
				t.Errorf("the ADD of the old container ends with %v", err)
			}
			return a
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			a := x.run(t)
			n.store.setHook(nil)
			n.detachWeb("old")
			n.hasWeb("new", a)
			n.detachWeb("new")
			if left := n.leftovers(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
	t.Run("the old one is detached before the endpoint is the new one's", func(t *testing.T) {
		_, err := n.attachWeb("old")
		n.must(err)
		resume := make(chan struct{})
		n.store.setHook(func(call string) error {
			if call == "update WorkloadEndpoint" {
				<-resume
			}
			return nil
		})
		a, err := n.web(cni.StepAdd, "new", nil)
		n.must(err)
		late, err := n.web(cni.StepDel, "old", nil)
		n.must(err)
		if late.HostIf != "" {
			t.Errorf("the DEL of the old container removes %s, which the new one has", late.HostIf)
		}
		close(resume)
		_, err = n.web(cni.StepFinish, "new", a)
		n.must(err)
		n.detachWeb("old")
		n.hasWeb("new", a)
		last, err := n.web(cni.StepDel, "new", nil)
		n.must(err)
		if last.HostIf != a.HostIf {
			t.Errorf("DEL removes the interface %q, want %q", last.HostIf, a.HostIf)
		}
		n.detachWeb("new")
		n.store.setHook(nil)
		if left := n.leftovers(); left != "" {
			t.Errorf("left behind:\n%s", left)
		}
	})
	for round := range 30 {
		t.Run(fmt.Sprintf("at one moment %d", round), func(t *testing.T) {
			var a *cni.Attachment
			var all sync.WaitGroup
			begun := make(chan struct{})
			var once sync.Once
			n.store.setHook(func(string) error { once.Do(func() { close(begun) }); return nil })
			all.Go(func() { _, _ = n.attachWeb("old"); n.detachWeb("old") })
			<-begun // the container with the later ADD is the newer one
			all.Go(func() {
				var err error
				if a, err = n.attachWeb("new"); err != nil {
					t.Error(err)
				}
			})
			all.Wait()
			if t.Failed() {
				return
			}
			n.hasWeb("new", a)
			n.detachWeb("new")
			if left := n.leftovers(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

// The ADDs of two pods whose names have the same hash meet before either interface exists.
func TestTwoPodsWithOneInterface(t *testing.T) {
	n := newNode(t)
	call := func(pod string, step cni.Step, container string, a *cni.Attachment) (*cni.Attachment, error) {
		return n.callWithArgs("K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod, step, container, a, nil)
	}
	resume := make(chan struct{})
	n.store.setHook(func(call string) error {
		if call == "create WorkloadEndpoint" {
			<-resume
		}
		return nil
	})
	a, err := call("pod-796582", cni.StepAdd, "c1", nil)
	n.must(err)
	_, err = call("pod-952174", cni.StepAdd, "c2", nil)
	if err == nil || !strings.Contains(err.Error(), "is in use by default/pod-796582 on this node") {
		t.Errorf("the ADD of the other pod: %v", err)
	}
	close(resume)
	_, err = call("pod-796582", cni.StepFinish, "c1", a)
	n.must(err)
	for _, step := range []cni.Step{cni.StepDel, cni.StepRelease} {
		_, err := call("pod-796582", step, "c1", nil)
		n.must(err)
	}
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// Deferred work is tried again although no other DEL wakes the engine up.
func TestDeferredIsTriedAgain(t *testing.T) {
	n := newNode(t)
	folder := n.deferring()
	n.finish("one", n.add("one"))
	n.setDisconnected(true)
	n.del("one")
	tried := make(chan struct{})
	var once sync.Once
	n.store.setHook(func(string) error { once.Do(func() { close(tried) }); return datastore.ErrUnavailable })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go n.engine.CatchUp(ctx)
	<-tried
	if n.records(folder) != 1 {
		t.Errorf("%d DELs are deferred, want one", n.records(folder))
	}
	n.store.setHook(nil) // and nothing else happens
	for end := time.Now().Add(time.Minute); n.records(folder) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what was deferred is not tried again")
		}
	}
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
