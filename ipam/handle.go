package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// A handle counts what its owner has in each block. It is raised before an address is assigned and lowered after one is
// released: a crash in between leaves a count that is too high, never an address that its handle does not name.

// getHandle reads a handle as a private copy.
func (s session) getHandle(ctx context.Context, id string) (*model.Object, *model.Handle, error) {
	o, err := s.store.Get(ctx, model.HandleKey(id))
	if err != nil {
		return nil, nil, fmt.Errorf("read handle %s: %w", id, err)
	}
	if _, ok := o.Value.(*model.Handle); !ok || o.Err != nil {
		return nil, nil, fmt.Errorf("handle %s cannot be read, repair or delete it: %w", id, o.Err)
	}
	o = o.Clone()
	h := o.Value.(*model.Handle)
	if h.Block == nil {
		h.Block = map[string]int{}
	}
	return o, h, nil
}

// raiseHandle counts n more addresses in a block. Without a handle (empty) there is nothing to count.
func (s session) raiseHandle(ctx context.Context, id string, cidr netip.Prefix, n int) error {
	if id == "" {
		return nil
	}
	return retry(ctx, "count in handle "+id, func() error {
		// Nearly every handle is a new container's: it is created first, and read if it exists.
		value := &model.Handle{Block: map[string]int{cidr.String(): n}}
		_, err := s.store.Create(ctx, model.NewObject(model.HandleKey(id), value))
		if !errors.Is(err, model.ErrExists) {
			return wrap("create handle %s", id, err)
		}
		o, h, err := s.getHandle(ctx, id)
		if err != nil {
			return gone(err)
		}
		h.Block[cidr.String()] += n
		_, err = s.store.Update(ctx, o)
		return wrap("write handle %s", id, gone(err))
	})
}

// lowerHandle counts n fewer addresses in a block; what counts nothing any more is removed.
func (s session) lowerHandle(ctx context.Context, id string, cidr netip.Prefix, n int) error {
	if id == "" {
		return nil
	}
	return retry(ctx, "count in handle "+id, func() error {
		o, h, err := s.getHandle(ctx, id)
		if errors.Is(err, model.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Block[cidr.String()] -= n; h.Block[cidr.String()] <= 0 {
			delete(h.Block, cidr.String())
		}
		return s.putHandle(ctx, o, h)
	})
}

// putHandle stores a handle, or deletes it if it counts nothing.
func (s session) putHandle(ctx context.Context, o *model.Object, h *model.Handle) error {
	var err error
	if len(h.Block) == 0 {
		_, err = s.store.Delete(ctx, o.Key, o.Revision)
	} else {
		_, err = s.store.Update(ctx, o)
	}
	if errors.Is(err, model.ErrNotFound) {
		return nil
	}
	return wrap("write handle %s", o.Key.Name, err)
}

// settleHandle removes what a handle counts too much in a block, left by an operation that was interrupted.
//
// An assignment that is under way has been counted but is not in the block yet. Writing the block without a change
// makes it fail and start anew, and the handle is only written if nothing was counted since before the block was read.
func (s session) settleHandle(ctx context.Context, id string, cidr netip.Prefix) error {
	return retry(ctx, "settle handle "+id, func() error {
		o, h, err := s.getHandle(ctx, id)
		if errors.Is(err, model.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		counted := h.Block[cidr.String()]
		b, err := s.getBlock(ctx, cidr)
		real := 0
		switch {
		case errors.Is(err, model.ErrNotFound):
		case err != nil:
			return err
		default:
			if real = len(ordinalsOf(b.Block, id)); counted > real {
				if _, err := s.putBlock(ctx, b); err != nil {
					return gone(err)
				}
			}
		}
		if counted <= real {
			return nil
		}
		if h.Block = maps.Clone(h.Block); real == 0 {
			delete(h.Block, cidr.String())
		} else {
			h.Block[cidr.String()] = real
		}
		return s.putHandle(ctx, o, h)
	})
}
