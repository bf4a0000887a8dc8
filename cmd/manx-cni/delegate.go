package main

import (
	"context"
	"errors"
	"net/netip"

	"github.com/containernetworking/cni/pkg/invoke"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/manxnet/manx/datastore/model"
)

// assignAddresses asks the configured IPAM plugin. Our own is called directly, under whichever name: it would be this
// binary, connecting to the same datastore once more.
func (c *call) assignAddresses(ctx context.Context) (*current.Result, error) {
	if isOurIPAM(c.conf.IPAM.Type) {
		return c.assign(ctx)
	}
	if err := c.resolvePodCIDRs(ctx); err != nil {
		return nil, err
	}
	r, err := invoke.DelegateAdd(ctx, c.conf.IPAM.Type, c.args.StdinData, nil)
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(r)
}

func (c *call) releaseAddresses(ctx context.Context) error {
	if isOurIPAM(c.conf.IPAM.Type) {
		return c.release(ctx)
	}
	if c.usesPodCIDRs() {
		if err := c.putSubnets(everyAddress); err != nil {
			return err
		}
	}
	return invoke.DelegateDel(ctx, c.conf.IPAM.Type, c.args.StdinData, nil)
}

// prepareRelease gives a function that takes back what assignAddresses is about to assign, and no address that the
// container has already.
func (c *call) prepareRelease(ctx context.Context) (func(context.Context) error, error) {
	if !isOurIPAM(c.conf.IPAM.Type) {
		return c.releaseAddresses, nil
	}
	before, err := c.allocator().IPsByHandle(ctx, c.work.handle())
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return nil, err
	}
	return func(ctx context.Context) error { return c.releaseExcept(ctx, before) }, nil
}

func (c *call) checkAddresses(ctx context.Context, want []netip.Addr) error {
	if isOurIPAM(c.conf.IPAM.Type) {
		return c.checkAssigned(ctx, want)
	}
	if err := c.resolvePodCIDRs(ctx); err != nil {
		return err
	}
	return invoke.DelegateCheck(ctx, c.conf.IPAM.Type, c.args.StdinData, nil)
}
