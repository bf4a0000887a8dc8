package ipam

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// What a garbage collector needs to know and to do. It decides what is to go; nothing here decides that.

// Allocation is one assigned address of a block.
type Allocation struct {
	Address netip.Addr
	Assignment
	// Windows is whether a Windows node keeps the address for itself: it is neither in use nor garbage.
	Windows bool
}

// Allocations visits the assigned addresses of a block in ascending order. Addresses that cool down are left out.
func Allocations(b *model.Block) iter.Seq[Allocation] {
	return func(yield func(Allocation) bool) {
		for o, i := range b.Allocations {
			if i == nil || *i < 0 || *i >= len(b.Attributes) || b.Attributes[*i].ReleasedAt != nil {
				continue
			}
			attr := b.Attributes[*i]
			a := Allocation{Address: addressAt(b.CIDR, o), Windows: strings.EqualFold(handleOf(attr), windowsReserved),
				Assignment: Assignment{Handle: handleOf(attr), Attrs: attr.Secondary, Sequence: sequenceOf(b, o)}}
			if !yield(a) {
				return
			}
		}
	}
}

// OwnerOf is who a block belongs to. ok is false for a block that belongs to nobody.
func OwnerOf(b *model.Block) (owner Owner, ok bool) { return parseOwner(ownerOf(b)) }

// Empty reports whether a block may be given up: nothing in it is assigned or cools down, except what Windows keeps.
func Empty(b *model.Block) bool { return isEmpty(b) }

// CoolingSince returns when the first of the addresses that cool down in a block was released. ok is false if none
// cools down.
func CoolingSince(b *model.Block) (first time.Time, ok bool) {
	for _, i := range b.Allocations {
		if i == nil {
			continue
		}
		released := b.Attributes[*i].ReleasedAt
		if released != nil && (!ok || released.Time.Before(first)) {
			first, ok = released.Time, true
		}
	}
	return first, ok
}

// Cooldown returns how long a released address must not be assigned again.
func (a *Allocator) Cooldown(ctx context.Context) (time.Duration, error) {
	s, err := a.begin(ctx)
	return s.cooldown, err
}

// CollectCold stores a block in which addresses have cooled down with these addresses free, and returns how many there
// were. Others do the same when they assign or release in the block; nobody does in a block that stays as it is. A
// block that is gone has none.
func (a *Allocator) CollectCold(ctx context.Context, cidr netip.Prefix) (freed int, err error) {
	s, err := a.begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("collect in block %s: %w", cidr, err)
	}
	err = retry(ctx, "collect in block "+cidr.String(), func() error {
		o, err := s.store.Get(ctx, model.BlockKey(cidr))
		if err != nil {
			return wrap("read block %s", cidr.String(), err)
		}
		was, ok := o.Value.(*model.Block)
		before := 0
		if ok {
			before = len(was.Unallocated)
		}
		b, err := s.hold(o)
		if err != nil {
			return err
		}
		if freed = len(b.Unallocated) - before; freed == 0 {
			return nil
		}
		return s.putOrDelete(ctx, b)
	})
	if errors.Is(err, model.ErrNotFound) {
		return 0, nil
	}
	return freed, err
}

// SettleHandle puts the counts of a handle right: an operation that was interrupted leaves one that is too high.
// What is assigned stays assigned; a handle that counts nothing goes. One that is gone is fine.
func (a *Allocator) SettleHandle(ctx context.Context, id string) error {
	s, err := a.begin(ctx)
	if err != nil {
		return fmt.Errorf("settle handle %s: %w", id, err)
	}
	_, h, err := s.getHandle(ctx, id)
	if errors.Is(err, model.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(h.Block)) {
		cidr, err := netip.ParsePrefix(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("handle %s names block %q, want ADDRESS/LENGTH: %w", id, name, err))
			continue
		}
		errs = append(errs, s.settleHandle(ctx, id, cidr))
	}
	if len(h.Block) == 0 {
		errs = append(errs, s.dropEmptyHandle(ctx, id))
	}
	return errors.Join(errs...)
}

// dropEmptyHandle deletes a handle that counts nothing at all.
func (s session) dropEmptyHandle(ctx context.Context, id string) error {
	return retry(ctx, "settle handle "+id, func() error {
		o, h, err := s.getHandle(ctx, id)
		if errors.Is(err, model.ErrNotFound) || err == nil && len(h.Block) > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		return s.putHandle(ctx, o, h)
	})
}

// ReservedIn is how many addresses of a network reservations keep from being assigned. What cannot be read of them is
// left out.
func ReservedIn(network netip.Prefix, reservations iter.Seq[*v3.IPReservation]) *big.Int {
	var prefixes []netip.Prefix
	for r := range reservations {
		for _, text := range r.Spec.ReservedCIDRs {
			if p, err := parseReserved(text); err == nil {
				prefixes = append(prefixes, p)
			}
		}
	}
	return newReservations(prefixes).sizeIn(network)
}
