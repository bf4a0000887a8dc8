package model

import (
	"cmp"
	"iter"
	"slices"
)

// Set is a Reader over a plain list of objects: for tests and for planning from files.
type Set map[Key]*Object

// NewSet returns a Set from values with their keys.
func NewSet(objects ...*Object) Set {
	s := Set{}
	for _, o := range objects {
		s[o.Key] = o
	}
	return s
}

// Get implements Reader.
func (s Set) Get(k Key) *Object {
	if o := s[k]; o != nil && o.Err == nil {
		return o
	}
	return nil
}

// All implements Reader.
func (s Set) All(kind Kind) iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		var objects []*Object
		for _, o := range s {
			if o.Key.Kind == kind && o.Err == nil {
				objects = append(objects, o)
			}
		}
		slices.SortFunc(objects, func(a, b *Object) int {
			return cmp.Or(cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
		})
		for _, o := range objects {
			if !yield(o) {
				return
			}
		}
	}
}
