package datastore

import (
	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/manxnet/manx/datastore/model"
)

// tree has values by key, in the order of model.Reader: by kind, namespace, name. A clone costs nothing, and is
// independent of the original.
type tree[T any] struct {
	*btree.BTree[T]
	at func(model.Key) T // returns a value for the search of a key
}

// degree is a compromise: a wide node wastes less memory, and takes longer to copy when a value in it changes.
const degree = 16

func newObjects() tree[*model.Object] {
	return tree[*model.Object]{
		BTree: btree.New(degree, func(a, b *model.Object) bool { return a.Key.Compare(b.Key) < 0 }),
		at:    func(k model.Key) *model.Object { return &model.Object{Key: k} },
	}
}

func newQuarantine() tree[Quarantined] {
	return tree[Quarantined]{
		BTree: btree.New(degree, func(a, b Quarantined) bool { return a.Object.Key.Compare(b.Object.Key) < 0 }),
		at:    func(k model.Key) Quarantined { return Quarantined{Object: &model.Object{Key: k}} },
	}
}

func (t tree[T]) clone() tree[T]                 { return tree[T]{BTree: t.Clone(), at: t.at} }
func (t tree[T]) get(k model.Key) (v T, ok bool) { return t.Get(t.at(k)) }
func (t tree[T]) set(v T)                        { t.ReplaceOrInsert(v) }
func (t tree[T]) remove(k model.Key)             { t.Delete(t.at(k)) }

// copy makes the values of some keys those of another tree.
func (t tree[T]) copy(from tree[T], keys []model.Key) {
	for _, k := range keys {
		if v, ok := from.get(k); ok {
			t.set(v)
		} else {
			t.remove(k)
		}
	}
}
