package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

// A Node that is deleted under a running daemon comes back unchanged. A Node that another program creates again gets
// the addresses. A Node that was removed from the cluster stays away.
func TestNodeIsRegisteredAgain(t *testing.T) {
	server := etcdtest.Start(t)
	client, store := server.Client(t), server.Store(t)
	c := named("n1")
	c.IP = "10.0.0.1" // not autodetected: no later detection
	host := &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24")}
	registered := mustRegister(t, store, c, host)
	key, path := model.ResourceKey(model.KindNode, "n1"), v3root+"nodes/n1"
	put(t, client, path, strings.NewReplacer(`"name":"n1"`, `"name":"n1","labels":{"rack":"7"}`, `"bgp":{`,
		`"bgp":{"asNumber":65007,"routeReflectorClusterID":"1.2.3.4",`).Replace(rawValue(t, client, path)))
	tables := datastore.NewTables(zap.NewNop(), "n1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = tables.Run(ctx, store, model.KindNode) }()
	var out atomic.Bool
	k := &Keeper{Config: c, Registered: registered, Store: store, Host: host, Log: zap.NewNop(),
		pause: 50 * time.Millisecond,
		MayCreate: func(context.Context) error {
			if out.Load() {
				return errors.New("it is no node of the cluster any more")
			}
			return nil
		}}
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, tables) }()
	await := func(what string, want ...string) {
		t.Helper()
		var text string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			text = rawValue(t, client, path)
			missing := text == ""
			for _, w := range want {
				missing = missing || !strings.Contains(text, w)
			}
			if !missing {
				return
			}
		}
		t.Fatalf("%s: the Node is %s, want %q", what, text, want)
	}
	remove := func() {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) { // until the tables have it
			if n := model.Get[model.Node](tables.Snapshot(), key); n != nil && n.Labels["rack"] == "7" {
				break
			} else if time.Now().After(end) {
				t.Fatal("the tables do not have the Node")
			}
		}
		if _, err := store.Delete(ctx, key, 0); err != nil {
			t.Fatal(err)
		}
	}
	felix := model.ResourceKey(model.KindFelixConfiguration, "node.n1")
	if _, err := store.Delete(ctx, felix, 0); err != nil { // as "manxctl delete node"
		t.Fatal(err)
	}
	for i := range 2 {
		remove()
		await(fmt.Sprint("deleted ", i), `"rack":"7"`, `"ipv4Address":"10.0.0.1/24"`, `"asNumber":65007`, "1.2.3.4")
	}
	if _, err := store.Get(ctx, felix); err != nil {
		t.Errorf("the node's settings have not come back: %v", err)
	}
	remove()
	put(t, client, path,
		`{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"n1","labels":{"rack":"7","new":"1"}},"spec":{}}`)
	await("made again by others", `"new":"1"`, `"ipv4Address":"10.0.0.1/24"`, `"asNumber":65007`)
	remove()
	put(t, client, path, `{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"n1",`+
		`"labels":{"rack":"7","new":"2"}},"spec":{"bgp":{"asNumber":65008}}}`)
	await("made again by others with an AS number", `"new":"2"`, `"ipv4Address":"10.0.0.1/24"`, `"asNumber":65008`)
	out.Store(true)
	remove()
	time.Sleep(10 * k.pause) // it must not be created again
	if text := rawValue(t, client, path); text != "" {
		t.Errorf("taken out of the cluster: %s", text)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A Node that another program has created, and that the tables do not have yet, is not completed without the AS number.
func TestNodeThatTheTablesLack(t *testing.T) {
	store := etcdtest.Start(t).Store(t)
	c, host := named("n1"), &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24")}
	c.AS = "65007"
	k := &Keeper{Config: named("n1"), Registered: mustRegister(t, store, c, host), Store: store, Host: host,
		MayCreate: func(context.Context) error { return nil }, Log: zap.NewNop()}
	key, last := model.ResourceKey(model.KindNode, "n1"), k.Registered.Node
	if _, err := store.Delete(t.Context(), key, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Create(t.Context(), model.NewObject(key, &model.Node{})); err != nil {
		t.Fatal(err)
	}
	if err := k.again(t.Context(), nil, last); !errors.Is(err, datastore.ErrExists) {
		t.Errorf("error %v, want one that the Node exists", err)
	}
	stored := func() *model.Node {
		o, err := store.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return o.Value.(*model.Node)
	}
	now := stored()
	if hasAddress(now) {
		t.Error("it has an address, and its AS number is lost")
	}
	if err := k.again(t.Context(), now, last); err != nil { // the tables have it
		t.Fatal(err)
	}
	if n := stored(); !hasAddress(n) || asOf(n) == nil || *asOf(n) != 65007 {
		t.Errorf("registered again: %+v", n.Spec.BGP)
	}
}
