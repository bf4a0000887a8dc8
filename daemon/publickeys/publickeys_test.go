package publickeys

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/wireguard"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// The Node has the keys of the devices, also after somebody edits it, and loses them with the devices. Nothing else of
// it changes, and nothing before the devices are known.
func TestKeysArePublished(t *testing.T) {
	key, earlier := model.ResourceKey(model.KindNode, "n1"), kerneltest.PublicKey("earlier").String()
	store := memory.New(model.NewObject(key, &model.Node{Spec: model.NodeSpec{IPv4VXLANTunnelAddr: "10.244.0.1"},
		Status: model.NodeStatus{WireguardPublicKey: earlier}}))
	tables := datastore.NewTables(zap.NewNop(), "n1")
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { _ = tables.Run(ctx, store, model.KindNode) })
	var keys bus.Latest[wireguard.Keys]
	p := &Part{store: store, tables: tables, node: key, keys: &keys, log: zap.NewNop()}
	group.Go(func() { _ = p.Run(ctx) })
	read := func() *model.Node {
		t.Helper()
		o, err := store.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		return o.Value.(*model.Node)
	}
	await := func(rule, four, six string) {
		t.Helper()
		var n *model.Node
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if n = read(); n.Status.WireguardPublicKey == four && n.Status.WireguardPublicKeyV6 == six {
				if n.Spec.IPv4VXLANTunnelAddr != "10.244.0.1" {
					t.Errorf("%s: the Node is %+v", rule, n)
				}
				return
			}
		}
		t.Fatalf("%s: the keys are %+v, want %q and %q", rule, n.Status, four, six)
	}
	time.Sleep(50 * time.Millisecond) // time to do wrong
	await("before the devices are known", earlier, "")
	four, six := kerneltest.PublicKey("4"), kerneltest.PublicKey("6")
	keys.Publish(wireguard.Keys{model.IPv4: four, model.IPv6: six})
	await("two devices", four.String(), six.String())
	edited := read()
	fresh := *edited
	fresh.Status.WireguardPublicKey = kerneltest.PublicKey("edited").String()
	o, err := store.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	o = o.Clone()
	o.Value = &fresh
	if _, err := store.Update(ctx, o); err != nil {
		t.Fatal(err)
	}
	await("somebody edits the Node", four.String(), six.String())
	keys.Publish(wireguard.Keys{model.IPv6: six})
	await("one device goes", "", six.String())
	keys.Publish(wireguard.Keys{})
	await("both are gone", "", "")
}
