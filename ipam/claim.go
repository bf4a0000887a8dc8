package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// errNoBlock reports that the host has no block with a free address and cannot claim one.
var errNoBlock = errors.New("no block with free addresses is left")

// minReclaimAge is the minimum age of an empty block before another host may reclaim it: its owner has claimed it for
// an assignment.
const minReclaimAge = 60 * time.Second

// nextBlock returns a block of the host with at least one free address. It claims one if necessary.
func (x *search) nextBlock(ctx context.Context) (heldBlock, error) {
	b, err := x.nextOwn(ctx)
	if errors.Is(err, errNoBlock) && x.reread() {
		b, err = x.nextOwn(ctx)
	}
	if !errors.Is(err, errNoBlock) {
		return b, err
	}
	if err := WhyNoBlock(x.owner, x.owned, x.limit, x.config); err != nil {
		return heldBlock{}, fmt.Errorf("%s: %w", poolNames(x.pools), err)
	}
	if b, err = x.claimNew(ctx); err == nil {
		x.owned++
	}
	return b, err
}

// reread starts again with the blocks of the host if they were read from memory: others may have released addresses.
func (x *search) reread() bool {
	if len(x.blocks) == 0 || !x.refresh() {
		return false
	}
	x.own = x.blocks
	return true
}

// nextOwn returns the next block of the host with a free address. The error is errNoBlock if there is none.
func (x *search) nextOwn(ctx context.Context) (heldBlock, error) {
	for len(x.own) > 0 {
		cidr := x.own[0]
		x.own = x.own[1:]
		if _, all := x.reserved.covering(cidr); all {
			continue
		}
		b, err := x.ownBlock(ctx, cidr)
		switch {
		case err != nil && ctx.Err() != nil:
			return heldBlock{}, err
		case err != nil:
			x.log.Warn("block is passed over", zap.Stringer("block", cidr), zap.Stringer("owner", x.owner),
				zap.Error(err))
		case hasFree(b.Block, x.skips):
			return b, nil
		}
	}
	return heldBlock{}, errNoBlock
}

// ownBlock completes an interrupted claim, if any, and returns the block.
func (x *search) ownBlock(ctx context.Context, cidr netip.Prefix) (b heldBlock, err error) {
	err = repeat(ctx, "confirm block "+cidr.String(), func() error {
		o, err := x.getAffinity(ctx, x.owner.affinity(cidr))
		if err == nil {
			b, err = x.blockOfAffinity(ctx, o, x.owner)
		}
		return err
	})
	return b, err
}

// claimNew claims the first unclaimed block in the pools, or else an unused block of another owner.
func (x *search) claimNew(ctx context.Context) (heldBlock, error) {
	for range maxTries {
		cidr, err := x.findFree(ctx)
		if err != nil {
			return heldBlock{}, err
		}
		b, err := x.claim(ctx, cidr)
		if errors.Is(err, errTaken) {
			continue // another process was faster
		}
		if err == nil && !hasFree(b.Block, x.skips) {
			continue
		}
		return b, err
	}
	return heldBlock{}, fmt.Errorf("claim a block for %s: gave up after %d tries, too many others claim at "+
		"the same time", x.owner, maxTries)
}

func (x *search) claim(ctx context.Context, cidr netip.Prefix) (b heldBlock, err error) {
	err = repeat(ctx, "claim block "+cidr.String(), func() error {
		o, err := x.pendingAffinity(ctx, x.owner.affinity(cidr))
		if err == nil {
			b, err = x.blockOfAffinity(ctx, o, x.owner)
		}
		return err
	})
	return b, err
}

// findFree selects the block to claim. It first releases an empty block of another owner, if that is the choice.
func (x *search) findFree(ctx context.Context) (netip.Prefix, error) {
	objects, _, err := x.store.List(ctx, model.KindIPAMBlock, "")
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("read blocks: %w", err)
	}
	exists := make(map[netip.Prefix]*model.Object, len(objects))
	for _, o := range objects {
		if cidr, ok := o.Key.Block(); ok {
			exists[cidr] = o
		}
	}
	var unused []heldBlock
	for _, p := range x.pools {
		other := otherSizes(objects, p)
		for cidr := range walk(p.cidr, walkStart(p.cidr, p.blockBits, x.owner.Name, x.now()), x.reserved) {
			o := exists[cidr]
			if o == nil {
				if other.overlaps(cidr) {
					continue
				}
				return cidr, nil
			}
			b, err := x.hold(o)
			switch {
			case err != nil:
				x.log.Warn("block is passed over", zap.Stringer("block", cidr), zap.Error(err))
			case !x.ahead && ownerOf(b.Block) == x.owner.String() && hasFree(b.Block, x.skips):
				return cidr, nil // another process of this host has just claimed it
			case isEmpty(b.Block) && ownerOf(b.Block) != x.owner.String():
				unused = append(unused, b)
			}
		}
	}
	if x.ahead {
		return netip.Prefix{}, errNoBlock
	}
	return x.reclaim(ctx, unused)
}

// reclaim releases the first block that its owner has not used for minReclaimAge.
func (x *search) reclaim(ctx context.Context, unused []heldBlock) (netip.Prefix, error) {
	for _, b := range unused {
		if b.AffinityClaimTime != nil && x.now().Sub(b.AffinityClaimTime.Time) < minReclaimAge {
			continue
		}
		err := x.evict(ctx, b)
		if err == nil {
			x.log.Info("unused block is taken over", zap.Stringer("block", b.CIDR),
				zap.String("from", ownerText(b.Block)), zap.Stringer("to", x.owner))
			return b.CIDR, nil
		}
		if ctx.Err() != nil {
			return netip.Prefix{}, err
		}
		if errors.Is(err, model.ErrUnauthorized) {
			break // only the controllers take blocks from nodes: an admission policy of the chart
		}
		x.log.Debug("unused block stays with its owner", zap.Stringer("block", b.CIDR), zap.Error(err))
	}
	return netip.Prefix{}, errNoBlock
}

func (x *search) evict(ctx context.Context, b heldBlock) error {
	owner, ok := parseOwner(ownerOf(b.Block))
	if !ok {
		return x.deleteBlock(ctx, b) // no owner, and all its addresses have cooled down
	}
	err := x.releaseAffinity(ctx, owner, b.CIDR, true, &b.SequenceNumber)
	if errors.Is(err, model.ErrNotFound) {
		return x.deleteBlock(ctx, b) // its affinity was lost: it would stay unused for ever
	}
	return err
}

// otherSizes lists the blocks in a pool that were created with another block size.
func otherSizes(objects []*model.Object, p pool) prefixes {
	var list prefixes
	for _, o := range objects {
		cidr, ok := o.Key.Block()
		if ok && cidr.Bits() != p.blockBits && p.cidr.Overlaps(cidr) {
			list = append(list, cidr)
		}
	}
	return list
}

type prefixes []netip.Prefix

func (list prefixes) overlaps(p netip.Prefix) bool {
	for _, q := range list {
		if p.Overlaps(q) {
			return true
		}
	}
	return false
}
