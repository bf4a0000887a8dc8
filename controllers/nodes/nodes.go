// Package nodes copies the labels of Kubernetes' nodes to a Calico datastore in etcd, and deletes nodes that Kubernetes
// has deleted.
package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"maps"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/controllers/nodename"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Labels copies the labels of Kubernetes' nodes to Calico's. It leaves labels alone that were never in Kubernetes. Its
// unit is Calico's Node.
type Labels struct{ names nodename.Index }

// Name implements loop.Controller.
func (*Labels) Name() string { return "node-labels" }

// Kinds implements loop.Controller.
func (*Labels) Kinds() (store, source []model.Kind) { return nodeKind, nodeKind }

var nodeKind = []model.Kind{model.KindNode}

// Touched implements loop.Controller.
func (l *Labels) Touched(ch datastore.Change, source bool) []model.Key {
	return touched(&l.names, ch, source)
}

// touched returns Calico's nodes that a change concerns.
func touched(names *nodename.Index, ch datastore.Change, source bool) []model.Key {
	if !source {
		names.Put(ch)
		return []model.Key{ch.Key}
	}
	var keys []model.Key
	for _, n := range names.Calico(ch.Key.Name) {
		keys = append(keys, model.ResourceKey(model.KindNode, n))
	}
	return keys
}

// All implements loop.Controller.
func (*Labels) All(s loop.State) []model.Key { return all(s) }

func all(s loop.State) (keys []model.Key) {
	for o := range s.Store.All(model.KindNode) {
		keys = append(keys, o.Key)
	}
	return keys
}

// Decide implements loop.Controller.
func (*Labels) Decide(s loop.State, key model.Key) []change.Change {
	have := s.Store.Get(key)
	if have == nil {
		return nil
	}
	n := have.Value.(*model.Node)
	from := model.Get[model.Node](s.Source, model.ResourceKey(model.KindNode, nodename.Of(n)))
	if from == nil {
		return nil
	}
	was, ok := synced(n)
	if !ok {
		return nil // malformed: the labels from Kubernetes are unknown
	}
	now := kubernetesLabels(from)
	labels := maps.Clone(n.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for k := range was {
		if _, still := now[k]; !still {
			delete(labels, k)
		}
	}
	maps.Copy(labels, now)
	if maps.Equal(labels, n.Labels) {
		return nil
	}
	text, err := json.Marshal(now)
	if err != nil {
		return nil
	}
	next := have.Clone()
	m := next.Value.(*model.Node)
	m.Labels = labels
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[model.AnnotationKubeLabels] = string(text)
	return []change.Change{{Old: have, New: next, Reason: "the labels of Kubernetes' node have changed"}}
}

// synced returns the labels copied from Kubernetes before. ok is false if the annotation is malformed.
func synced(n *model.Node) (labels map[string]string, ok bool) {
	text, noted := n.Annotations[model.AnnotationKubeLabels]
	if !noted {
		return nil, true
	}
	return labels, json.Unmarshal([]byte(text), &labels) == nil
}

// kubernetesLabels returns the labels of a node of the source without those that Calico has set.
func kubernetesLabels(n *model.Node) map[string]string {
	if labels, ok := synced(n); ok && labels != nil {
		return labels
	}
	if n.Labels == nil {
		return map[string]string{}
	}
	return n.Labels
}

// Deleter deletes Calico's Nodes whose node is deleted in Kubernetes, after the endpoints on them. It leaves nodes
// outside Kubernetes alone. Addresses and blocks are left to the garbage collection. Its unit is Calico's Node.
type Deleter struct {
	Source datastore.Store
	names  nodename.Index
}

// Name implements loop.Controller.
func (*Deleter) Name() string { return "node-deleter" }

// Kinds implements loop.Controller.
func (*Deleter) Kinds() (store, source []model.Kind) {
	return []model.Kind{model.KindNode, model.KindWorkloadEndpoint}, nodeKind
}

// Touched implements loop.Controller.
func (d *Deleter) Touched(ch datastore.Change, source bool) []model.Key {
	if ch.Key.Kind != model.KindWorkloadEndpoint {
		return touched(&d.names, ch, source)
	}
	if w := ch.Old.Workload(); w != nil && ch.New == nil {
		return []model.Key{model.ResourceKey(model.KindNode, w.Node)}
	}
	return nil
}

// All implements loop.Controller.
func (*Deleter) All(s loop.State) []model.Key { return all(s) }

// Decide implements loop.Controller. The Node is deleted last, so that an interrupted deletion is found again.
func (d *Deleter) Decide(s loop.State, key model.Key) []change.Change {
	have := s.Store.Get(key)
	if have == nil {
		return nil
	}
	ref := nodename.Of(have.Value.(*model.Node))
	if ref == "" || s.Source.Get(model.ResourceKey(model.KindNode, ref)) != nil {
		return nil
	}
	reason := "node " + ref + " does not exist in Kubernetes"
	var list []change.Change
	for o := range s.Store.All(model.KindWorkloadEndpoint) {
		if w := o.Workload(); w != nil && w.Node == key.Name {
			list = append(list, change.Change{Old: o, Reason: reason, Unless: d.exists(ref)})
		}
	}
	if len(list) > 0 {
		return list
	}
	return []change.Change{{Old: have, Reason: reason, Unless: d.exists(ref)}}
}

// exists reports whether Kubernetes has a node after all.
func (d *Deleter) exists(name string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		_, err := d.Source.Get(ctx, model.ResourceKey(model.KindNode, name))
		if errors.Is(err, datastore.ErrNotFound) {
			return false, nil
		}
		return true, err
	}
}
