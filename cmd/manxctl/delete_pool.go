package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/retry"
)

// poolPause is the time in which nodes learn that a pool is disabled, before its blocks are released. It is that of
// Calico's client.
const poolPause = 500 * time.Millisecond

// drainPool prepares the deletion of a pool: nodes take no address of it any more, and its blocks are released. Blocks
// with assigned addresses stay, without owner, until the last one is released.
func drainPool(ctx context.Context, store datastore.Store, key model.Key) error {
	stored, err := store.Get(ctx, key)
	if err != nil {
		return err
	}
	p, ok := stored.Value.(*model.IPPool)
	if !ok {
		return nil // a pool that nobody can use has no blocks
	}
	cidr, err := netip.ParsePrefix(p.Spec.CIDR)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	done, err := modifyObject(ctx, store, key, modification{done: "disabled", change: func(o *model.Object) error {
		o.Value.(*model.IPPool).Spec.Disabled = true
		return nil
	}})
	switch invalid := (*model.InvalidError)(nil); {
	case err != nil && !errors.As(err, &invalid): // an invalid one is not in use, and can be deleted
		return err
	case done == "disabled" && !retry.Sleep(ctx, poolPause):
		return ctx.Err()
	}
	_, err = ipam.New(store, nil, nil).ReleasePoolAffinities(ctx, cidr.Masked())
	if err != nil {
		return fmt.Errorf("%s is disabled and kept, because not all of its blocks could be released: %w", key, err)
	}
	return nil
}
