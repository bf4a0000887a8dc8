// Package publickeys publishes the public keys of this node for WireGuard in its Node.
package publickeys

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/wireguard"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/retry"
)

// Part writes the keys of the devices into the Node, also after another program has changed them there. Other nodes
// encrypt to a node with a key, so one that does not encrypt has none.
type Part struct {
	store  datastore.Store
	tables *datastore.Tables
	node   model.Key
	keys   *bus.Latest[wireguard.Keys]
	log    *zap.Logger
}

// New returns the part. keys are those of the devices, nil as long as nothing is known about them.
func New(d deps.Deps, keys *bus.Latest[wireguard.Keys]) *Part {
	return &Part{store: d.Store, tables: d.Tables, node: model.ResourceKey(model.KindNode, d.Node.Name), keys: keys,
		log: d.Log.Named("publickeys")}
}

// Name implements part.Part.
func (p *Part) Name() string { return "publickeys" }

// Needs implements part.Watcher.
func (p *Part) Needs() part.Needs { return part.OwnOf(model.KindNode) }

// backoff is the pause before the Node is written again.
var backoff = retry.Backoff{Min: time.Second, Max: 30 * time.Second}

// Run implements part.Part.
func (p *Part) Run(ctx context.Context) error {
	if _, err := p.tables.WaitInSync(ctx); err != nil {
		return nil
	}
	for ctx.Err() == nil {
		keys, next := p.keys.Get()
		snapshot := p.tables.Snapshot()
		changed := snapshot.ReplacedOf(model.KindNode)
		if n := model.Get[model.Node](snapshot, p.node); keys != nil && n != nil {
			status := n.Status
			if put(&status, keys) && !p.publish(ctx, keys) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
		case <-next:
		case <-changed:
		}
	}
	return nil
}

// publish writes the keys, until it succeeds or ctx ends.
func (p *Part) publish(ctx context.Context, keys wireguard.Keys) bool {
	err := backoff.Repeat(ctx, func(ctx context.Context) error { return p.write(ctx, keys) }, func(err error) bool {
		p.log.Warn("the public keys for WireGuard are not published, trying again", zap.Error(err))
		return true
	})
	return err == nil
}

// write sets the keys in the Node as a compare-and-swap that changes nothing else.
func (p *Part) write(ctx context.Context, keys wireguard.Keys) error {
	o, err := p.store.Get(ctx, p.node)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil // its creation is a change
	}
	if err != nil {
		return fmt.Errorf("read node %s: %w", p.node.Name, err)
	}
	o = o.Clone()
	n, ok := o.Value.(*model.Node)
	if !ok {
		return fmt.Errorf("node %s cannot be read: %w", p.node.Name, o.Err)
	}
	if !put(&n.Status, keys) {
		return nil
	}
	if _, err := p.store.Update(ctx, o); err != nil {
		return fmt.Errorf("write node %s: %w", p.node.Name, err)
	}
	p.log.Info("public keys for WireGuard published", zap.String("ipv4", n.Status.WireguardPublicKey),
		zap.String("ipv6", n.Status.WireguardPublicKeyV6))
	return nil
}

// put sets the keys in the status of a Node, and reports whether that changed it.
func put(s *model.NodeStatus, keys wireguard.Keys) (changed bool) {
	for _, x := range []struct {
		field  *string
		family model.Family
	}{{&s.WireguardPublicKey, model.IPv4}, {&s.WireguardPublicKeyV6, model.IPv6}} {
		if text := keys[x.family].String(); *x.field != text {
			*x.field, changed = text, true
		}
	}
	return changed
}
