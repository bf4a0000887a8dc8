package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// deleteObject deletes one object, as calicoctl does: with a Node everything that exists for it alone, and a pool after
// its blocks are released.
func deleteObject(ctx context.Context, store datastore.Store, key model.Key) ([]model.Key, error) {
	var gone []model.Key
	if err := refused(key); err != nil {
		return nil, err
	}
	if key.Kind == model.KindNode {
		node, err := store.Get(ctx, key)
		if err != nil {
			return nil, asDelete(key, err)
		}
		if gone, err = releaseNode(ctx, store, node); err != nil {
			return gone, fmt.Errorf("%s is kept, because not all that belongs to it could be removed: %w", key, err)
		}
	}
	if key.Kind == model.KindIPPool {
		if err := drainPool(ctx, store, key); err != nil {
			return nil, asDelete(key, err)
		}
	}
	if key.Kind == model.KindTier {
		if err := deletableTier(ctx, store, key); err != nil {
			return nil, err
		}
	}
	if _, err := store.Delete(ctx, key, 0); err != nil {
		return gone, err
	}
	return append(gone, key), nil
}

// asDelete names the user's operation in an error of an earlier step.
func asDelete(key model.Key, err error) error {
	var of *datastore.KeyError
	if errors.As(err, &of) && of.Key == key {
		return &datastore.KeyError{Op: "delete", Key: key, Err: of.Err}
	}
	return err
}

// releaseNode releases the node's addresses and blocks and deletes the objects that refer to it.
func releaseNode(ctx context.Context, store datastore.Store, node *model.Object) ([]model.Key, error) {
	name := node.Key.Name
	keys := []model.Key{
		model.ResourceKey(model.KindFelixConfiguration, "node."+name),
		model.ResourceKey(model.KindBGPConfiguration, "node."+name),
	}
	addresses := map[netip.Addr]bool{}
	value, _ := node.Value.(*model.Node)
	for _, t := range value.TunnelAddresses() {
		addresses[t.Address] = true
	}
	err := eachOf(ctx, store, model.KindWorkloadEndpoint, func(k model.Key, e *model.WorkloadEndpoint) {
		if e.Spec.Node == name {
			keys = append(keys, k)
			for _, p := range model.Networks(e.Spec.IPNetworks) {
				addresses[p.Addr()] = true
			}
		}
	})
	if err != nil {
		return nil, err
	}
	err = eachOf(ctx, store, model.KindBGPPeer, func(k model.Key, p *model.BGPPeer) {
		if p.Spec.Node == name {
			keys = append(keys, k)
		}
	})
	if err != nil {
		return nil, err
	}
	err = eachOf(ctx, store, model.KindHostEndpoint, func(k model.Key, h *v3.HostEndpoint) {
		if h.Spec.Node == name {
			keys = append(keys, k)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := releaseAddresses(ctx, store, name, addresses); err != nil {
		return nil, err
	}
	return deleteThose(ctx, store, keys)
}

func eachOf[T any](ctx context.Context, store datastore.Store, kind model.Kind, visit func(model.Key, *T)) error {
	objects, _, err := store.List(ctx, kind, "")
	for _, o := range objects {
		if v, ok := o.Value.(*T); ok {
			visit(o.Key, v)
		}
	}
	return err
}

// releaseAddresses releases the node's blocks, and those of the addresses that are assigned on it. An object that is
// out of date may name an address that a container of another node has by now.
func releaseAddresses(ctx context.Context, store datastore.Store, node string, named map[netip.Addr]bool) error {
	var releases []ipam.Release
	err := eachOf(ctx, store, model.KindIPAMBlock, func(_ model.Key, b *model.Block) {
		for a := range ipam.Allocations(b) {
			// Old versions of Calico assigned tunnel addresses without handle and attributes.
			unmarked := a.Handle == "" && a.Attrs["node"] == ""
			if named[a.Address] && (unmarked || a.Attrs["node"] == node) {
				releases = append(releases, ipam.Release{Address: a.Address, Handle: a.Handle, Sequence: &a.Sequence})
			}
		}
	})
	if err != nil {
		return err
	}
	allocator := ipam.New(store, zap.NewNop(), time.Now)
	if len(releases) > 0 {
		if _, err := allocator.ReleaseIPs(ctx, releases...); err != nil {
			return err
		}
	}
	return allocator.ReleaseHostAffinities(ctx, ipam.Host(node), false)
}

func deleteThose(ctx context.Context, store datastore.Store, keys []model.Key) ([]model.Key, error) {
	var gone []model.Key
	var errs []error
	for _, k := range keys {
		_, err := store.Delete(ctx, k, 0)
		switch {
		case err == nil:
			gone = append(gone, k)
		case !errors.Is(err, datastore.ErrNotFound):
			errs = append(errs, err)
		}
	}
	return gone, errors.Join(errs...)
}
