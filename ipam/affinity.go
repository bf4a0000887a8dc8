package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// The claim protocol. An affinity goes pending -> confirmed -> pendingDeletion -> deleted, and a block exists before
// its affinity is confirmed. Every step is a compare-and-swap. An interruption between two steps leaves a state from
// which any other process can continue.

// errTaken reports a block with another owner.
var errTaken = errors.New("belongs to another owner")

// ErrNotEmpty is wrapped by the error of releasing a block that still has assigned addresses.
var ErrNotEmpty = errors.New("still has assigned addresses")

// heldBlock is a private copy of a stored block, to be changed and stored.
type heldBlock struct {
	object *model.Object
	*model.Block
}

// getBlock reads a block and frees its addresses whose cooldown has passed.
func (s session) getBlock(ctx context.Context, cidr netip.Prefix) (heldBlock, error) {
	o, err := s.store.Get(ctx, model.BlockKey(cidr))
	if err != nil {
		return heldBlock{}, fmt.Errorf("read block %s: %w", cidr, err)
	}
	return s.hold(o)
}

// hold makes a private copy of a block that was read. Decoding has already marked an inconsistent block as invalid.
func (s session) hold(o *model.Object) (heldBlock, error) {
	if _, ok := o.Value.(*model.Block); !ok || o.Err != nil {
		return heldBlock{}, fmt.Errorf("block %s cannot be read, repair or delete it: %w", o.Key.Name, o.Err)
	}
	o = o.Clone()
	b := o.Value.(*model.Block)
	if b.Affinity == nil && b.HostAffinity != nil {
		owner := ownerOf(b)
		b.Affinity, b.HostAffinity = &owner, nil
	}
	collect(b, s.now(), s.cooldown)
	return heldBlock{o, b}, nil
}

// putBlock stores a changed block with the next sequence number.
func (s session) putBlock(ctx context.Context, b heldBlock) (heldBlock, error) {
	b.SequenceNumber++
	o, err := s.store.Update(ctx, b.object)
	if err != nil {
		return heldBlock{}, fmt.Errorf("write block %s: %w", b.CIDR, err)
	}
	o = o.Clone()
	return heldBlock{o, o.Value.(*model.Block)}, nil
}

// deleteBlock deletes a block unless it has changed since it was read. A missing block is no error.
func (s session) deleteBlock(ctx context.Context, b heldBlock) error {
	_, err := s.store.Delete(ctx, b.object.Key, b.object.Revision)
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return fmt.Errorf("delete block %s: %w", b.CIDR, err)
	}
	return nil
}

// pendingAffinity announces a claim: it returns the affinity in state pending, or unchanged if it is confirmed.
func (s session) pendingAffinity(ctx context.Context, aff model.Affinity) (*model.Object, error) {
	key := model.AffinityKey(aff)
	o, err := s.store.Create(ctx, model.NewObject(key, &model.BlockAffinity{State: model.StatePending}))
	if !errors.Is(err, model.ErrExists) {
		return o, wrap("create affinity %s", key.Name, err)
	}
	if o, err = s.getAffinity(ctx, aff); err != nil {
		return nil, gone(err)
	}
	if isConfirmed(o) {
		return o, nil
	}
	return s.setAffinity(ctx, o, model.StatePending)
}

func (s session) getAffinity(ctx context.Context, aff model.Affinity) (*model.Object, error) {
	key := model.AffinityKey(aff)
	o, err := s.store.Get(ctx, key)
	if err != nil {
		return nil, wrap("read affinity %s", key.Name, err)
	}
	if o.Err != nil {
		return nil, fmt.Errorf("affinity %s cannot be read, delete it: %w", key.Name, o.Err)
	}
	return o, nil
}

// isConfirmed reports whether an affinity is confirmed. Very old writers stored no state; that counts as confirmed.
func isConfirmed(o *model.Object) bool {
	state := o.Value.(*model.BlockAffinity).State
	return state == model.StateConfirmed || state == ""
}

func (s session) setAffinity(ctx context.Context, o *model.Object, state model.AffinityState) (*model.Object, error) {
	o = o.Clone()
	o.Value.(*model.BlockAffinity).State = state
	stored, err := s.store.Update(ctx, o)
	return stored, wrap("set affinity %s to "+string(state), o.Key.Name, gone(err))
}

// dropAffinity deletes an affinity unless it has changed since it was read. A missing affinity is no error.
func (s session) dropAffinity(ctx context.Context, o *model.Object) error {
	_, err := s.store.Delete(ctx, o.Key, o.Revision)
	if errors.Is(err, model.ErrNotFound) {
		return nil
	}
	return wrap("delete affinity %s", o.Key.Name, err)
}

