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

// Mortal is a store for a process that is killed after a number of writes: the last write takes effect but returns an
// error, and every later operation fails.
type Mortal struct {
	datastore.Store
	// Lives is the number of writes before the end.
	Lives int
	// Dead is closed at the end.
	Dead chan struct{}

	mu   sync.Mutex
	dead bool
}

// NewMortal returns a view of a store that ends after the write number lives.
func NewMortal(s datastore.Store, lives int) *Mortal {
	return &Mortal{Store: s, Lives: lives, Dead: make(chan struct{})}
}

// write does one write.
func (m *Mortal) write(do func() (*model.Object, error)) (*model.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, errKilled
	}
	o, err := do()
	if err != nil {
		return o, err
	}
	if m.Lives--; m.Lives <= 0 {
		m.dead = true
		close(m.Dead)
		return nil, errKilled
	}
	return o, nil
}

// Killed reports whether the end has come.
func (m *Mortal) Killed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// Get implements datastore.Store.
func (m *Mortal) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	if m.Killed() {
		return nil, errKilled
	}
	return m.Store.Get(ctx, key)
}

// Create implements datastore.Store.
func (m *Mortal) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	return m.write(func() (*model.Object, error) { return m.Store.Create(ctx, o) })
}

// Update implements datastore.Store.
func (m *Mortal) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	return m.write(func() (*model.Object, error) { return m.Store.Update(ctx, o) })
}

// Delete implements datastore.Store.
func (m *Mortal) Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error) {
	return m.write(func() (*model.Object, error) { return m.Store.Delete(ctx, key, revision) })
}
