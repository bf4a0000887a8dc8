package nobgp

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/retry"
)

// Note is the part of the daemon that notes in the Node why there is no BGP, for those who want to drain the node.
type Note struct {
	deps.Deps
	store datastore.Store
	off   string
}

// NewNote returns the part; its Deps have the datastore. off is why there is no BGP.
func NewNote(d deps.Deps, off string) *Note { return &Note{d, d.Store, off} }

// Name implements part.Part.
func (n *Note) Name() string { return "no-bgp-note" }

// Needs implements part.Watcher.
func (n *Note) Needs() part.Needs { return part.OwnOf(model.KindNode) }

// again is the pause before another attempt to write the Node.
var again = retry.Backoff{Min: time.Second, Max: 30 * time.Second}

// Run implements part.Part.
func (n *Note) Run(ctx context.Context) error {
	for {
		snapshot, err := n.Tables.WaitInSync(ctx)
		if err != nil {
			return nil
		}
		err = again.Repeat(ctx, n.write, func(err error) bool {
			n.Log.Warn("the Node does not say that BGP is off, trying again", zap.Error(err))
			return true
		})
		if err != nil {
			return nil
		}
		if _, err := n.Tables.Wait(ctx, snapshot); err != nil {
			return nil
		}
	}
}

// write brings the Node up to date, if there is one.
func (n *Note) write(ctx context.Context) error {
	own := model.Get[model.Node](n.Tables.Snapshot(), model.ResourceKey(model.KindNode, n.Node.Name))
	if own == nil {
		return nil
	}
	return node.NoteBGPOff(ctx, n.store, own, n.off)
}
