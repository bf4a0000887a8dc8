package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// IPsByHandle lists the addresses of a handle in ascending order. The error is ErrNotFound if the handle does not
// exist. It skips unreadable blocks.
func (a *Allocator) IPsByHandle(ctx context.Context, handle string) ([]netip.Addr, error) {
	s, err := a.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("addresses of handle %s: %w", handle, err)
	}
	_, h, err := s.getHandle(ctx, handle)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, name := range slices.Sorted(maps.Keys(h.Block)) {
		cidr, err := netip.ParsePrefix(name)
		if err != nil {
			continue
		}
		b, err := s.getBlock(ctx, cidr)
		if err != nil && ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			continue
		}
		for _, o := range ordinalsOf(b.Block, handle) {
			addrs = append(addrs, addressAt(cidr, o))
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, nil
}

// Assignment describes an assigned address.
type Assignment struct {
	Handle   string
	Attrs    map[string]string
	Sequence uint64
}

// CoolingError reports an address that was released recently and is not assigned again yet.
type CoolingError struct {
	Address    netip.Addr
	ReleasedAt time.Time
}

func (e *CoolingError) Error() string {
	return fmt.Sprintf("%s was released at %s and cools down", e.Address, e.ReleasedAt.UTC().Format(time.RFC3339))
}

// GetAssignmentAttributes returns the assignment of an address. As in Calico it searches enabled pools only. The error
// is ErrNotFound for an address that is not assigned, and a *CoolingError for one that is cooling down.
func (a *Allocator) GetAssignmentAttributes(ctx context.Context, addr netip.Addr) (Assignment, error) {
	s, err := a.begin(ctx)
	if err != nil {
		return Assignment{}, fmt.Errorf("attributes of %s: %w", addr, err)
	}
	pools, err := s.readPools(ctx)
	if err != nil {
		return Assignment{}, fmt.Errorf("attributes of %s: %w", addr, err)
	}
	pools = slices.DeleteFunc(pools, func(p pool) bool { return !p.object.Allocatable() })
	p := poolOf(pools, addr)
	if p == nil {
		return Assignment{}, fmt.Errorf("assignment of %s, which lies in no enabled pool, %w", addr, model.ErrNotFound)
	}
	b, err := s.getBlock(ctx, blockOf(addr, p.blockBits))
	if errors.Is(err, model.ErrNotFound) {
		return Assignment{}, fmt.Errorf("assignment of %s in %s %w", addr, p, model.ErrNotFound)
	}
	if err != nil {
		return Assignment{}, err
	}
	o := ordinalOf(b.CIDR, addr)
	i := b.Allocations[o]
	if i == nil {
		return Assignment{}, fmt.Errorf("assignment of %s in block %s %w", addr, b.CIDR, model.ErrNotFound)
	}
	attr := b.Attributes[*i]
	if attr.ReleasedAt != nil {
		return Assignment{}, &CoolingError{Address: addr, ReleasedAt: attr.ReleasedAt.Time}
	}
	return Assignment{Handle: handleOf(attr), Attrs: attr.Secondary, Sequence: sequenceOf(b.Block, o)}, nil
}

// ClaimBlock makes a block that does not exist the owner's. It is no error if the block exists, whoever owns it.
func (a *Allocator) ClaimBlock(ctx context.Context, owner Owner, cidr netip.Prefix) error {
	s, err := a.begin(ctx)
	if err == nil {
		_, err = s.getOrClaim(ctx, owner, cidr)
	}
	if errors.Is(err, errTaken) {
		return nil
	}
	return err
}

// ReleaseAffinity releases a block of an owner. Its addresses stay assigned, in a block without owner; with mustBeEmpty
// that is refused with ErrNotEmpty. The error is ErrNotFound if the owner has no such block.
func (a *Allocator) ReleaseAffinity(ctx context.Context, owner Owner, cidr netip.Prefix, mustBeEmpty bool) error {
	s, err := a.begin(ctx)
	if err != nil {
		return fmt.Errorf("release block %s of %s: %w", cidr, owner, err)
	}
	return repeat(ctx, "release block "+cidr.String(), func() error {
		return s.releaseAffinity(ctx, owner, cidr, mustBeEmpty, nil)
	})
}

// ReleasePoolAffinities releases the blocks inside a range from their owners, and returns those that stay, without
// owner, until their last address is released. It continues after an error and returns all errors.
func (a *Allocator) ReleasePoolAffinities(ctx context.Context, cidr netip.Prefix) (used []netip.Prefix, err error) {
	objects, _, err := a.store.List(ctx, model.KindBlockAffinity, "")
	if err != nil {
		return nil, fmt.Errorf("read affinities: %w", err)
	}
	var errs []error
	for _, o := range objects {
		aff, ok := o.Key.Affinity()
		if !ok || !within(aff.CIDR, cidr) {
			continue
		}
		err := a.ReleaseAffinity(ctx, Owner{Type: aff.Type, Name: aff.Host}, aff.CIDR, false)
		if err != nil && !errors.Is(err, model.ErrNotFound) && !errors.Is(err, errTaken) {
			errs = append(errs, err)
			continue
		}
		if _, err := a.store.Get(ctx, model.BlockKey(aff.CIDR)); err == nil {
			used = append(used, aff.CIDR)
		}
	}
	return used, errors.Join(errs...)
}

// ReleaseHostAffinities releases all blocks of an owner. It continues after an error and returns all errors. A block
// that is deleted or has another owner by then is no error.
func (a *Allocator) ReleaseHostAffinities(ctx context.Context, owner Owner, mustBeEmpty bool) error {
	var errs []error
	for _, family := range []Family{IPv4, IPv6} {
		blocks, err := a.affineBlocks(ctx, owner, family)
		errs = append(errs, err)
		for _, cidr := range blocks {
			err := a.ReleaseAffinity(ctx, owner, cidr, mustBeEmpty)
			if !errors.Is(err, model.ErrNotFound) && !errors.Is(err, errTaken) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
