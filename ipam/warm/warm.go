// Package warm serves the reads of an allocator or a CNI plugin from memory: from the state tables, and from the blocks
// that this process has last written.
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

// Store has the methods of a datastore.Backend that a Cache uses.
type Store interface {
	datastore.Store
	Keeps(kind model.Kind) bool
}

// Cache is the memory of a process between operations. It is safe for concurrent use.
//
// Its objects may be out of date, since other processes write, too. That is harmless: every write is a compare-and-swap
// on the cached revision. A failed write shows that the stored object has changed; from then on the operation reads the
// datastore. A decision that leads to no write has no such check: the caller calls Refresh and decides again.
type Cache struct {
	store  Store
	tables *datastore.Tables
	kinds  map[model.Kind]bool // kinds in the tables
	keep   func(*model.Object) bool

	mu sync.Mutex
	// own are objects as this process last read or wrote them: of the kinds in the tables until the tables have caught
	// up; of the others as long as keep returns true.
	own map[model.Key]*model.Object
	// gone are objects of the tables' kinds that this process deleted, with the revision of the deletion.
	gone map[model.Key]int64
}

// New returns a Cache of a store, whose tables hold the given kinds. keep selects the other objects to cache; they
// should be few.
func New(store Store, tables *datastore.Tables, kinds []model.Kind, keep func(*model.Object) bool) *Cache {
	c := &Cache{store: store, tables: tables, keep: keep, kinds: map[model.Kind]bool{},
		own: map[model.Key]*model.Object{}, gone: map[model.Key]int64{}}
	for _, k := range kinds {
		c.kinds[k] = true
	}
	return c
}

// Operation is the datastore as one operation sees it: cached until one of its writes fails, or until Refresh. It is
// safe for concurrent use.
type Operation struct {
	*Cache
	mu    sync.Mutex
	stale bool
}

// Begin starts an operation. It drops the objects for which the tables have caught up.
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

// caughtUp reports whether a snapshot is newer than the version of an object that this process deleted.
func caughtUp(s *datastore.Snapshot, key model.Key, deleted int64) bool {
	if have := s.Get(key); have != nil {
		return have.Revision > deleted
	}
	return s.Contains(key, deleted)
}

// Keeps implements datastore.Backend.
func (c *Cache) Keeps(kind model.Kind) bool { return c.store.Keeps(kind) }

func (o *Operation) fresh() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stale
}

// Refresh makes the operation read the datastore. It reports whether it has answered from memory so far.
func (o *Operation) Refresh() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.stale
	o.stale = true
	return !before
}

// failed makes the operation read the datastore, and drops the cached object.
func (o *Operation) failed(key model.Key) {
	o.mu.Lock()
	o.stale = true
	o.mu.Unlock()
	o.Cache.mu.Lock()
	defer o.Cache.mu.Unlock()
	delete(o.own, key)
	delete(o.gone, key)
}

// snapshot returns the tables' snapshot if they hold the kind as the datastore does, else nil.
func (c *Cache) snapshot(kind model.Kind) *datastore.Snapshot {
	if !c.kinds[kind] {
		return nil
	}
	if s := c.tables.Snapshot(); s.InSync() {
		return s
	}
	return nil
}

// Get implements datastore.Store.
func (o *Operation) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	if !o.fresh() {
		found, known := o.remembered(key)
		switch {
		case known && found == nil && key.Kind == model.KindIPPool: // requested by name, and perhaps created just now
		case known && found == nil:
			return nil, &datastore.KeyError{Op: "get", Key: key, Err: datastore.ErrNotFound}
		case known:
			return found, nil
		}
	}
	return o.Read(ctx, key)
}

// Read is Get from the datastore, for a caller that expects an object which no watch has delivered yet.
func (o *Operation) Read(ctx context.Context, key model.Key) (*model.Object, error) {
	found, err := o.store.Get(ctx, key)
	if err == nil {
		o.remember(found)
	}
	return found, err
}

// remembered returns the cached object, nil for one that does not exist, and whether the cache knows.
func (c *Cache) remembered(key model.Key) (*model.Object, bool) {
	s := c.snapshot(key.Kind)
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.own[key]
	if s == nil {
		// Another process may have changed an object of the tables' kinds since, without a conflict here.
		return own, own != nil && own.Err == nil && !c.kinds[key.Kind]
	}
	if own != nil && !s.Contains(key, own.Revision) {
		return own, own.Err == nil
	}
	if at, deleted := c.gone[key]; deleted && !caughtUp(s, key, at) {
		return nil, true
	}
	have := s.Get(key)
	// For an invalid object the tables have the last valid version: read the stored one.
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

// remember caches an object as it is stored.
func (c *Cache) remember(o *model.Object) {
	if c.kinds[o.Key.Kind] {
		o = c.tables.Confirmed(o)
	}
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

// List implements datastore.Store.
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

// written lists the objects of a kind and namespace that this process has recently written or read.
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

// Create implements datastore.Store.
func (o *Operation) Create(ctx context.Context, object *model.Object) (*model.Object, error) {
	stored, err := o.store.Create(ctx, object)
	return o.wrote(object.Key, stored, err)
}

// Update implements datastore.Store.
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

// Delete implements datastore.Store.
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
