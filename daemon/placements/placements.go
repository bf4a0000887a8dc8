// Package placements follows IPAM's blocks while the routes of a pool, or the encryption of packets, depend on them.
package placements

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam/placement"
	"github.com/manxnet/manx/retry"
)

// Agent routes packets to the addresses of other nodes.
type Agent interface {
	// Place takes over on which nodes prefixes are; synced is set once all blocks have been read. It does not block.
	Place(changes []route.Place, synced bool)
}

// Part passes the nodes of all addresses to an Agent while there is a pool with VXLAN, or WireGuard is on. It goes on
// for overlay.Linger, as the routes by these nodes may stay that long. Else it watches no blocks: in a cluster with BGP
// alone a node does not need them, and each new pod anywhere changes one.
type Part struct {
	store  datastore.Store
	tables *datastore.Tables // with the pools
	log    *zap.Logger
	agent  Agent
	node   deps.Node
	kind   model.Kind // of the objects that are followed
	placed map[model.Key]*placement.Placement
	until  time.Time // when nothing needs the blocks any more
}

// New returns the part. podCIDR is set if there is no IPAM: the pod CIDRs of nodes, which the datastore has as
// BlockAffinities, take the place of blocks then.
func New(d deps.Deps, a Agent, podCIDR bool) *Part {
	kind := model.KindIPAMBlock
	if podCIDR {
		kind = model.KindBlockAffinity
	}
	return &Part{store: d.Store, tables: d.Tables, log: d.Log.Named("placements"), agent: a, node: d.Node, kind: kind,
		placed: map[model.Key]*placement.Placement{}}
}

// Name implements part.Part.
func (p *Part) Name() string { return "placements" }

// Needs implements part.Watcher.
func (p *Part) Needs() part.Needs {
	return append(part.OwnOf(model.KindNode), part.AllOf(model.KindIPPool, model.KindFelixConfiguration)...)
}

// Run implements part.Part.
func (p *Part) Run(ctx context.Context) error {
	end := func() {}
	defer func() { end() }()
	for following, before := false, false; ; {
		snapshot, err := p.tables.WaitInSync(ctx)
		if err != nil {
			return nil
		}
		needed, now := p.needed(snapshot), time.Now()
		if needed || before {
			p.until = now.Add(overlay.Linger)
		}
		before = needed
		if wanted := p.until.After(now); wanted != following {
			end()
			if end, following = func() {}, wanted; wanted {
				end = p.begin(ctx)
			} else {
				p.agent.Place(nil, false) // once there is VXLAN again, blocks may differ
			}
		}
		if err := p.wait(ctx, snapshot, following && !needed); err != nil {
			return nil
		}
	}
}

// wait waits for a change of the pools or settings, or while it lingers until nothing needs the blocks any more.
func (p *Part) wait(ctx context.Context, last *datastore.Snapshot, lingers bool) error {
	waiting, cancel := ctx, func() {}
	if lingers {
		waiting, cancel = context.WithDeadline(ctx, p.until)
	}
	defer cancel()
	if _, err := p.tables.Wait(waiting, last); err != nil {
		return ctx.Err() // the end of the time is no error
	}
	return nil
}

// needed reports whether the routes of a pool, or the peers to which packets are encrypted, follow from blocks.
func (p *Part) needed(r model.Reader) bool {
	felix := felixconfig.Merge(r, p.node.Name, p.node.Felix)
	return overlay.Encrypts(&felix) || slices.ContainsFunc(ippool.Read(r), func(p ippool.Pool) bool {
		return p.Encapsulation() == ippool.VXLAN
	})
}

// begin follows the blocks until end is called, which returns when nothing is under way any more.
func (p *Part) begin(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.follow(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// minInterval bounds how often changes are passed on: a burst of new pods becomes one change.
const minInterval = 50 * time.Millisecond

// follow passes on the placements of all blocks, and their changes. While blocks cannot be read the last ones stay.
func (p *Part) follow(ctx context.Context) {
	tables := datastore.NewReducedTables(p.log, placement.Reduce)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tables.Run(ctx, p.store, p.kind) // logs what is wrong, and ends with ctx
	}()
	defer func() { <-done }()
	var last *datastore.Snapshot
	for next, err := tables.WaitInSync(ctx); err == nil; next, err = tables.Wait(ctx, last) {
		if next.InSync() {
			p.agent.Place(p.changes(last, next), true)
			last = next
		}
		if !retry.Sleep(ctx, minInterval) {
			return
		}
	}
}

// changes returns the differences between a snapshot and the placements passed on before: those of the snapshot last,
// or without one those of an earlier watch.
func (p *Part) changes(last, s *datastore.Snapshot) (list []route.Place) {
	take := func(k model.Key, o *model.Object) {
		var now *placement.Placement
		if o != nil {
			now, _ = o.Value.(*placement.Placement)
		}
		for _, c := range placement.Changes(p.placed[k], now) {
			list = append(list, route.Place(c))
		}
		if p.placed[k] = now; now == nil {
			delete(p.placed, k)
		}
	}
	if last == nil {
		for k := range p.placed {
			if s.Get(k) == nil {
				take(k, nil)
			}
		}
	}
	for c := range s.Changes(last) {
		take(c.Key, c.New)
	}
	return removalsFirst(list)
}

// removalsFirst makes an address that moved from one block to another stay, whichever block's changes came first.
func removalsFirst(list []route.Place) []route.Place {
	slices.SortStableFunc(list, func(a, b route.Place) int { return min(len(a.Node), 1) - min(len(b.Node), 1) })
	return list
}
