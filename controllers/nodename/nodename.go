// Package nodename maps Calico's nodes to Kubernetes': in etcd the two may have different names.
package nodename

import (
	"maps"
	"slices"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Of returns a node's name in Kubernetes, empty for a node that is not in Kubernetes.
func Of(n *model.Node) string {
	if n == nil {
		return ""
	}
	for _, r := range n.Spec.OrchRefs {
		if r.Orchestrator == "k8s" && r.NodeName != "" {
			return r.NodeName
		}
	}
	return ""
}

// Index finds Calico's names of a node by Kubernetes'. The zero value is empty.
type Index struct{ names map[string]map[string]bool }

// Put applies a change of one of Calico's nodes.
func (x *Index) Put(ch datastore.Change) {
	if x.names == nil {
		x.names = map[string]map[string]bool{}
	}
	if was := Of(node(ch.Old)); was != "" {
		if delete(x.names[was], ch.Key.Name); len(x.names[was]) == 0 {
			delete(x.names, was)
		}
	}
	if now := Of(node(ch.New)); now != "" {
		if x.names[now] == nil {
			x.names[now] = map[string]bool{}
		}
		x.names[now][ch.Key.Name] = true
	}
}

// Calico lists the names of a Kubernetes node in Calico.
func (x *Index) Calico(kubernetes string) []string {
	return slices.Sorted(maps.Keys(x.names[kubernetes]))
}

func node(o *model.Object) *model.Node {
	if o == nil {
		return nil
	}
	n, _ := o.Value.(*model.Node)
	return n
}
