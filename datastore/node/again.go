package node

import (
	"context"
	"errors"
	"time"

	"github.com/projectcalico/api/pkg/lib/numorstring"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// returnAfter is how long a Node is missing before it is made again: who replaces it does so at once.
const returnAfter = 10 * time.Second

// Keeper registers this host again when its Node was deleted, or was deleted and made again by somebody who does not
// know what the host knows: its addresses.
type Keeper struct {
	Config     Config
	Registered Result
	Store      datastore.Store
	Host       HostAddresses
	// MayCreate tells why a Node that is missing is not to be made, nil if it is: somebody has taken the host out of
	// the cluster, or others make the Nodes.
	MayCreate func(context.Context) error
	Log       *zap.Logger

	pause time.Duration // returnAfter, less in tests
}

// Run keeps the Node until ctx ends. Errors are logged, and what failed is tried again.
func (k *Keeper) Run(ctx context.Context, tables *datastore.Tables) error {
	if k.pause == 0 {
		k.pause = returnAfter
	}
	snapshot, err := tables.WaitInSync(ctx)
	if err != nil {
		return err
	}
	w := keeperWatch{last: k.Registered.Node}
	for {
		if snapshot, err = await(ctx, tables, snapshot, k.step(ctx, snapshot, &w)); err != nil {
			return err
		}
	}
}

// keeperWatch is what is known of the Node.
type keeperWatch struct {
	last *model.Node // as it was when it was there
	due  time.Time   // of the next attempt to register again; zero: the Node is there
	said string      // of the last attempt
}

// step registers again if it is time for that. It returns when to look again if nothing changes before, zero for never.
func (k *Keeper) step(ctx context.Context, snapshot *datastore.Snapshot, w *keeperWatch) time.Time {
	key := model.ResourceKey(model.KindNode, k.Registered.Name)
	stored, n := snapshot.Get(key), model.Get[model.Node](snapshot, key)
	switch now := time.Now(); {
	case n != nil && hasAddress(n):
		w.last, w.due = n, time.Time{}
		return w.due
	case stored != nil && n == nil: // it cannot be read: to repair it is somebody's task
		return time.Time{}
	case stored == nil && w.due.IsZero():
		w.due = now.Add(k.pause)
		return w.due
	case now.Before(w.due):
		return w.due
	}
	w.said = k.say(w.said, k.again(ctx, n, w.last))
	w.due = time.Now().Add(k.pause)
	return w.due
}

// asOf returns the AS number of a Node, nil if it has none of its own.
func asOf(n *model.Node) *numorstring.ASNumber {
	if n == nil || n.Spec.BGP == nil {
		return nil
	}
	return n.Spec.BGP.ASNumber
}

func hasAddress(n *model.Node) bool {
	return addressOf(n, IPv4).IsValid() || addressOf(n, IPv6).IsValid()
}

// say logs an outcome that differs from the one before.
func (k *Keeper) say(before string, err error) string {
	now := "registered again"
	if err != nil {
		now = err.Error()
	}
	if now != before && err != nil {
		k.Log.Warn("the Node of this host is not there, or has no address", zap.String("node", k.Registered.Name),
			zap.Error(err))
	} else if now != before {
		k.Log.Info("the Node of this host was deleted or replaced: registered again",
			zap.String("node", k.Registered.Name))
	}
	return now
}

// again registers. A Node that this host makes, because there is none, gets what the last one had: labels, annotations,
// AS number and so on. One that another has made gets the AS number if it has none: whoever made it, such as a kubelet,
// does not know it, and with another one the sessions of this node would end.
func (k *Keeper) again(ctx context.Context, now, last *model.Node) error {
	r := registrar{config: k.Config, name: k.Registered.Name, store: k.Store, host: k.Host}
	if as := asOf(last); as != nil && now != nil && asOf(now) == nil && r.config.AS == "" {
		r.config.AS = as.String()
	}
	if now == nil {
		if err := k.MayCreate(ctx); err != nil {
			return err
		}
		fresh := &model.Node{Spec: last.Spec}
		fresh.Labels, fresh.Annotations = last.Labels, last.Annotations
		o := model.NewObject(model.ResourceKey(model.KindNode, r.name), fresh).Clone()
		if _, err := k.Store.Create(ctx, o); err != nil && !errors.Is(err, datastore.ErrExists) {
			return err
		}
	}
	_, err := r.ensureNode(ctx)
	return err
}
