package part

import (
	"slices"

	"github.com/manxnet/manx/datastore/model"
)

// Scope says which objects of a kind a part needs.
type Scope int

// The scopes. All includes Own.
const (
	All Scope = iota // every object of the cluster
	Own              // those of this node: its Node, the affinities of its blocks, the endpoints of its workloads
)

// Needs are kinds, each with the objects of it that are needed. A kind may be there several times: All wins.
type Needs []Need

// Need is one of the Needs.
type Need struct {
	Kind  model.Kind
	Scope Scope
}

// AllOf returns the need for every object of some kinds.
func AllOf(kinds ...model.Kind) Needs { return needsOf(All, kinds) }

// OwnOf returns the need for the objects of this node of some kinds.
func OwnOf(kinds ...model.Kind) Needs { return needsOf(Own, kinds) }

func needsOf(s Scope, kinds []model.Kind) (list Needs) {
	for _, k := range kinds {
		list = append(list, Need{k, s})
	}
	return list
}

// Merged returns the needs of parts, each kind once, in the order of the parts.
func Merged(parts ...Part) (list Needs) {
	for _, p := range parts {
		w, ok := p.(Watcher)
		if !ok {
			continue
		}
		for _, n := range w.Needs() {
			at := slices.IndexFunc(list, func(m Need) bool { return m.Kind == n.Kind })
			if at < 0 {
				list = append(list, n)
			} else {
				list[at].Scope = min(list[at].Scope, n.Scope)
			}
		}
	}
	return list
}

// Kinds returns the kinds.
func (l Needs) Kinds() []model.Kind {
	kinds := make([]model.Kind, len(l))
	for i, n := range l {
		kinds[i] = n.Kind
	}
	return kinds
}
