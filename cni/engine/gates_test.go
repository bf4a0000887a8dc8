package engine_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
)

// An ADD waits for the first rules of the kernel before any other step, and fails with code 11 if they do not come.
func TestAddWaitsForTheFirstRules(t *testing.T) {
	n := newNode(t)
	var enforced, begun atomic.Bool
	asked := make(chan struct{})
	var once sync.Once
	c := n.engine.Config
	c.Enforced = func(*cni.Config) error {
		once.Do(func() { close(asked) })
		if enforced.Load() {
			return nil
		}
		return errors.New("no table")
	}
	n.engine = engine.New(c)
	n.begin = func(*cni.Attachment) { begun.Store(true) }
	early := func(when string, err error) {
		t.Helper()
		var coded *types.Error
		if !errors.As(err, &coded) || coded.Code != types.ErrTryAgainLater ||
			!strings.Contains(err.Error(), "no table") {
			t.Errorf("%s ends with %v, want code 11", when, err)
		}
		if left := n.leftovers(); left != "" || begun.Load() {
			t.Errorf("%s: begun: %v, left behind:\n%s", when, begun.Load(), left)
		}
	}
	_, err := n.call(cni.StepStatus, "", nil, nil)
	early("STATUS", err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r, err := n.engine.Call(ctx, &cni.Request{Version: cni.ProtocolVersion, Step: cni.StepAdd, ContainerID: "c",
		Netns: "/run/netns/c", IfName: "eth0", Begin: n.begin,
		Config: []byte(`{"cniVersion":"1.0.0","name":"net","ipam":{"type":"calico-ipam"}}`)})
	if n.must(err); r.Error != nil {
		err = r.Error
	}
	early("ADD", err)
	added := make(chan error, 1)
	go func() {
		a, err := n.call(cni.StepAdd, "c", nil, nil)
		if err == nil {
			_, err = n.call(cni.StepFinish, "c", a, nil)
		}
		added <- err
	}()
	<-asked
	enforced.Store(true)
	n.must(<-added)
	n.del("c")
}
