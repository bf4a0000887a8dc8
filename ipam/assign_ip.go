package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// AddressRequest is a request for one given address.
type AddressRequest struct {
	Address netip.Addr
	Host    string
	Handle  string
	Attrs   map[string]string
	// Use is the purpose that the pool must allow; empty for any.
	Use   v3.IPPoolAllowedUse
	InUse func(netip.Addr) bool // see Request.InUse
	Later Later
}

// ErrAssigned is wrapped by the error of AssignIP for an address that is already assigned.
var ErrAssigned = errAssigned

// errInUse is wrapped by the error of AssignIP for an address that is free, and in use on the host.
var errInUse = errors.New("is free in the datastore, and in use on this host")

// AssignIP assigns a given address of an enabled pool. It ignores reservations, selectors and the block limit. A
// missing block is claimed for the host.
func (a *Allocator) AssignIP(ctx context.Context, r AddressRequest) error {
	err := checkHost(r.Host)
	if err == nil {
		err = checkHandle(r.Handle)
	}
	if err == nil {
		err = a.assignIP(ctx, r)
	}
	if errors.Is(err, errAssigned) && a.refresh() { // it may have been released since
		err = a.assignIP(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("assign %s for host %s: %w", r.Address, r.Host, err)
	}
	return nil
}

func (a *Allocator) assignIP(ctx context.Context, r AddressRequest) error {
	s, err := a.begin(ctx)
	if err != nil {
		return err
	}
	pools, err := s.readPools(ctx)
	if err != nil {
		return err
	}
	pools = slices.DeleteFunc(pools, func(p pool) bool { return !p.object.Allocatable() })
	p := poolOf(pools, r.Address)
	if p == nil {
		return fmt.Errorf("%w: %s lies in none of the enabled pools: %s", errNoPool, r.Address, poolNames(pools))
	}
	if r.Use != "" && !allows(p.object, r.Use) {
		return fmt.Errorf("%w: %s does not allow use %q", errNoPool, p, r.Use)
	}
	owner := ownerFor(r.Host, r.Use)
	cidr := blockOf(r.Address, p.blockBits)
	return repeat(ctx, "assign from block "+cidr.String(), func() error {
		b, err := s.getOrClaim(ctx, owner, cidr)
		if err != nil {
			return err
		}
		if s.config.StrictAffinity && ownerOf(b.Block) != owner.String() {
			return fmt.Errorf("block %s %w (%s) and strict affinity is on", cidr, errTaken, ownerText(b.Block))
		}
		if err := assignExact(b.Block, r.Address, attribute(r.Handle, r.Attrs)); err != nil {
			return err
		}
		if r.InUse != nil && r.InUse(r.Address) {
			return fmt.Errorf("%s %w", r.Address, errInUse)
		}
		return s.commit(ctx, b, r.Handle, 1, r.Later.in(b.Block, owner))
	})
}

// getOrClaim reads a block, whatever its owner, or claims it if it does not exist.
func (s session) getOrClaim(ctx context.Context, owner Owner, cidr netip.Prefix) (heldBlock, error) {
	b, err := s.getBlock(ctx, cidr)
	if !errors.Is(err, model.ErrNotFound) {
		return b, err
	}
	// A disturbed claim starts again with the affinity: a block must not be used before its affinity is confirmed.
	err = repeat(ctx, "claim block "+cidr.String(), func() error {
		o, err := s.pendingAffinity(ctx, owner.affinity(cidr))
		if err == nil {
			b, err = s.createBlock(ctx, o, owner)
		}
		return err
	})
	if errors.Is(err, errTaken) {
		return heldBlock{}, fmt.Errorf("%w: %w", model.ErrConflict, err) // it exists now: use it as it is
	}
	return b, err
}
