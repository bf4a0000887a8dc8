// Package warm answers what an allocator, or a CNI plugin, reads of the datastore from memory: from the state tables,
// and from the blocks as this process has last written them.
package warm

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Store is what a Cache needs of a datastore.Backend.
type Store interface {
	datastore.Store
	Keeps(kind model.Kind) bool
}

// Cache is what a process remembers between operations. It is safe for concurrent use.
//
// What it holds may be out of date: others write, too. That does no harm, because everything is written by
// compare-and-swap on the revision that was remembered. A write that fails tells that something else is stored by now;
// from then on the operation reads the datastore itself.
type Cache struct {
	store  Store
	tables *datastore.Tables
	kinds  map[model.Kind]bool // that the tables hold
	keep   func(*model.Object) bool

	mu sync.Mutex
	// own are objects as they were last read or written here: of the kinds in the tables until these have caught up; of
	// the others as long as keep wants them.
	own map[model.Key]*model.Object
	// gone are objects of the tables' kinds that were deleted here, with the revision of which that is true.
	gone map[model.Key]int64
}

// New returns a Cache of a store, whose tables hold the given kinds. keep says which other objects are remembered; they
// should be few.
func New(store Store, tables *datastore.Tables, kinds []model.Kind, keep func(*model.Object) bool) *Cache {
	c := &Cache{store: store, tables: tables, keep: keep, kinds: map[model.Kind]bool{},
		own: map[model.Key]*model.Object{}, gone: map[model.Key]int64{}}
	for _, k := range kinds {
		c.kinds[k] = true
	}
	return c
}

// Operation is the datastore as one operation sees it: remembered until one of its writes fails. It is safe for
// concurrent use.
type Operation struct {
	*Cache
	mu    sync.Mutex
	stale bool
}

// Begin starts an operation. What the tables have caught up with is forgotten.
func (c *Cache) Begin() *Operation {
	s := c.tables.Snapshot()
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, own := range c.own {
		if c.kinds[key.Kind] && s.Contains(key, own.Revision) {
			delete(c.own, key)
		}
	}
	for key, at := range c.gone {
		if caughtUp(s, key, at) {
			delete(c.gone, key)
		}
	}
	return &Operation{Cache: c}
}

// caughtUp reports whether a snapshot shows what became of an object after the version that was deleted here.
func caughtUp(s *datastore.Snapshot, key model.Key, deleted int64) bool {
	if have := s.Get(key); have != nil {
		return have.Revision > deleted
	}
	return s.Contains(key, deleted)
}

// Keeps is datastore.Backend's.
func (c *Cache) Keeps(kind model.Kind) bool { return c.store.Keeps(kind) }

func (o *Operation) fresh() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stale
}

// failed makes the operation read the datastore itself, and forgets the object.
func (o *Operation) failed(key model.Key) {
	o.mu.Lock()
	o.stale = true
	o.mu.Unlock()
	o.Cache.mu.Lock()
	defer o.Cache.mu.Unlock()
	delete(o.own, key)
	delete(o.gone, key)
}

// snapshot returns the tables' if they hold the kind as it is in the datastore, nil if not.
func (c *Cache) snapshot(kind model.Kind) *datastore.Snapshot {
	if !c.kinds[kind] {
		return nil
	}
	if s := c.tables.Snapshot(); s.InSync() {
		return s
	}
	return nil
}

// Get is datastore.Store's.
func (o *Operation) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	if !o.fresh() {
		found, known := o.remembered(key)
		switch {
		case known && found == nil && key.Kind == model.KindIPPool: // a person named it, and may have made it just now
		case known && found == nil:
			return nil, &datastore.KeyError{Op: "get", Key: key, Err: datastore.ErrNotFound}
		case known:
			return found, nil
		}
	}
	return o.Read(ctx, key)
}

// Read is Get of the datastore itself, for who knows that something must be there of which no watch has told yet.
func (o *Operation) Read(ctx context.Context, key model.Key) (*model.Object, error) {
	found, err := o.store.Get(ctx, key)
	if err == nil {
		o.remember(found)
	}
	return found, err
}

// remembered returns the object as this process knows it, nil for one that does not exist, and whether it knows.
func (c *Cache) remembered(key model.Key) (*model.Object, bool) {
	s := c.snapshot(key.Kind)
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.own[key]
	if s == nil {
		// Somebody else may have changed an object of the tables' kinds since, without a conflict that tells of it.
		return own, own != nil && own.Err == nil && !c.kinds[key.Kind]
	}
	if own != nil && !s.Contains(key, own.Revision) {
		return own, own.Err == nil
	}
	if at, deleted := c.gone[key]; deleted && !caughtUp(s, key, at) {
		return nil, true
	}
	have := s.Get(key)
	// Of an object that is invalid the tables show the last valid version: what is stored has to be read.
	if have == nil && quarantined(s, key) {
		return nil, false
	}
	return have, true
}

func quarantined(s *datastore.Snapshot, key model.Key) bool {
	for q := range s.Quarantined() {
		if q.Object.Key == key {
			return true
		}
	}
	return false
}

// remember keeps an object as it is stored.
func (c *Cache) remember(o *model.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.kinds[o.Key.Kind] && !c.keep(o):
		delete(c.own, o.Key)
	case c.own[o.Key] == nil || c.own[o.Key].Revision < o.Revision:
		c.own[o.Key] = o
		delete(c.gone, o.Key)
	}
}

// List is datastore.Store's.
func (o *Operation) List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error) {
	s := o.snapshot(kind)
	if s == nil || o.fresh() {
		return o.store.List(ctx, kind, namespace)
	}
	var list []*model.Object
	seen := map[model.Key]bool{}
	add := func(key model.Key) {
		if seen[key] {
			return
		}
		seen[key] = true
		if found, _ := o.remembered(key); found != nil {
			list = append(list, found)
		}
	}
	for have := range s.In(kind, namespace) {
		add(have.Key)
	}
	for _, key := range o.written(kind, namespace) {
		add(key)
	}
	slices.SortFunc(list, func(a, b *model.Object) int {
		return cmp.Or(strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name))
	})
	return list, s.RevisionOf(kind), nil
}

// written lists the objects of a kind and namespace that this process has written, or read, lately.
func (c *Cache) written(kind model.Kind, namespace string) (keys []model.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.own {
		if key.Kind == kind && key.In(namespace) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Create is datastore.Store's.
func (o *Operation) Create(ctx context.Context, object *model.Object) (*model.Object, error) {
	stored, err := o.store.Create(ctx, object)
	return o.wrote(object.Key, stored, err)
}

// Update is datastore.Store's.
func (o *Operation) Update(ctx context.Context, object *model.Object) (*model.Object, error) {
	stored, err := o.store.Update(ctx, object)
	return o.wrote(object.Key, stored, err)
}

func (o *Operation) wrote(key model.Key, stored *model.Object, err error) (*model.Object, error) {
	if err != nil {
		o.failed(key)
		return nil, err
	}
	o.remember(stored)
	if o.kinds[key.Kind] {
		o.tables.Wrote(stored)
	}
	return stored, nil
}

// Delete is datastore.Store's.
func (o *Operation) Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error) {
	was, err := o.store.Delete(ctx, key, revision)
	if err != nil {
		o.failed(key)
		return nil, err
	}
	o.Cache.mu.Lock()
	defer o.Cache.mu.Unlock()
	delete(o.own, key)
	if o.kinds[key.Kind] {
		o.gone[key] = was.Revision
	}
	return was, nil
}
