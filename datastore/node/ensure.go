package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// attempts is the maximum number of attempts of a write that conflicts.
const attempts = 100

// ensure changes an object, or creates it if it is absent. change is called with the current value, or an empty one. It
// reports whether it changed anything, and may be called again after a conflict.
func ensure[T model.Type](
	ctx context.Context, store datastore.Store, key model.Key, change func(*T) (bool, error),
) (*T, error) {
	for range attempts {
		stored, err := store.Get(ctx, key)
		if errors.Is(err, datastore.ErrNotFound) {
			stored, err = create(ctx, store, key, change)
			if errors.Is(err, datastore.ErrExists) {
				continue
			}
			if err != nil {
				return nil, err
			}
			return stored.Value.(*T), nil
		}
		if err != nil {
			return nil, err
		}
		if stored.Err != nil {
			return nil, fmt.Errorf("the stored object cannot be used; repair or delete it: %w", stored.Err)
		}
		changed := stored.Clone()
		value, ok := changed.Value.(*T)
		if !ok {
			return nil, fmt.Errorf("%s is a %T", key, stored.Value)
		}
		if dirty, err := change(value); err != nil || !dirty {
			return value, err
		}
		updated, err := store.Update(ctx, changed)
		switch {
		case err == nil:
			return updated.Value.(*T), nil
		case !errors.Is(err, datastore.ErrConflict) && !errors.Is(err, datastore.ErrNotFound):
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: others changed it %d times in a row", key, attempts)
}

func create[T model.Type](
	ctx context.Context, store datastore.Store, key model.Key, change func(*T) (bool, error),
) (*model.Object, error) {
	value := new(T)
	if _, err := change(value); err != nil {
		return nil, err
	}
	return store.Create(ctx, model.NewObject(key, value))
}
