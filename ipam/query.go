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

// IPsByHandle lists the addresses of a handle in ascending order. The error is ErrNotFound if there is no such handle.
// Blocks that cannot be read are passed over.
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

// Assignment is what is known of an assigned address.
type Assignment struct {
	Handle   string
	Attrs    map[string]string
	Sequence uint64
}

// CoolingError tells that an address was released a short while ago and is not assigned yet again.
type CoolingError struct {
	Address    netip.Addr
	ReleasedAt time.Time
}

func (e *CoolingError) Error() string {
	return fmt.Sprintf("%s was released at %s and cools down", e.Address, e.ReleasedAt.UTC().Format(time.RFC3339))
}

// GetAssignmentAttributes tells to whom an address is assigned. As in Calico it looks at enabled pools only.
// The error is ErrNotFound for an address that is not assigned, and a *CoolingError for one that cools down.
func (a *Allocator) GetAssignmentAttributes(ctx context.Context, addr netip.Addr) (Assignment, error) {
	s, err := a.begin(ctx)
	if err != nil {
		return Assignment{}, fmt.Errorf("attributes of %s: %w", addr, err)
	}
	pools, err := s.readPools(ctx)
	if err != nil {
		return Assignment{}, fmt.Errorf("attributes of %s: %w", addr, err)
	}
	pools = slices.DeleteFunc(pools, func(p pool) bool { return !enabled(p.object) })
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

// ReleaseAffinity gives up a block of an owner. Addresses in it stay assigned, the block then belongs to nobody; with
// mustBeEmpty that is refused with ErrNotEmpty. ErrNotFound: the owner has no such block.
func (a *Allocator) ReleaseAffinity(ctx context.Context, owner Owner, cidr netip.Prefix, mustBeEmpty bool) error {
	s, err := a.begin(ctx)
	if err != nil {
		return fmt.Errorf("release block %s of %s: %w", cidr, owner, err)
	}
	return retry(ctx, "release block "+cidr.String(), func() error {
		return s.releaseAffinity(ctx, owner, cidr, mustBeEmpty, nil)
	})
}

// ReleaseHostAffinities gives up all blocks of an owner. It goes on after an error and returns all of them; that a
// block is gone or belongs to another owner by then is none.
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
