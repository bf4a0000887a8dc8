package ipamgc

import (
	"iter"
	"net/netip"

	"github.com/manxnet/manx/controllers/nodename"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// take updates the index. The cost is that of the changes.
func (c *Collector) take(store, source iter.Seq[datastore.Change]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ch := range store {
		switch ch.Key.Kind {
		case model.KindIPAMBlock:
			if cidr, ok := ch.Key.Block(); ok {
				c.x.put(cidr, value[model.Block](ch.New))
			}
		case model.KindBlockAffinity:
			c.x.putClaim(ch.Key, ch.New)
		case model.KindNode:
			c.x.dirty[ch.Key.Name] = true
			c.names.Put(ch)
		case model.KindIPPool, model.KindIPReservation:
			c.pools.put(ch)
		}
	}
	for ch := range source {
		switch ch.Key.Kind {
		case model.KindNode:
			c.touch(ch.Key.Name)
		case model.KindWorkloadEndpoint:
			for _, o := range []*model.Object{ch.Old, ch.New} {
				if w := o.Workload(); w != nil {
					c.touch(w.Node)
				}
			}
		}
	}
}

// touch marks all of Calico's nodes of a Kubernetes node for another evaluation.
func (c *Collector) touch(kubernetes string) {
	names := c.names.Calico(kubernetes)
	for _, name := range names {
		c.x.dirty[name] = true
	}
	if len(names) == 0 {
		c.x.dirty[kubernetes] = true // it may be deleted in both
	}
}

// value returns the typed value of an object, nil if there is none.
func value[T model.Type](o *model.Object) *T {
	if o == nil {
		return nil
	}
	v, _ := o.Value.(*T)
	return v
}

// tableFacts are the facts from the tables.
type tableFacts struct{ store, source model.Reader }

func (t tableFacts) node(name string) nodeFacts {
	n := model.Get[model.Node](t.store, model.ResourceKey(model.KindNode, name))
	if n == nil {
		return nodeFacts{}
	}
	ref := nodename.Of(n)
	if ref == "" {
		return nodeFacts{foreign: true}
	}
	return nodeFacts{kubernetes: ref, exists: t.source.Get(model.ResourceKey(model.KindNode, ref)) != nil}
}

func (t tableFacts) has(namespace, pod, kubernetesNode string, address netip.Addr) bool {
	name, err := model.WorkloadEndpointName(model.WorkloadEndpointIDs{Node: kubernetesNode, Orchestrator: "k8s",
		Pod:      pod,
		Endpoint: "eth0"})
	if err != nil {
		return false
	}
	w := t.source.Get(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: namespace, Name: name}).Workload()
	return w != nil && w.Confirmed().Has(address)
}
