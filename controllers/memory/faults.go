package memory

import (
	"context"
	"errors"
	"sync"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// errKilled is the error of every operation after the end.
var errKilled = errors.New("the process was killed")

// CrashingStore is a store of a process that is killed after a number of writes: the last write takes effect but
// returns an error, and every later operation fails.
type CrashingStore struct {
	datastore.Store
	// WritesLeft is the number of writes before the end.
	WritesLeft int
	// Dead is closed at the end.
	Dead chan struct{}

	mu   sync.Mutex
	dead bool
}

// NewCrashingStore returns a view of a store that ends after this many writes.
func NewCrashingStore(s datastore.Store, writes int) *CrashingStore {
	return &CrashingStore{Store: s, WritesLeft: writes, Dead: make(chan struct{})}
}

// write does one write.
func (m *CrashingStore) write(do func() (*model.Object, error)) (*model.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, errKilled
	}
	o, err := do()
	if err != nil {
		return o, err
	}
	if m.WritesLeft--; m.WritesLeft <= 0 {
		m.dead = true
		close(m.Dead)
		return nil, errKilled
	}
	return o, nil
}

// Killed reports whether the end has come.
func (m *CrashingStore) Killed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// Get implements datastore.Store.
func (m *CrashingStore) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	if m.Killed() {
		return nil, errKilled
	}
	return m.Store.Get(ctx, key)
}

// Create implements datastore.Store.
func (m *CrashingStore) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	return m.write(func() (*model.Object, error) { return m.Store.Create(ctx, o) })
}

// Update implements datastore.Store.
func (m *CrashingStore) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	return m.write(func() (*model.Object, error) { return m.Store.Update(ctx, o) })
}

// Delete implements datastore.Store.
func (m *CrashingStore) Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error) {
	return m.write(func() (*model.Object, error) { return m.Store.Delete(ctx, key, revision) })
}
