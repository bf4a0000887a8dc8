package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// A handle counts the addresses of its owner in each block. The count is raised before an assignment and lowered after
// a release: a crash in between leaves a count that is too high, never an address that its handle does not name.

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

// raiseHandle adds n addresses in a block to the count. An empty handle has no count.
func (s session) raiseHandle(ctx context.Context, id string, cidr netip.Prefix, n int) error {
	if id == "" {
		return nil
	}
	return repeat(ctx, "count in handle "+id, func() error {
		// Nearly every handle is a new container's: create it first, and read it only if it exists.
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

// lowerHandle subtracts n addresses in a block from the count, and removes counts of zero.
func (s session) lowerHandle(ctx context.Context, id string, cidr netip.Prefix, n int) error {
	if id == "" {
		return nil
	}
	return repeat(ctx, "count in handle "+id, func() error {
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

// putHandle stores a handle, or deletes it if all its counts are zero.
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

// settleHandle removes the excess count of a handle in a block, left by an interrupted operation.
//
// An assignment under way is counted but not in the block yet. Writing the unchanged block makes it conflict and start
// again. If its last address has cooled down meanwhile, and it has no owner, it is deleted. The handle is written only
// if its count has not changed since before the block was read.
func (s session) settleHandle(ctx context.Context, id string, cidr netip.Prefix) error {
	return repeat(ctx, "settle handle "+id, func() error {
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
				if err := s.putOrDelete(ctx, b); err != nil {
					return err
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
