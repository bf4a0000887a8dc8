package bgp

import "github.com/manxnet/manx/datastore/model"

// drain tells how far the own node has left the network, by its annotations.
func (c *cluster) drain() Drain {
	switch c.me.object.DrainPhase() {
	case model.Draining, model.Returning:
		return DrainDraining
	case model.Drained:
		return DrainWithdrawn
	}
	return DrainNone
}
