package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// write is a change of one object; a nil object deletes it.
type write struct {
	key    model.Key
	object *model.Object
}

// difference lists the writes from one state to another: first additions and changes, then deletions, each in
// Kubernetes' order.
func difference(from, to model.Set) []write {
	var writes []write
	for k, o := range to {
		if was := from[k]; was == nil || !equalObjects(was, o) {
			writes = append(writes, write{k, o})
		}
	}
	for k := range from {
		if to[k] == nil {
			writes = append(writes, write{key: k})
		}
	}
	slices.SortFunc(writes, func(a, b write) int {
		if (a.object == nil) != (b.object == nil) {
			if a.object == nil {
				return 1
			}
			return -1
		}
		order := cmp.Or(cmp.Compare(rank(a.key), rank(b.key)), strings.Compare(a.key.String(), b.key.String()))
		if a.object == nil {
			return -order
		}
		return order
	})
	return writes
}

func keys(writes []write) []model.Key {
	list := make([]model.Key, len(writes))
	for i, w := range writes {
		list[i] = w.key
	}
	return list
}