// blockOfAffinity returns the block of an affinity of owner, and creates and confirms it if necessary. The error is
// errTaken if the block has another owner; the affinity is then deleted.
func (s session) blockOfAffinity(ctx context.Context, o *model.Object, owner Owner) (heldBlock, error) {
	aff, _ := o.Key.Affinity()
	b, err := s.getBlock(ctx, aff.CIDR)
	switch {
	case errors.Is(err, model.ErrNotFound):
		// The write makes a new revision, so that a concurrent release of this affinity conflicts.
		if o, err = s.setAffinity(ctx, o, model.StatePending); err != nil {
			return heldBlock{}, err
		}
		return s.createBlock(ctx, o, owner)
	case err != nil:
		return heldBlock{}, err
	case ownerOf(b.Block) != owner.String():
		return heldBlock{}, s.giveWay(ctx, o, b.Block)
	case isConfirmed(o):
		return b, nil
	}
	if o, err = s.setAffinity(ctx, o, model.StatePending); err != nil {
		return heldBlock{}, err
	}
	// The write changes only the sequence number, so that a concurrent release or reclaim of the block conflicts.
	if b, err = s.putBlock(ctx, b); err != nil {
		return heldBlock{}, gone(err)
	}
	return b, s.confirm(ctx, o)
}

// createBlock creates the block of a pending affinity and confirms the affinity.
func (s session) createBlock(ctx context.Context, o *model.Object, owner Owner) (heldBlock, error) {
	aff, _ := o.Key.Affinity()
	created, err := s.store.Create(ctx, model.NewObject(model.BlockKey(aff.CIDR),
		newBlock(aff.CIDR, owner.String(), s.now())))
	var b heldBlock
	switch {
	case err == nil:
		b, err = s.hold(created)
	case errors.Is(err, model.ErrExists):
		b, err = s.getBlock(ctx, aff.CIDR)
		err = gone(err)
	default:
		err = fmt.Errorf("create block %s: %w", aff.CIDR, err)
	}
	if err != nil {
		return heldBlock{}, err
	}
	if ownerOf(b.Block) != owner.String() {
		return heldBlock{}, s.giveWay(ctx, o, b.Block)
	}
	return b, s.confirm(ctx, o)
}

// giveWay deletes this host's affinity to a block of another owner.
func (s session) giveWay(ctx context.Context, o *model.Object, b *model.Block) error {
	if err := s.dropAffinity(ctx, o); err != nil {
		return err
	}
	return fmt.Errorf("block %s %w (%s)", b.CIDR, errTaken, ownerText(b))
}

func (s session) confirm(ctx context.Context, o *model.Object) error {
	_, err := s.setAffinity(ctx, o, model.StateConfirmed)
	if err == nil || !certain(err) {
		return err
	}
	aff, _ := o.Key.Affinity()
	now, getErr := s.getAffinity(ctx, aff)
	if getErr == nil && isConfirmed(now) {
		return nil // another process of this host was faster
	}
	return err
}

// releaseAffinity releases a block. An empty block is deleted. Otherwise, unless mustBeEmpty, it stays without owner
// until its last address is released. If sequence is not nil, the block must still have that sequence number.
func (s session) releaseAffinity(
	ctx context.Context, owner Owner, cidr netip.Prefix, mustBeEmpty bool, sequence *uint64,
) error {
	o, err := s.getAffinity(ctx, owner.affinity(cidr))
	if err != nil {
		return err
	}
	b, err := s.getBlock(ctx, cidr)
	if errors.Is(err, model.ErrNotFound) {
		return s.dropAffinity(ctx, o)
	}
	if err != nil {
		return err
	}
	switch has := ownerOf(b.Block); {
	case sequence != nil && *sequence != b.SequenceNumber:
		return fmt.Errorf("block %s is in use again: %w", cidr, ErrNotEmpty)
	case has != "" && has != owner.String():
		return s.giveWay(ctx, o, b.Block)
	case mustBeEmpty && !isEmpty(b.Block):
		return fmt.Errorf("block %s of %s %w", cidr, owner, ErrNotEmpty)
	}
	if o, err = s.setAffinity(ctx, o, model.StatePendingDeletion); err != nil {
		return err
	}
	if isEmpty(b.Block) {
		err = s.deleteBlock(ctx, b)
	} else {
		disown(b.Block)
		_, err = s.putBlock(ctx, b)
		err = gone(err)
	}
	if err != nil {
		return err
	}
	return s.dropAffinity(ctx, o)
}

func ownerText(b *model.Block) string {
	if has := ownerOf(b); has != "" {
		return has
	}
	return "nobody"
}

// gone turns a not-found error for an object that existed a moment ago into a conflict, which makes the caller retry.
func gone(err error) error {
	if errors.Is(err, model.ErrNotFound) {
		return fmt.Errorf("%w: %w", model.ErrConflict, err)
	}
	return err
}

func wrap(format, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", name, err)
}
