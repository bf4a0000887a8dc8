package datastore

import (
	"cmp"
	"strings"

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
		BTree: btree.New(degree, func(a, b *model.Object) bool { return compareKeys(a.Key, b.Key) < 0 }),
		at:    func(k model.Key) *model.Object { return &model.Object{Key: k} },
	}
}

func newQuarantine() tree[Quarantined] {
	return tree[Quarantined]{
		BTree: btree.New(degree, func(a, b Quarantined) bool { return compareKeys(a.Object.Key, b.Object.Key) < 0 }),
		at:    func(k model.Key) Quarantined { return Quarantined{Object: &model.Object{Key: k}} },
	}
}

func compareKeys(a, b model.Key) int {
	return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name))
}

func (t tree[T]) clone() tree[T]                 { return tree[T]{BTree: t.Clone(), at: t.at} }
func (t tree[T]) get(k model.Key) (v T, ok bool) { return t.Get(t.at(k)) }
func (t tree[T]) set(v T)                        { t.ReplaceOrInsert(v) }
func (t tree[T]) remove(k model.Key)             { t.Delete(t.at(k)) }
