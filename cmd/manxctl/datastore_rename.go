package main

import (
	"fmt"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// nodeNames has the names of nodes in Kubernetes, which their objects get there, by their names in this datastore. Only
// those that differ are in it.
type nodeNames map[string]string

// namesInKubernetes returns the names of nodes that have another one in Kubernetes. Two nodes of one name are an error.
func namesInKubernetes(nodes []*model.Object) (nodeNames, error) {
	names, taken := nodeNames{}, map[string]string{}
	for _, o := range nodes {
		n, ok := o.Value.(*model.Node)
		if !ok {
			continue // exportObject reports it
		}
		name := n.Name
		for _, ref := range n.Spec.OrchRefs {
			if ref.Orchestrator == "k8s" && ref.NodeName != "" {
				name = ref.NodeName
			}
		}
		if other := taken[name]; other != "" {
			return nil, fmt.Errorf("nodes %s and %s would both be node %s of Kubernetes: correct spec.orchRefs of one",
				other, n.Name, name)
		}
		if taken[name] = n.Name; name != n.Name {
			names[n.Name] = name
		}
	}
	return names, nil
}

// of returns the name in Kubernetes.
func (m nodeNames) of(name string) string {
	if other, ok := m[name]; ok {
		return other
	}
	return name
}

// after returns a text that ends with a prefix and the name of a node, with the name in Kubernetes.
func (m nodeNames) after(prefix, text string) string {
	if name, ok := strings.CutPrefix(text, prefix); ok {
		return prefix + m.of(name)
	}
	return text
}

// handle returns the ID of a handle: those of tunnel addresses end with the name of their node.
func (m nodeNames) handle(id string) string {
	const middle = "-tunnel-addr-"
	if tunnel, _, ok := strings.Cut(id, middle); ok {
		return m.after(tunnel+middle, id)
	}
	return id
}

// rename returns a copy of an object with the names that its nodes have in Kubernetes.
func (m nodeNames) rename(o *model.Object) *model.Object {
	if len(m) == 0 || o.Value == nil {
		return o
	}
	o = o.Clone()
	switch v := o.Value.(type) {
	case *model.Node:
		v.Name = m.of(v.Name)
		o.Key.Name = v.Name
	case *model.BGPConfiguration:
		v.Name = m.after("node.", v.Name)
		o.Key.Name = v.Name
	case *model.FelixConfiguration:
		v.Name = m.after("node.", v.Name)
		o.Key.Name = v.Name
	case *model.BGPPeer:
		v.Spec.Node = m.of(v.Spec.Node)
	case *v3.HostEndpoint:
		v.Spec.Node = m.of(v.Spec.Node)
	case *model.Block:
		m.renameBlock(v)
	case *model.Handle:
		o.Key = model.HandleKey(m.handle(o.Key.Name))
	case *model.BlockAffinity:
		if a, ok := o.Key.Affinity(); ok && a.Type == model.AffinityHost {
			a.Host = m.of(a.Host)
			o.Key = model.AffinityKey(a)
		}
	}
	return o
}

func (m nodeNames) renameBlock(b *model.Block) {
	if b.Affinity != nil {
		*b.Affinity = m.after(string(model.AffinityHost)+":", *b.Affinity)
	}
	if b.HostAffinity != nil {
		*b.HostAffinity = m.of(*b.HostAffinity)
	}
	for _, a := range b.Attributes {
		if a.HandleID != nil {
			*a.HandleID = m.handle(*a.HandleID)
		}
		for _, attributes := range []map[string]string{a.Secondary, a.Alternate} {
			if node, ok := attributes["node"]; ok {
				attributes["node"] = m.of(node)
			}
		}
	}
}
