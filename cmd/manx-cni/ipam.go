package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// ipamAdd assigns addresses and prints them.
func (c *call) ipamAdd(ctx context.Context) error {
	r, err := c.assign(ctx)
	if err != nil {
		return err
	}
	return c.print(r)
}

// ipamDel releases all addresses of the container in this network.
func (c *call) ipamDel(ctx context.Context) error { return c.release(ctx) }

// ipamCheck makes sure that the container still has the addresses that ADD returned.
func (c *call) ipamCheck(ctx context.Context) error {
	want, err := c.previous()
	if err != nil {
		return err
	}
	return c.checkAssigned(ctx, want)
}

func (c *call) allocator() *ipam.Allocator { return ipam.New(c.store, c.log, c.now) }

// assign gets one address of each wanted family: all of them or none.
func (c *call) assign(ctx context.Context) (*current.Result, error) {
	unlock := c.lock(ctx)
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var got []netip.Prefix
	var err error
	if c.extra.IP != nil {
		got, err = c.assignGiven(ctx)
	} else {
		got, err = c.assignAny(ctx)
	}
	if err != nil {
		return nil, err
	}
	c.log.Info("assigned", zap.Stringers("addresses", got), zap.String("handle", c.work.handle()))
	return assignment(got), nil
}

// assignGiven assigns the address that the caller asks for by IP= in CNI_ARGS.
func (c *call) assignGiven(ctx context.Context) ([]netip.Prefix, error) {
	a, ok := netip.AddrFromSlice(c.extra.IP)
	if !ok {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("IP = %q in CNI_ARGS is no address", c.extra.IP), "")
	}
	a = a.Unmap()
	err := c.allocator().AssignIP(ctx, ipam.AddressRequest{
		Address: a, Host: c.work.Node, Handle: c.work.handle(), Attrs: c.attributes(), Use: v3.IPPoolAllowedUseWorkload,
	})
	return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, err
}

func (c *call) attributes() map[string]string { return c.work.attributes(c.now().UTC().String()) }

func (c *call) assignAny(ctx context.Context) ([]netip.Prefix, error) {
	v4, v6 := c.conf.IPAM.wants()
	if !v4 && !v6 {
		return nil, invalidConf("ipam asks for no address", "assign_ipv4 is \"false\" and assign_ipv6 is not \"true\": set one of them")
	}
	req := ipam.Request{
		Host: c.work.Node, Handle: c.work.handle(), Attrs: c.attributes(), Use: v3.IPPoolAllowedUseWorkload,
		Num4: count(v4), Num6: count(v6),
	}
	var err error
	if req.Pools4, err = c.pools(ctx, c.conf.IPAM.IPv4Pools, ipam.IPv4); err != nil {
		return nil, err
	}
	if req.Pools6, err = c.pools(ctx, c.conf.IPAM.IPv6Pools, ipam.IPv6); err != nil {
		return nil, err
	}
	r, err := c.allocator().AutoAssign(ctx, req)
	got := append(r.V4.Addresses, r.V6.Addresses...)
	if err == nil {
		err = r.Short()
	}
	if err != nil {
		return nil, afterwards(err, c.giveBack(ctx, addresses(got)))
	}
	return got, nil
}

func count(wanted bool) int {
	if wanted {
		return 1
	}
	return 0
}

func addresses(prefixes []netip.Prefix) []netip.Addr {
	var addrs []netip.Addr
	for _, p := range prefixes {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// giveBack releases what the family that succeeded got, and no older address of the container.
func (c *call) giveBack(ctx context.Context, got []netip.Addr) error {
	if len(got) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var releases []ipam.Release
	for _, a := range got {
		releases = append(releases, ipam.Release{Address: a, Handle: c.work.handle()})
	}
	_, err := c.allocator().ReleaseIPs(ctx, releases...)
	return err
}

// pools resolves the pools of the configuration, which are named by CIDR or by name.
func (c *call) pools(ctx context.Context, names []string, family ipam.Family) ([]netip.Prefix, error) {
	var cidrs []netip.Prefix
	for _, name := range names {
		cidr, err := netip.ParsePrefix(name)
		if err != nil {
			if cidr, err = c.poolByName(ctx, name); err != nil {
				return nil, err
			}
		}
		if ipam.FamilyOf(cidr.Addr()) != family {
			return nil, invalidConf(fmt.Sprintf("ipam pool %q cannot be used for %s", name, family), "its CIDR is "+cidr.String())
		}
		cidrs = append(cidrs, cidr.Masked())
	}
	return cidrs, nil
}

func (c *call) poolByName(ctx context.Context, name string) (netip.Prefix, error) {
	o, err := c.store.Get(ctx, model.ResourceKey(model.KindIPPool, name))
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("ipam pool %q: %w", name, err)
	}
	pool, ok := o.Value.(*model.IPPool)
	if !ok {
		return netip.Prefix{}, fmt.Errorf("ipam pool %q cannot be used: %w", name, o.Err)
	}
	return netip.ParsePrefix(pool.Spec.CIDR)
}

// release frees the addresses of the container, under both names that its handle may have.
func (c *call) release(ctx context.Context) error {
	unlock := c.lock(ctx)
	defer unlock()
	return errors.Join(c.releaseHandle(ctx, c.work.handle()), c.releaseHandle(ctx, c.work.oldHandle()))
}

func (c *call) releaseHandle(ctx context.Context, handle string) error {
	_, err := c.allocator().ReleaseByHandle(ctx, handle)
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return fmt.Errorf("release handle %s: %w", handle, err)
	}
	return nil
}

// releaseExcept frees what the container's handle has beyond keep.
func (c *call) releaseExcept(ctx context.Context, keep []netip.Addr) error {
	if len(keep) == 0 {
		return c.releaseHandle(ctx, c.work.handle())
	}
	now, err := c.allocator().IPsByHandle(ctx, c.work.handle())
	if err != nil {
		return err
	}
	return c.giveBack(ctx, slices.DeleteFunc(now, func(a netip.Addr) bool { return slices.Contains(keep, a) }))
}

// checkAssigned makes sure that the container's handle holds all of want.
func (c *call) checkAssigned(ctx context.Context, want []netip.Addr) error {
	have, err := c.allocator().IPsByHandle(ctx, c.work.handle())
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return fmt.Errorf("read handle %s: %w", c.work.handle(), err)
	}
	held := map[netip.Addr]bool{}
	for _, a := range have {
		held[a] = true
	}
	for _, a := range want {
		if !held[a] {
			return fmt.Errorf("address %s is not assigned to container %s any more", a, c.args.ContainerID)
		}
	}
	return nil
}

// assignment is the result of an IPAM ADD; the addresses carry the prefix length of their block.
func assignment(got []netip.Prefix) *current.Result {
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion}
	for _, p := range got {
		n := net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		r.IPs = append(r.IPs, &current.IPConfig{Address: n})
		r.Routes = append(r.Routes, &types.Route{Dst: n})
	}
	return r
}
