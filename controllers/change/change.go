// Package change writes a controller's decisions: single objects, each with compare-and-swap.
package change

import (
	"context"
	"errors"
	"fmt"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Change is one object that is to be created, replaced or deleted.
type Change struct {
	// Old is what the decision is about, nil for an object that does not exist.
	Old *model.Object
	// New is what is to be there instead, nil if the object is to go. It must not share memory with Old.
	New *model.Object
	// Reason says why, for the log.
	Reason string
	// Unless, if set, is called right before the write: the change is dropped if it returns true. It reads what the
	// decision rests on again, from where the truth is.
	Unless func(context.Context) (bool, error)
}

// Key returns the key of the object.
func (c Change) Key() model.Key {
	if c.New != nil {
		return c.New.Key
	}
	return c.Old.Key
}

// Verb says what happens to the object: create, update or delete.
func (c Change) Verb() string {
	switch {
	case c.Old == nil:
		return "create"
	case c.New == nil:
		return "delete"
	}
	return "update"
}

// Apply makes the change. done is false if somebody else has changed the object since it was read, or if the reason
// for the change is gone: the reader of the object will see what is there now, and decide again.
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
