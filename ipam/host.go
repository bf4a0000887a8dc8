package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// AssignedTo lists the addresses of a handle in the blocks of a host, with the prefix length of the block, whether or
// not the handle counts them.
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

// HostHandles lists the handles with addresses in the blocks of a host, each with the attributes of one of its
// addresses.
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

// eachOwnBlock visits the blocks of a host. It skips a block that is deleted meanwhile.
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

// CountHandle makes a handle count all its addresses in a block. A process that dies before it writes the handle leaves
// uncounted addresses. If all are counted, nothing is written.
func (a *Allocator) CountHandle(ctx context.Context, handle string, block netip.Prefix) error {
	_, err := a.countHandle(ctx, handle, block)
	return err
}

func (a *Allocator) countHandle(ctx context.Context, handle string, block netip.Prefix) (written int, err error) {
	s, err := a.begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("count in handle %s: %w", handle, err)
	}
	err = repeat(ctx, "count in handle "+handle, func() error {
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

// CountHandles calls CountHandle for each handle with addresses in blocks of a host, except the complete ones. It
// returns the number of handles written.
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

// ReleaseFromHost is ReleaseByHandle that also releases uncounted addresses of the handle in the blocks of a host.
// Nothing to release is no error.
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

// ahead claims a further block for a host if the blocks that could serve the request have fewer than least free
// addresses in a family. The next assignments then need not wait for a claim. It returns the claimed block (invalid if
// none) and whether there were enough addresses without it. The block limit applies. Pools without a free block are no
// error.
func (a *Allocator) ahead(
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
