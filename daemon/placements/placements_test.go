package placements

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam/placement"
)

// agent has what was passed on.
type agent struct {
	mu     sync.Mutex
	nodes  map[netip.Prefix]string
	synced bool
	calls  int
}

func (a *agent) Place(changes []route.Place, synced bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.synced, a.calls = synced, a.calls+1
	for _, c := range changes {
		if c.Node == "" {
			delete(a.nodes, c.Prefix)
		} else {
			a.nodes[c.Prefix] = c.Node
		}
	}
}

func (a *agent) has(want map[netip.Prefix]string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.synced || !maps.Equal(a.nodes, want) {
		return fmt.Errorf("synced %t, nodes %v; want %v", a.synced, a.nodes, want)
	}
	return nil
}

func (a *agent) isSynced() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.synced
}

func pool(mode v3.VXLANMode) *model.Object {
	p := &model.IPPool{}
	p.Spec.CIDR, p.Spec.VXLANMode = "10.244.0.0/16", mode
	return model.NewObject(model.ResourceKey(model.KindIPPool, "p"), p)
}

func block(cidr, node, borrower string) *model.Object {
	affinity, zero := "host:"+node, 0
	b := &model.Block{CIDR: netip.MustParsePrefix(cidr), Affinity: &affinity}
	if borrower != "" {
		b.Allocations = []*int{&zero}
		b.Attributes = []model.BlockAttribute{{Secondary: map[string]string{"node": borrower}}}
	}
	return model.NewObject(model.BlockKey(b.CIDR), b)
}

// The nodes of blocks and of borrowed addresses are passed on while there is a pool with VXLAN, or WireGuard is on, and
// for as long as routes by them may stay. Else no block is read.
func TestFollows(t *testing.T) { synctest.Test(t, testFollows) }

func testFollows(t *testing.T) {
	store := memory.New(pool(v3.VXLANModeNever), block("10.244.1.0/30", "n1", ""))
	tables := datastore.NewTables(zap.NewNop(), "n1")
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { _ = tables.Run(ctx, store, model.KindIPPool, model.KindFelixConfiguration) })
	a := &agent{nodes: map[netip.Prefix]string{}}
	p := &Part{store: store, tables: tables, log: zap.NewNop(), agent: a, kind: model.KindIPAMBlock,
		placed: map[model.Key]*placement.Placement{}}
	group.Go(func() { _ = p.Run(ctx) })
	const soon = time.Second // longer than a block takes to be passed on
	want := func(rule string, want ...string) {
		t.Helper()
		nodes := map[netip.Prefix]string{}
		for i := 0; i < len(want); i += 2 {
			nodes[netip.MustParsePrefix(want[i])] = want[i+1]
		}
		time.Sleep(soon)
		if err := a.has(nodes); err != nil {
			t.Errorf("%s: %v", rule, err)
		}
	}
	time.Sleep(soon)
	if a.calls != 0 {
		t.Errorf("without VXLAN %v is passed on", a.nodes)
	}
	store.Put(pool(v3.VXLANModeAlways))
	want("VXLAN", "10.244.1.0/30", "n1")
	store.Put(block("10.244.2.0/30", "n2", "n3"))
	want("a new block, with a borrowed address", "10.244.1.0/30", "n1", "10.244.2.0/30", "n2", "10.244.2.0/32", "n3")
	time.Sleep(2 * overlay.Linger)
	store.Put(block("10.244.2.0/30", "n1", ""))
	want("another node", "10.244.1.0/30", "n1", "10.244.2.0/30", "n1")
	for _, last := range []v3.VXLANMode{v3.VXLANModeNever, v3.VXLANModeCrossSubnet, v3.VXLANModeNever} {
		store.Put(pool(last))
		want("the mode changes", "10.244.1.0/30", "n1", "10.244.2.0/30", "n1")
		time.Sleep(overlay.Linger - 4*soon)
		store.Put(block("10.244.2.0/30", "n2", ""))
		want("another node, just before the end", "10.244.1.0/30", "n1", "10.244.2.0/30", "n2")
		store.Put(block("10.244.2.0/30", "n1", ""))
		want("and back", "10.244.1.0/30", "n1", "10.244.2.0/30", "n1")
	}
	time.Sleep(2 * soon)
	if a.isSynced() {
		t.Error("blocks count as read though nothing follows them")
	}
	calls := a.calls
	store.Remove(block("10.244.1.0/30", "", "").Key)
	if time.Sleep(soon); a.calls != calls {
		t.Error("blocks are passed on that nothing needs")
	}
	store.Put(pool(v3.VXLANModeCrossSubnet))
	want("a block that went while there was no VXLAN", "10.244.2.0/30", "n1")
	felix := &model.FelixConfiguration{}
	felix.Spec.WireguardEnabled = new(true)
	store.Put(model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))
	store.Put(pool(v3.VXLANModeNever))
	time.Sleep(2 * overlay.Linger)
	store.Put(block("10.244.3.0/30", "n3", ""))
	want("WireGuard without VXLAN", "10.244.2.0/30", "n1", "10.244.3.0/30", "n3")
}

// Without IPAM the pod CIDRs of nodes are passed on.
func TestFollowsPodCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		affinity := func(node, cidr string) *model.Object {
			key := model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: node,
				CIDR: netip.MustParsePrefix(cidr)})
			return model.NewObject(key, &model.BlockAffinity{State: model.StateConfirmed})
		}
		store := memory.New(pool(v3.VXLANModeAlways), affinity("n1", "10.244.1.0/24"), affinity("n2", "10.244.2.0/24"))
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		tables := datastore.NewTables(zap.NewNop(), "n1")
		group.Go(func() { _ = tables.Run(ctx, store, model.KindIPPool, model.KindFelixConfiguration) })
		a := &agent{nodes: map[netip.Prefix]string{}}
		p := New(deps.Deps{Tables: tables, Log: zap.NewNop()}, a, true)
		p.store = store
		group.Go(func() { _ = p.Run(ctx) })
		want := map[netip.Prefix]string{netip.MustParsePrefix("10.244.1.0/24"): "n1",
			netip.MustParsePrefix("10.244.2.0/24"): "n2"}
		time.Sleep(time.Second)
		if err := a.has(want); err != nil {
			t.Error(err)
		}
		store.Remove(affinity("n2", "10.244.2.0/24").Key)
		store.Put(affinity("n3", "10.244.3.0/24"))
		delete(want, netip.MustParsePrefix("10.244.2.0/24"))
		want[netip.MustParsePrefix("10.244.3.0/24")] = "n3"
		time.Sleep(time.Second)
		if err := a.has(want); err != nil {
			t.Errorf("another node: %v", err)
		}
	})
}

func TestRemovalsFirst(t *testing.T) {
	p := netip.MustParsePrefix("10.244.2.0/32")
	gone, come := route.Place{Prefix: p}, route.Place{Prefix: p, Node: "n3"}
	for _, list := range [][]route.Place{{gone, come}, {come, gone}} {
		a := &agent{nodes: map[netip.Prefix]string{}}
		if a.Place(removalsFirst(list), true); a.nodes[p] != "n3" {
			t.Errorf("the address is on %v", a.nodes)
		}
	}
}
