package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// errBlockLimit is wrapped by the error for a host that needs another block but has reached its limit.
var errBlockLimit = errors.New("the limit of blocks for one host is reached")

// defaultMaxBlocks is the block limit of a host. It keeps a host that leaks addresses from exhausting a pool.
const defaultMaxBlocks = 20

// AutoAssign assigns free addresses: from the host's own blocks, then from blocks that it claims, then from other
// hosts' blocks unless strict affinity forbids it. IPv6 is skipped if IPv4 fails.
//
// Result and error may both report partial success: the addresses in Result are assigned. A caller that needs all of
// them releases them by the handle. After an error other than a refusal, such as a timeout, the handle may have
// addresses that are not in Result; the caller then releases by the handle, too.
func (a *Allocator) AutoAssign(ctx context.Context, r Request) (Result, error) {
	result := Result{V4: Assigned{Family: IPv4, Requested: r.Num4}, V6: Assigned{Family: IPv6, Requested: r.Num6}}
	if err := r.check(); err != nil {
		return result, fmt.Errorf("assign addresses: %w", err)
	}
	s, err := a.begin(ctx)
	if err != nil {
		return result, fmt.Errorf("assign addresses for host %s: %w", r.Host, err)
	}
	for _, part := range []*Assigned{&result.V4, &result.V6} {
		if part.Requested == 0 {
			continue
		}
		if err := s.assignFamily(ctx, &r, part); err != nil {
			return result, fmt.Errorf("assign %s addresses for host %s: %w", part.Family, r.Host, err)
		}
	}
	return result, nil
}

// search is the state of serving one address family of a request.
type search struct {
	session
	request  *Request
	owner    Owner
	pools    []pool
	reserved reservations
	blocks   []netip.Prefix // blocks of the host at the start
	own      []netip.Prefix // those that were not tried yet
	owned    int
	limit    int
	result   *Assigned
	ahead    bool // only an unclaimed block will do
}

func (s session) assignFamily(ctx context.Context, r *Request, result *Assigned) error {
	x := &search{session: s, request: r, owner: r.owner(), result: result}
	if err := x.prepare(ctx); err != nil {
		return err
	}
	for x.missing() > 0 {
		b, err := x.nextBlock(ctx)
		if errors.Is(err, errNoBlock) {
			break
		}
		if err != nil {
			return err
		}
		if err := x.take(ctx, b.CIDR, &b, s.config.StrictAffinity); err != nil {
			return err
		}
	}
	if x.missing() > 0 && !s.config.StrictAffinity {
		if err := x.borrow(ctx); err != nil {
			return err
		}
	}
	if x.missing() > 0 {
		result.Reasons = x.explain(ctx)
	}
	return nil
}

func (x *search) missing() int { return x.result.Requested - len(x.result.Addresses) }

// prepare reads the pools, the reservations and the host's blocks. It releases blocks in pools that no longer select
// this host.
func (x *search) prepare(ctx context.Context) error {
	var err error
	if x.reserved, err = x.readReservations(ctx); err != nil {
		return err
	}
	labels, err := x.nodeLabels(ctx)
	if err != nil {
		return err
	}
	all, err := x.readPools(ctx)
	if err != nil {
		return err
	}
	if x.pools, err = choosePools(all, x.request, x.result.Family, labels); err != nil {
		return err
	}
	blocks, err := x.affineBlocks(ctx, x.owner, x.result.Family)
	if err != nil {
		return err
	}
	for _, cidr := range blocks {
		if inPools(x.pools, cidr) {
			x.own = append(x.own, cidr)
		} else if p := poolOf(all, cidr.Addr()); p != nil && x.deselected(*p, labels) {
			x.giveUp(ctx, cidr)
		}
	}
	x.blocks, x.owned = x.own, len(x.own)
	x.limit = BlockLimit(x.request.MaxBlocks, x.config.MaxBlocksPerHost)
	return nil
}

// nodeLabels returns the labels of the host's Node. A virtual owner has none.
func (x *search) nodeLabels(ctx context.Context) (map[string]string, error) {
	if x.owner.Type != model.AffinityHost {
		return nil, nil
	}
	labels, found, err := x.labelsOf(ctx, x.owner.Name)
	if err == nil && !found {
		err = fmt.Errorf("node %s is not in the datastore: start manxd on it once, it registers the node: %w",
			x.owner.Name, model.ErrNotFound)
	}
	return labels, err
}

func (a *Allocator) labelsOf(ctx context.Context, host string) (labels map[string]string, found bool, err error) {
	o, err := a.store.Get(ctx, model.ResourceKey(model.KindNode, host))
	if errors.Is(err, model.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read node %s: %w", host, err)
	}
	if o.Metadata() == nil {
		return nil, false, fmt.Errorf("node %s cannot be read: %w", host, o.Err)
	}
	return o.Metadata().GetLabels(), true, nil
}

// affineBlocks lists the blocks with a confirmed or pending affinity of an owner, in key order.
func (a *Allocator) affineBlocks(ctx context.Context, owner Owner, family Family) ([]netip.Prefix, error) {
	objects, _, err := a.store.List(ctx, model.KindBlockAffinity, owner.path())
	if err != nil {
		return nil, fmt.Errorf("read block affinities of %s: %w", owner, err)
	}
	var blocks []netip.Prefix
	for _, o := range objects {
		aff, ok := o.Key.Affinity()
		if ok && aff.String() == owner.String() && family.has(aff.CIDR.Addr()) {
			blocks = append(blocks, aff.CIDR)
		}
	}
	return blocks, nil
}

func inPools(pools []pool, cidr netip.Prefix) bool {
	return slices.ContainsFunc(pools, func(p pool) bool { return within(cidr, p.cidr) })
}

