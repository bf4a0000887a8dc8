// Package endpoints keeps labels, profiles, ports and service account of the WorkloadEndpoints of Kubernetes' pods
// current, in a Calico datastore in etcd. The CNI plugin creates and deletes these endpoints.
package endpoints

import (
	"slices"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/controllers/mirror"
	"github.com/manxnet/manx/controllers/nodename"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// Endpoints is the controller. Its unit is the endpoint of the store.
type Endpoints struct{ names nodename.Index }

// Name implements loop.Controller.
func (*Endpoints) Name() string { return "workloadendpoint" }

// Kinds implements loop.Controller.
func (*Endpoints) Kinds() (store, source []model.Kind) {
	return []model.Kind{model.KindWorkloadEndpoint, model.KindNode}, []model.Kind{model.KindWorkloadEndpoint}
}

// Touched implements loop.Controller.
func (e *Endpoints) Touched(ch datastore.Change, source bool) []model.Key {
	switch {
	case ch.Key.Kind == model.KindNode:
		e.names.Put(ch)
		return nil
	case !source:
		return []model.Key{ch.Key}
	}
	if ch.New == nil {
		return nil
	}
	w, ok := ch.New.Value.(*model.WorkloadEndpoint)
	if !ok {
		return nil
	}
	var keys []model.Key
	for _, node := range append(e.names.Calico(w.Spec.Node), w.Spec.Node) {
		if key, ok := keyOn(w, ch.Key.Namespace, node); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// keyOn returns the key of a pod's endpoint under another name of its node.
func keyOn(w *model.WorkloadEndpoint, namespace, node string) (model.Key, bool) {
	ids := w.Spec.IDs()
	ids.Node = node
	name, err := model.WorkloadEndpointName(ids)
	return model.Key{Kind: model.KindWorkloadEndpoint, Namespace: namespace, Name: name}, err == nil
}

// All implements loop.Controller.
func (*Endpoints) All(s loop.State) (keys []model.Key) {
	for o := range s.Store.All(model.KindWorkloadEndpoint) {
		keys = append(keys, o.Key)
	}
	return keys
}

// Decide implements loop.Controller.
func (*Endpoints) Decide(s loop.State, key model.Key) []change.Change {
	have := s.Store.Get(key)
	if have == nil {
		return nil
	}
	w, ok := have.Value.(*model.WorkloadEndpoint)
	if !ok || w.Spec.Orchestrator != "k8s" {
		return nil
	}
	node := w.Spec.Node
	if n := model.Get[model.Node](s.Store, model.ResourceKey(model.KindNode, node)); nodename.Of(n) != "" {
		node = nodename.Of(n)
	}
	origin, ok := keyOn(w, key.Namespace, node)
	if !ok {
		return nil
	}
	pod := model.Get[model.WorkloadEndpoint](s.Source, origin)
	if pod == nil || len(pod.Confirmed().Spec.IPNetworks) == 0 {
		return nil // not running: the CNI plugin deletes it
	}
	next := have.Clone()
	v := next.Value.(*model.WorkloadEndpoint)
	v.Labels, v.GenerateName = clone(pod.Labels), pod.GenerateName
	v.Spec.Profiles, v.Spec.Ports = slices.Clone(pod.Spec.Profiles), slices.Clone(pod.Spec.Ports)
	v.Spec.ServiceAccountName = pod.Spec.ServiceAccountName
	info, _ := model.Lookup(key.Kind)
	validation.Default(info.Kind, v)
	if mirror.SameValue(w, v) {
		return nil
	}
	return []change.Change{{Old: have, New: next, Reason: "the pod has changed"}}
}

func clone(m map[string]string) map[string]string {
	c := make(map[string]string, len(m)+2)
	for k, v := range m {
		c[k] = v
	}
	return c
}
