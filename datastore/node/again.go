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

// returnAfter is the time that a Node is missing before it is created again: a replacement follows at once.
const returnAfter = 10 * time.Second

// Keeper registers this host again when its Node was deleted, or was deleted and created again by a program that does
// not have the host's addresses. At its start it warns of another Node that has one of the addresses.
type Keeper struct {
	Config     Config
	Registered Result
	Store      datastore.Store
	Host       HostAddresses
	// MayCreate returns the reason why a missing Node must not be created, nil if it may: the host was removed from the
	// cluster, or another program creates the Nodes.
	MayCreate func(context.Context) error
	Log       *zap.Logger

	pause time.Duration // returnAfter, less in tests
}

// Run maintains the Node until ctx ends. It logs errors and retries.
func (k *Keeper) Run(ctx context.Context, tables *datastore.Tables) error {
	if k.pause == 0 {
		k.pause = returnAfter
	}
	snapshot, err := tables.WaitInSync(ctx)
	if err != nil {
		return err
	}
	k.warnOfConflict(snapshot)
	w := keeperWatch{last: k.Registered.Node}
	for {
		snapshot = tables.Snapshot()
		changed := snapshot.ReplacedOf(model.KindNode)
		if err := await(ctx, k.step(ctx, snapshot, &w), changed, nil, nil); err != nil {
			return err
		}
	}
}

// warnOfConflict logs another Node that has one of this node's addresses. Registration reads all Nodes only before it
// writes an address, and the tables have them.
func (k *Keeper) warnOfConflict(snapshot *datastore.Snapshot) {
	if k.Config.DisableConflictCheck {
		return
	}
	conflict := k.Config.conflict(k.Registered.Name, k.Registered.Node, snapshot.All(model.KindNode))
	if conflict != nil {
		k.Log.Warn(conflict.Error(), zap.String("node", k.Registered.Name))
	}
}

// keeperWatch is the known state of the Node.
type keeperWatch struct {
	last   *model.Node // the last version that existed
	due    time.Time   // time of the next registration; zero: the Node exists
	owed   bool        // the last attempt has failed, perhaps after it had written the Node
	logged string      // outcome of the last attempt, as logged
}

// step registers again if it is time. It returns the time of the next step if nothing changes before, zero for never.
func (k *Keeper) step(ctx context.Context, snapshot *datastore.Snapshot, w *keeperWatch) time.Time {
	key := model.ResourceKey(model.KindNode, k.Registered.Name)
	stored, n := snapshot.Get(key), model.Get[model.Node](snapshot, key)
	there := n != nil && (hasAddress(n) || k.Config.PolicyOnly)
	if there {
		w.last = n
	}
	switch now := time.Now(); {
	case there && !w.owed:
		w.due = time.Time{}
		return w.due
	case stored != nil && n == nil: // unreadable: an operator must repair it
		return time.Time{}
	case stored == nil && w.due.IsZero():
		w.due = now.Add(k.pause)
		return w.due
	case now.Before(w.due):
		return w.due
	}
	err := k.again(ctx, n, w.last)
	w.owed = err != nil
	w.logged = k.logOutcome(w.logged, err)
	w.due = time.Now().Add(k.pause)
	return w.due
}

// asOf returns the AS number of a Node, nil if it has none.
func asOf(n *model.Node) *numorstring.ASNumber {
	if n == nil || n.Spec.BGP == nil {
		return nil
	}
	return n.Spec.BGP.ASNumber
}

func hasAddress(n *model.Node) bool {
	return addressOf(n, IPv4).IsValid() || addressOf(n, IPv6).IsValid()
}

// logOutcome logs an outcome that differs from the previous one.
func (k *Keeper) logOutcome(before string, err error) string {
	now := "registered again"
	if err != nil {
		now = err.Error()
	}
	if now != before && err != nil {
		k.Log.Warn("the Node of this host, or an object that it needs, is not there or not complete",
			zap.String("node", k.Registered.Name), zap.Error(err))
	} else if now != before {
		k.Log.Info("the Node of this host was deleted or replaced: registered again",
			zap.String("node", k.Registered.Name))
	}
	return now
}

// again registers, which makes the same objects as at a start: "delete node" deletes the node's settings too, and the
// Node comes back even if these cannot. If there is no Node, this host creates it with the labels, annotations, AS
// number and so on of the last one. A Node that another program has created gets the AS number if it has none: a
// kubelet, for instance, does not set it, and with another one the sessions of this node would end.
func (k *Keeper) again(ctx context.Context, now, last *model.Node) error {
	r := registrar{config: k.Config, name: k.Registered.Name, store: k.Store, host: k.Host,
		log: k.Log.With(zap.String("node", k.Registered.Name))}
	if as := asOf(last); as != nil && now != nil && asOf(now) == nil && r.config.AS == "" {
		r.config.AS = as.String()
	}
	if now == nil {
		if err := k.MayCreate(ctx); err != nil {
			return err
		}
	}
	settingsErr := ensureCluster(ctx, r.store, r.config.ClusterType)
	if settingsErr == nil {
		_, settingsErr = r.ensureSettings(ctx)
	}
	if now == nil {
		fresh := &model.Node{Spec: last.Spec}
		fresh.Labels, fresh.Annotations = last.Labels, last.Annotations
		o := model.NewObject(model.ResourceKey(model.KindNode, r.name), fresh).Clone()
		// If it exists by now, the next step gets it from the tables: whether it has an AS number decides above.
		if _, err := k.Store.Create(ctx, o); err != nil {
			return err
		}
	}
	_, err := r.ensureNode(ctx)
	return errors.Join(err, settingsErr)
}
