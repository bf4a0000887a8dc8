package bench

import (
	"context"
	"net/netip"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// createBlock writes the i-th /26 of 10.244.0.0/16 as an empty block of a host, with its affinity.
func createBlock(ctx context.Context, store datastore.Store, host string, i int) error {
	return createBlockOf(ctx, store, host,
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244 + byte(i>>10), byte(i >> 2), byte(i<<6) & 0xc0}), 26))
}

// createBlockOf writes an empty block of a host, with its affinity.
func createBlockOf(ctx context.Context, store datastore.Store, host string, cidr netip.Prefix) error {
	a := model.Affinity{Type: model.AffinityHost, Host: host, CIDR: cidr}
	owner := a.String()
	block := &model.Block{CIDR: cidr, Affinity: &owner, Allocations: make([]*int, 64), SequenceNumber: 1,
		SequenceNumberForAllocation: map[string]uint64{}}
	for ordinal := range 64 {
		block.Unallocated = append(block.Unallocated, ordinal)
	}
	if _, err := store.Create(ctx, model.NewObject(model.BlockKey(cidr), block)); err != nil {
		return err
	}
	_, err := store.Create(ctx, model.NewObject(model.AffinityKey(a),
		&model.BlockAffinity{State: model.StateConfirmed}))
	return err
}
