package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// AssignedTo lists what a handle has in the blocks of a host, with the prefix length of the block, whether or not there
// is a handle that counts it.
func (a *Allocator) AssignedTo(ctx context.Context, host, handle string) ([]netip.Prefix, error) {
	var found []netip.Prefix
	err := a.eachOwnBlock(ctx, host, func(b heldBlock) {
		for _, o := range ordinalsOf(b.Block, handle) {
			found = append(found, netip.PrefixFrom(addressAt(b.CIDR, o), b.CIDR.Bits()))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("addresses of handle %s in blocks of host %s: %w", handle, host, err)
	}
	return found, nil
}

// HostHandles lists the handles that have addresses in the blocks of a host, each with the attributes of one of them.
func (a *Allocator) HostHandles(ctx context.Context, host string) (map[string]map[string]string, error) {
	handles := map[string]map[string]string{}
	err := a.eachOwnBlock(ctx, host, func(b heldBlock) {
		for _, i := range b.Allocations {
			if i == nil || b.Attributes[*i].ReleasedAt != nil {
				continue
			}
			if h := handleOf(b.Attributes[*i]); h != "" && h != windowsReserved {
				handles[h] = b.Attributes[*i].Secondary
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("handles in blocks of host %s: %w", host, err)
	}
	return handles, nil
}

// eachOwnBlock visits the blocks of a host. One that is gone meanwhile is passed over.
func (a *Allocator) eachOwnBlock(ctx context.Context, host string, visit func(heldBlock)) error {
	s, err := a.begin(ctx)
	if err != nil {
		return err
	}
	for _, family := range []Family{IPv4, IPv6} {
		blocks, err := s.affineBlocks(ctx, Host(host), family)
		if err != nil {
			return err
		}
		for _, cidr := range blocks {
			b, err := s.getBlock(ctx, cidr)
			if errors.Is(err, model.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			visit(b)
		}
	}
	return nil
}

// CountHandle makes a handle count all that it has in a block: an assignment whose process died before the handle was
// written leaves addresses that it does not name. Without such addresses nothing is written.
func (a *Allocator) CountHandle(ctx context.Context, handle string, block netip.Prefix) error {
	_, err := a.countHandle(ctx, handle, block)
	return err
}

func (a *Allocator) countHandle(ctx context.Context, handle string, block netip.Prefix) (written int, err error) {
	s, err := a.begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("count in handle %s: %w", handle, err)
	}
	err = retry(ctx, "count in handle "+handle, func() error {
		b, err := s.getBlock(ctx, block.Masked())
		if errors.Is(err, model.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		real, counted := len(ordinalsOf(b.Block, handle)), 0
		_, h, err := s.getHandle(ctx, handle)
		if err == nil {
			counted = h.Block[b.CIDR.String()]
		} else if !errors.Is(err, model.ErrNotFound) {
			return err
		}
		if counted >= real {
			return nil
		}
		written = 1
		return s.raiseHandle(ctx, handle, b.CIDR, real-counted)
	})
	return written, err
}

// CountHandles is CountHandle for each handle that has addresses in blocks of a host, but for those that are complete.
// It returns how many it has written.
func (a *Allocator) CountHandles(ctx context.Context, host string, complete func(handle string) bool) (int, error) {
	todo := map[string][]netip.Prefix{}
	err := a.eachOwnBlock(ctx, host, func(b heldBlock) {
		seen := map[string]bool{windowsReserved: true, "": true}
		for _, i := range b.Allocations {
			if i == nil || b.Attributes[*i].ReleasedAt != nil {
				continue
			}
			h := handleOf(b.Attributes[*i])
			if !seen[h] && b.Attributes[*i].Secondary["type"] == "" && !complete(h) {
				todo[h] = append(todo[h], b.CIDR)
			}
			seen[h] = true
		}
	})
	n := 0
	for handle, blocks := range todo {
		for _, block := range blocks {
			counted, countErr := a.countHandle(ctx, handle, block)
			n += counted
			err = errors.Join(err, countErr)
		}
	}
	return n, err
}

// ReleaseFromHost is ReleaseByHandle that also finds what the handle has in the blocks of a host without being counted.
// That there is nothing to release is no error.
func (a *Allocator) ReleaseFromHost(ctx context.Context, host, handle string) ([]netip.Addr, error) {
	released, err := a.ReleaseByHandle(ctx, handle)
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return released, err
	}
	rest, err := a.AssignedTo(ctx, host, handle)
	if err != nil {
		return released, err
	}
	var releases []Release
	for _, p := range rest {
		releases = append(releases, Release{Address: p.Addr(), Handle: handle})
	}
	if len(releases) == 0 {
		return released, nil
	}
	more, err := a.ReleaseIPs(ctx, releases...)
	return append(released, more.Addresses...), err
}

// Ahead claims a further block for a host if its blocks that could serve the request have fewer than least free
// addresses in a family, so that the next assignments need not wait for one. It returns the block, an invalid one if
// none was claimed, and whether there were enough without. The limit of blocks holds, and pools that have no free block
// left are no error.
func (a *Allocator) Ahead(
	ctx context.Context, r Request, family Family, least int,
) (block netip.Prefix, enough bool, err error) {
	s, err := a.begin(ctx)
	if err != nil {
		return block, false, err
	}
	x := &search{session: s, request: &r, owner: r.owner(), result: &Assigned{Family: family}, ahead: true}
	if err := x.prepare(ctx); err != nil {
		return block, false, err
	}
	free := 0
	for _, cidr := range x.own {
		b, err := s.getBlock(ctx, cidr)
		if errors.Is(err, model.ErrNotFound) {
			continue
		}
		if err != nil {
			return block, false, err
		}
		if free += freeIn(b.Block, x.reserved.has); free >= least {
			return block, true, nil
		}
	}
	if x.owned >= x.limit || !s.config.AutoAllocateBlocks {
		return block, false, nil
	}
	b, err := x.claimNew(ctx)
	if errors.Is(err, errNoBlock) {
		return block, false, nil
	}
	if err != nil {
		return block, false, err
	}
	return b.CIDR, false, nil
}
