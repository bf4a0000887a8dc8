// Package change writes a controller's decisions: single objects, each with compare-and-swap.
package change

import (
	"context"
	"errors"
	"fmt"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Change is the creation, replacement or deletion of one object.
type Change struct {
	// Old is the object that the decision is about, nil if it does not exist.
	Old *model.Object
	// New is the object to store instead, nil for a deletion. It must not share memory with Old.
	New *model.Object
	// Reason is the reason, for the log.
	Reason string
	// Unless, if set, is called right before the write: the change is dropped if it returns true. It reads the basis of
	// the decision again, from its source.
	Unless func(context.Context) (bool, error)
}

// Key returns the key of the object.
func (c Change) Key() model.Key {
	if c.New != nil {
		return c.New.Key
	}
	return c.Old.Key
}

// Verb returns the operation: create, update or delete.
func (c Change) Verb() string {
	switch {
	case c.Old == nil:
		return "create"
	case c.New == nil:
		return "delete"
	}
	return "update"
}

// Apply makes the change. done is false if another writer has changed the object since it was read, or if the reason
// for the change no longer applies: the reader of the object will see the new state, and decide again.
func (c Change) Apply(ctx context.Context, store datastore.Store) (done bool, err error) {
	if c.Unless != nil {
		drop, err := c.Unless(ctx)
		if err != nil {
			return false, fmt.Errorf("%s %s: not done, since the reason cannot be checked: %w", c.Verb(), c.Key(), err)
		}
		if drop {
			return false, nil
		}
	}
	switch {
	case c.Old == nil:
		_, err = store.Create(ctx, c.New)
	case c.New == nil:
		_, err = store.Delete(ctx, c.Old.Key, c.Old.Revision)
	default:
		o := *c.New
		o.Revision = c.Old.Revision
		_, err = store.Update(ctx, &o)
	}
	switch {
	case errors.Is(err, datastore.ErrConflict), errors.Is(err, datastore.ErrExists),
		errors.Is(err, datastore.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}
