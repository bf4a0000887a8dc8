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

// Queries and operations for a garbage collector, which decides itself what to release.

// Allocation is one assigned address of a block.
type Allocation struct {
	Address netip.Addr
	Assignment
	// Windows is set for an address that a Windows node reserves: it is neither in use nor garbage.
	Windows bool
}

// Allocations visits the assigned addresses of a block in ascending order, without those that are cooling down.
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

// Find returns the assignment of an address in its block. ok is false if it is not assigned; then released is the time
// of its release while it cools down, else zero.
func Find(b *model.Block, addr netip.Addr) (a Allocation, released time.Time, ok bool) {
	for x := range Allocations(b) {
		if x.Address == addr {
			return x, time.Time{}, true
		}
	}
	if o := ordinalOf(b.CIDR, addr); b.CIDR.Contains(addr) && o < len(b.Allocations) {
		if i := b.Allocations[o]; i != nil && *i >= 0 && *i < len(b.Attributes) && b.Attributes[*i].ReleasedAt != nil {
			released = b.Attributes[*i].ReleasedAt.Time
		}
	}
	return Allocation{}, released, false
}

// OwnerOf returns the owner of a block. ok is false for a block without owner.
func OwnerOf(b *model.Block) (owner Owner, ok bool) { return parseOwner(ownerOf(b)) }

// Empty reports whether a block may be released: no address is assigned or cooling down, except those that Windows
// reserves.
func Empty(b *model.Block) bool { return isEmpty(b) }

// CoolingSince returns the earliest release time of the addresses that are cooling down in a block. ok is false if
// there are none.
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

// Cooldown returns the configured time between the release of an address and its next assignment.
func (a *Allocator) Cooldown(ctx context.Context) (time.Duration, error) {
	s, err := a.begin(ctx)
	return s.cooldown, err
}

// CollectCold frees the addresses of a block whose cooldown has passed, stores the block, and returns their number.
// Assignments and releases in a block do the same; CollectCold serves blocks without either. It deletes a block that
// has neither owner nor addresses. It returns 0 for a missing block.
func (a *Allocator) CollectCold(ctx context.Context, cidr netip.Prefix) (freed int, err error) {
	s, err := a.begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("collect in block %s: %w", cidr, err)
	}
	err = repeat(ctx, "collect in block "+cidr.String(), func() error {
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
		freed = len(b.Unallocated) - before
		if freed == 0 && (ownerOf(b.Block) != "" || !isEmpty(b.Block)) {
			return nil
		}
		return s.putOrDelete(ctx, b)
	})
	if errors.Is(err, model.ErrNotFound) {
		return 0, nil
	}
	return freed, err
}

// SettleHandle corrects the counts of a handle, which an interrupted operation leaves too high. It releases no address.
// A handle whose counts are all zero is deleted. A missing handle is no error.
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

// dropEmptyHandle deletes a handle whose counts are all zero.
func (s session) dropEmptyHandle(ctx context.Context, id string) error {
	return repeat(ctx, "settle handle "+id, func() error {
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

// ReservedIn returns the number of addresses of a network that the reservations exclude from assignment. It ignores
// malformed entries.
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
