package ipam

import (
	"context"
	"errors"
	"fmt"

	"github.com/manxnet/manx/datastore/model"
)

// SettleAffinity makes a confirmed affinity agree with its block: it deletes one whose block is missing or has another
// owner, and writes one that the owner of the block lacks. It leaves a claim or release that is under way alone, and
// changes no address.
func (a *Allocator) SettleAffinity(ctx context.Context, aff model.Affinity) error {
	s, err := a.begin(ctx)
	if err != nil {
		return fmt.Errorf("settle affinity of %s to %s: %w", aff, aff.CIDR, err)
	}
	err = repeat(ctx, fmt.Sprintf("settle affinity of %s to %s", aff, aff.CIDR), func() error {
		return s.settleAffinity(ctx, aff)
	})
	if errors.Is(err, errTaken) {
		return nil // its owner changed meanwhile, and the affinity is deleted
	}
	return err
}

func (s session) settleAffinity(ctx context.Context, aff model.Affinity) error {
	o, err := s.getAffinity(ctx, aff)
	exists := err == nil
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return err
	}
	b, err := s.getBlock(ctx, aff.CIDR)
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return err
	}
	owned := err == nil && ownerOf(b.Block) == aff.String()
	switch {
	case exists && !owned && isConfirmed(o):
		return s.dropAffinity(ctx, o)
	case exists || !owned:
		return nil
	}
	if o, err = s.pendingAffinity(ctx, aff); err != nil {
		return err
	}
	_, err = s.blockOfAffinity(ctx, o, Owner{Type: aff.Type, Name: aff.Host})
	return err
}
