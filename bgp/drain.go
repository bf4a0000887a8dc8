package bgp

import "github.com/manxnet/manx/datastore/model"

// drain returns the drain state of the own node, from its annotations.
func (c *cluster) drain() Drain {
	switch c.me.object.DrainPhase() {
	case model.Draining, model.Returning:
		return DrainDraining
	case model.Drained:
		return DrainWithdrawn
	}
	return DrainNone
}
