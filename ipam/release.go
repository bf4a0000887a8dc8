package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// Release is a request to release one address.
type Release struct {
	Address netip.Addr
	// Handle and Sequence, if set, must match the assignment; a mismatch shows that the address was assigned again
	// since.
	Handle   string
	Sequence *uint64
}

// Released is the result of a release.
type Released struct {
	// Addresses are released: free now, or after the cooldown.
	Addresses []netip.Addr
	// NotAssigned are requested addresses that were not assigned.
	NotAssigned []netip.Addr
}

// ReleaseIPs releases addresses, block by block. An error (a *MismatchError if handle or sequence number differ)
// concerns all addresses of its block; those of other blocks are released nevertheless.
func (a *Allocator) ReleaseIPs(ctx context.Context, releases ...Release) (Released, error) {
	var result Released
	s, err := a.begin(ctx)
	if err != nil {
		return result, fmt.Errorf("release addresses: %w", err)
	}
	pools, err := s.readPools(ctx)
	if err != nil {
		return result, fmt.Errorf("release addresses: %w", err)
	}
	groups, unknown, err := s.byBlock(ctx, pools, releases)
	if err != nil {
		return result, fmt.Errorf("release addresses: %w", err)
	}
	result.NotAssigned = unknown
	var errs []error
	for _, cidr := range sortedBlocks(groups) {
		if err := s.releaseGroup(ctx, pools, cidr, groups[cidr], &result); err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", addressesOf(groups[cidr]), err))
		}
	}
	return result, errors.Join(errs...)
}

func addressesOf(group []Release) []netip.Addr {
	list := make([]netip.Addr, len(group))
	for i, r := range group {
		list[i] = r.Address
	}
	return list
}

// byBlock groups releases by the block that contains the address. For addresses outside of all pools it searches all
// blocks.
func (s session) byBlock(
	ctx context.Context, pools []pool, releases []Release,
) (groups map[netip.Prefix][]Release, unknown []netip.Addr, err error) {
	groups = map[netip.Prefix][]Release{}
	for _, r := range releases {
		if err := checkHandle(r.Handle); err != nil {
			return nil, nil, err
		}
		cidr, ok, err := s.findBlock(ctx, pools, r.Address)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			unknown = append(unknown, r.Address)
			continue
		}
		groups[cidr] = append(groups[cidr], r)
	}
	return groups, unknown, nil
}

func (s session) findBlock(ctx context.Context, pools []pool, addr netip.Addr) (netip.Prefix, bool, error) {
	if !addr.IsValid() {
		return netip.Prefix{}, false, errors.New("an address is missing")
	}
	if p := poolOf(pools, addr); p != nil {
		return blockOf(addr, p.blockBits), true, nil
	}
	objects, _, err := s.store.List(ctx, model.KindIPAMBlock, "")
	if err != nil {
		return netip.Prefix{}, false, fmt.Errorf("read blocks: %w", err)
	}
	for _, o := range objects {
		if cidr, ok := o.Key.Block(); ok && cidr.Contains(addr) {
			return cidr, true, nil
		}
	}
	return netip.Prefix{}, false, nil
}

func sortedBlocks[V any](m map[netip.Prefix]V) []netip.Prefix {
	return slices.SortedFunc(maps.Keys(m), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
}

// releaseGroup releases addresses of one block.
func (s session) releaseGroup(
	ctx context.Context, pools []pool, cidr netip.Prefix, group []Release, result *Released,
) error {
	var plan releasePlan
	var b heldBlock
	err := repeat(ctx, "release in block "+cidr.String(), func() error {
		var err error
		b, err = s.getBlock(ctx, cidr)
		if errors.Is(err, model.ErrNotFound) {
			plan = releasePlan{missing: addressesOf(group)}
			return nil
		}
		if err != nil {
			return err
		}
		if plan, err = planRelease(b.Block, group); err != nil || len(plan.ordinals) == 0 {
			return err
		}
		for _, o := range plan.ordinals {
			stamp(b.Block, o)
		}
		release(b.Block, plan.ordinals, s.now(), s.cooldown)
		return s.putOrDelete(ctx, b)
	})
	if err != nil {
		return err
	}
	result.NotAssigned = append(result.NotAssigned, plan.missing...)
	for _, o := range plan.ordinals {
		result.Addresses = append(result.Addresses, addressAt(cidr, o))
	}
	if len(plan.ordinals) == 0 {
		return nil
	}
	for _, handle := range slices.Sorted(maps.Keys(plan.handles)) {
		s.forget(ctx, handle, cidr, plan.handles[handle])
	}
	s.keepConsistent(ctx, pools, b)
	return nil
}

// releasePlan is the effect of a release in one block.
type releasePlan struct {
	ordinals []int
	missing  []netip.Addr
	handles  map[string]int // number of addresses that each handle loses
}

// planRelease checks a release against the block.
func planRelease(b *model.Block, group []Release) (releasePlan, error) {
	plan := releasePlan{handles: map[string]int{}}
	for _, r := range group {
		o := ordinalOf(b.CIDR, r.Address)
		i := b.Allocations[o]
		if i == nil || b.Attributes[*i].ReleasedAt != nil {
			plan.missing = append(plan.missing, r.Address)
			continue
		}
		handle := handleOf(b.Attributes[*i])
		if r.Handle != "" && r.Handle != handle {
			return plan, &MismatchError{Address: r.Address, What: "handle", Want: r.Handle, Have: handle}
		}
		if have := sequenceOf(b, o); r.Sequence != nil && *r.Sequence != have {
			return plan, &MismatchError{Address: r.Address, What: "sequence number", Want: fmt.Sprint(*r.Sequence),
				Have: fmt.Sprint(have)}
		}
		if !slices.Contains(plan.ordinals, o) {
			plan.ordinals = append(plan.ordinals, o)
			plan.handles[handle]++
		}
	}
	slices.Sort(plan.ordinals)
	return plan, nil
}

// MismatchError reports that an address is assigned to another handle, or with another sequence number, than the caller
// expects.
type MismatchError struct {
	Address          netip.Addr
	What, Want, Have string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s was assigned to somebody else since: its %s is %q, not %q", e.Address, e.What, e.Have,
		e.Want)
}