// deselected reports whether an enabled pool no longer selects a node with these labels.
func (x *search) deselected(p pool, labels map[string]string) bool {
	ok, err := selects(p.object.Spec.NodeSelector, labels)
	return p.object.Allocatable() && err == nil && !ok
}

// giveUp releases an empty block of this host. An error is ignored: the next assignment tries again.
func (x *search) giveUp(ctx context.Context, cidr netip.Prefix) {
	err := repeat(ctx, "release block "+cidr.String(), func() error {
		return x.releaseAffinity(ctx, x.owner, cidr, true, nil)
	})
	if err != nil && !errors.Is(err, ErrNotEmpty) && !errors.Is(err, model.ErrNotFound) {
		x.log.Warn("block in a pool that no longer selects this node is kept", zap.Stringer("block", cidr),
			zap.Error(err))
	}
}

// BlockLimit returns the smaller of the positive limits of request and configuration, or defaultMaxBlocks.
func BlockLimit(requested, configured int) int {
	switch {
	case requested > 0 && configured > 0:
		return min(requested, configured)
	case requested > 0:
		return requested
	case configured > 0:
		return configured
	}
	return defaultMaxBlocks
}

// take assigns as many of the missing addresses as the block has. b is the block if it was already read. A block that
// is deleted or has another owner by then yields none.
func (x *search) take(ctx context.Context, cidr netip.Prefix, b *heldBlock, own bool) error {
	return repeat(ctx, "assign from block "+cidr.String(), func() error {
		if b == nil {
			read, err := x.getBlock(ctx, cidr)
			if errors.Is(err, model.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			b = &read
		}
		block := *b
		b = nil // a second try must read it anew
		if own && ownerOf(block.Block) != x.owner.String() {
			return nil
		}
		r := x.request
		taken := assignNext(block.Block, x.missing(), attribute(r.Handle, r.Attrs), x.skips)
		if len(taken) == 0 {
			return nil
		}
		if err := x.commit(ctx, block, r.Handle, len(taken), r.Later.in(block.Block, x.owner)); err != nil {
			return err
		}
		for _, addr := range taken {
			x.result.Addresses = append(x.result.Addresses, netip.PrefixFrom(addr, cidr.Bits()))
		}
		return nil
	})
}

// skips reports whether an address is not assigned though it is free.
func (x *search) skips(a netip.Addr) bool {
	return x.reserved.has(a) || x.request.InUse != nil && x.request.InUse(a)
}

// commit counts n new addresses of a block in the handle and stores the block.
func (s session) commit(ctx context.Context, b heldBlock, handle string, n int, later Later) error {
	if later != nil {
		return s.commitBeside(ctx, b, handle, n, later)
	}
	if err := s.raiseHandle(ctx, handle, b.CIDR, n); err != nil {
		return err
	}
	_, err := s.putBlock(ctx, b)
	if err == nil {
		return nil
	}
	if !certain(err) {
		// The addresses may be assigned. The handle keeps its count, so that a release by handle finds them.
		return perhapsAssigned(err, handle)
	}
	s.uncount(ctx, b, handle, n)
	return gone(err)
}

// commitBeside writes the handle and the block at the same time. If the block is stored, later waits for the handle.
func (s session) commitBeside(ctx context.Context, b heldBlock, handle string, n int, later Later) error {
	var counted error
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := cleanup(ctx) // it may last longer than the call
		defer cancel()
		counted = s.raiseHandle(ctx, handle, b.CIDR, n)
	}()
	_, err := s.putBlock(ctx, b)
	if err == nil {
		later(func(ctx context.Context) error {
			select {
			case <-done:
				return counted
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		return nil
	}
	<-done
	if !certain(err) {
		return perhapsAssigned(err, handle)
	}
	if counted == nil {
		s.uncount(ctx, b, handle, n)
	}
	return gone(err)
}

func perhapsAssigned(err error, handle string) error {
	return fmt.Errorf("%w; addresses may have been assigned to handle %q: release by it", err, handle)
}

// uncount lowers the count of a handle whose addresses were not assigned.
func (s session) uncount(ctx context.Context, b heldBlock, handle string, n int) {
	ctx, cancel := cleanup(ctx)
	defer cancel()
	if err := s.lowerHandle(ctx, handle, b.CIDR, n); err != nil {
		s.log.Warn("handle counts too many addresses", zap.String("handle", handle), zap.Stringer("block", b.CIDR),
			zap.Error(err))
	}
}

// borrow assigns addresses from any block of the pools, whatever its owner.
func (x *search) borrow(ctx context.Context) error {
	objects, _, err := x.store.List(ctx, model.KindIPAMBlock, "")
	if err != nil {
		return fmt.Errorf("read blocks: %w", err)
	}
	for _, p := range x.pools {
		for _, cidr := range x.inWalkOrder(objects, p) {
			if x.missing() == 0 {
				return nil
			}
			if err := x.take(ctx, cidr, nil, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// inWalkOrder lists the blocks of a pool with free addresses in the order of the walk through the pool.
func (x *search) inWalkOrder(objects []*model.Object, p pool) []netip.Prefix {
	start := walkStart(p.cidr, p.blockBits, x.owner.Name, x.now())
	var before, after []netip.Prefix
	for _, o := range objects {
		cidr, ok := o.Key.Block()
		if !ok || !within(cidr, p.cidr) {
			continue
		}
		if b, err := x.hold(o); err != nil || !hasFree(b.Block, x.skips) {
			continue
		}
		if cidr.Addr().Less(start.Addr()) {
			before = append(before, cidr)
		} else {
			after = append(after, cidr)
		}
	}
	byAddress := func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }
	slices.SortFunc(before, byAddress)
	slices.SortFunc(after, byAddress)
	return append(after, before...)
}
