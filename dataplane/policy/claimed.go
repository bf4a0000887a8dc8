package policy

import (
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// claimed are the pods of other nodes that claim addresses.
type claimed struct {
	of    map[model.Key]bool
	dirty bool // what a claim is measured by changed
}

// credible returns another node's pod with those of its claimed addresses that a pod can have: whoever may change a pod
// can claim any. The pod's node exists, and the address is in a pool for workloads and is no node's. Every other
// endpoint, and nil, is returned as it is: those of this node are decided about before they come here.
func (c *Calculator) credible(k model.Key, w *model.Workload) *model.Workload {
	if w == nil || w.Claim == nil || w.Node == c.config.Node {
		delete(c.claimed.of, k)
		return w
	}
	c.claimed.of[k] = true
	confirmed := *w.Confirmed()
	confirmed.Networks = nil
	if c.reader.Get(model.ResourceKey(model.KindNode, w.Node)) == nil {
		return &confirmed
	}
	pools := ippool.ReadForWorkloads(c.reader)
	for _, a := range w.Claim.Addresses() {
		p := hostPrefix(a)
		if pools.Of(p) != nil && c.nodes.count[p] == 0 {
			confirmed.Networks = append(confirmed.Networks, p)
		}
	}
	return &confirmed
}

// settleClaimed decides again about claims after a change of pools or nodes.
func (c *Calculator) settleClaimed() {
	if !c.claimed.dirty {
		return
	}
	c.claimed.dirty = false
	for k := range c.claimed.of {
		c.takeWorkload(k, c.reader.Get(k).Workload())
	}
}