// putOrDelete stores a block after a release. It deletes an empty block without owner.
func (s session) putOrDelete(ctx context.Context, b heldBlock) error {
	if ownerOf(b.Block) == "" && isEmpty(b.Block) {
		return s.deleteBlock(ctx, b)
	}
	_, err := s.putBlock(ctx, b)
	return gone(err)
}

// forget lowers the count of a handle after a release. If that fails the count is too high; the next release by this
// handle corrects it.
func (s session) forget(ctx context.Context, handle string, cidr netip.Prefix, n int) {
	ctx, cancel := cleanup(ctx)
	defer cancel()
	if err := s.lowerHandle(ctx, handle, cidr, n); err != nil {
		s.log.Warn("handle counts too many addresses", zap.String("handle", handle), zap.Stringer("block", cidr),
			zap.Error(err))
	}
}

// keepConsistent releases an emptied block whose pool no longer selects the node that owns it.
func (s session) keepConsistent(ctx context.Context, pools []pool, b heldBlock) {
	owner, ok := parseOwner(ownerOf(b.Block))
	p := poolOf(pools, b.CIDR.Addr())
	if !ok || owner.Type != model.AffinityHost || p == nil || !isEmpty(b.Block) {
		return
	}
	labels, found, err := s.labelsOf(ctx, owner.Name)
	if err != nil || !found {
		return
	}
	if selected, err := selects(p.object.Spec.NodeSelector, labels); err != nil || selected {
		return
	}
	err = repeat(ctx, "release block "+b.CIDR.String(), func() error {
		return s.releaseAffinity(ctx, owner, b.CIDR, true, nil)
	})
	if err != nil && !errors.Is(err, ErrNotEmpty) && !errors.Is(err, model.ErrNotFound) {
		s.log.Warn("block in a pool that no longer selects its node is kept", zap.Stringer("block", b.CIDR),
			zap.Error(err))
	}
}

// ReleaseByHandle releases all addresses of a handle, and deletes the handle. The error is ErrNotFound if the handle
// does not exist, which most callers treat as success. It corrects counts that an interrupted operation left behind.
func (a *Allocator) ReleaseByHandle(ctx context.Context, handle string) ([]netip.Addr, error) {
	if handle == "" {
		return nil, errors.New("release by handle: the handle is missing")
	}
	s, err := a.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("release handle %s: %w", handle, err)
	}
	_, h, err := s.getHandle(ctx, handle)
	if err != nil {
		return nil, err
	}
	var pools []pool
	if pools, err = s.readPools(ctx); err != nil {
		return nil, err
	}
	var released []netip.Addr
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(h.Block)) {
		cidr, err := netip.ParsePrefix(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("handle %s names block %q, want ADDRESS/LENGTH: %w", handle, name, err))
			continue
		}
		addrs, err := s.releaseHandleIn(ctx, pools, handle, cidr)
		released = append(released, addrs...)
		if err != nil {
			errs = append(errs, fmt.Errorf("release handle %s in block %s: %w", handle, cidr, err))
		}
	}
	return released, errors.Join(errs...)
}

// releaseHandleIn releases the addresses of a handle in one block.
func (s session) releaseHandleIn(
	ctx context.Context, pools []pool, handle string, cidr netip.Prefix,
) ([]netip.Addr, error) {
	var ordinals []int
	var b heldBlock
	err := repeat(ctx, "release in block "+cidr.String(), func() error {
		var err error
		ordinals = nil
		if b, err = s.getBlock(ctx, cidr); err != nil {
			if errors.Is(err, model.ErrNotFound) {
				return nil
			}
			return err
		}
		if ordinals = ordinalsOf(b.Block, handle); len(ordinals) == 0 {
			return nil
		}
		release(b.Block, ordinals, s.now(), s.cooldown)
		return s.putOrDelete(ctx, b)
	})
	if err != nil {
		return nil, err
	}
	var released []netip.Addr
	for _, o := range ordinals {
		released = append(released, addressAt(cidr, o))
	}
	if len(ordinals) > 0 {
		s.forget(ctx, handle, cidr, len(ordinals))
		s.keepConsistent(ctx, pools, b)
	}
	return released, s.settleHandle(ctx, handle, cidr)
}
