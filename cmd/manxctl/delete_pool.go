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
	var cidr netip.Prefix
	disable := func(o *model.Object) (err error) {
		p := o.Value.(*model.IPPool)
		p.Spec.Disabled = true
		cidr, err = netip.ParsePrefix(p.Spec.CIDR)
		return err
	}
	done, err := modifyObject(ctx, store, key, modification{done: "disabled", change: disable})
	switch {
	case !cidr.IsValid() && !errors.Is(err, datastore.ErrNotFound):
		return nil // a pool that nobody can use has no blocks
	case err != nil:
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
