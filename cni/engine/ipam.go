package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

const (
	assignTimeout = 90 * time.Second // an allocation may compete with many others for a block
	undoTimeout   = 30 * time.Second
)

func (c *call) allocator() *ipam.Allocator { return ipam.New(c.store, c.log, c.Now) }

// findAddresses creates the attachment with its addresses: those of an earlier ADD of the same container, so that ADD
// is repeatable; those of another IPAM plugin; or new ones.
func (c *call) findAddresses(
	ctx context.Context, stored *model.Object, pod *facts, later *writes, undo *cni.Undo,
) (*cni.Attachment, error) {
	a := &cni.Attachment{}
	if ips := c.kept(stored); len(ips) > 0 {
		c.log.Info("attached before: the addresses are kept", zap.Stringers("addresses", ips))
		a.Addresses = ips
		return a, nil
	}
	if !c.conf.OwnIPAM() {
		if c.q.Attachment == nil || len(c.q.Attachment.Addresses) == 0 {
			return nil, errors.New("the step add has no addresses of the IPAM plugin " + c.conf.IPAM.Type)
		}
		a.Addresses = c.q.Attachment.Addresses
		return a, nil
	}
	if len(pod.unmanaged) > 0 {
		a.Addresses = pod.unmanaged
		return a, nil
	}
	c.beginEarly(stored, pod)
	unlock := c.lock(ctx)
	defer unlock()
	if kept, err := c.takeOver(ctx); err != nil || len(kept) > 0 {
		c.given(a, kept, kept)
		return a, err
	}
	before, err := c.allocator().AssignedTo(ctx, c.work.Node, c.handle())
	if err != nil {
		return nil, err
	}
	if c.fits(before, pod) { // of an ADD that was interrupted
		for _, p := range before {
			if err := c.allocator().CountHandle(ctx, c.handle(), p.Masked()); err != nil {
				return nil, err
			}
		}
		c.given(a, before, before)
		return a, nil
	}
	err = c.step("assign addresses", func() (err error) {
		// A failed assignment may have assigned addresses, too.
		undo.Push("release the addresses", func(ctx context.Context) error {
			later.end(ctx)
			return c.releaseExcept(ctx, addresses(before))
		})
		var got []netip.Prefix
		if err = c.releaseEarlier(ctx, stored, pod.wanted); err != nil {
			return err
		}
		got, err = c.assign(ctx, pod, later)
		c.given(a, got, before)
		return err
	})
	return a, err
}

// given adds the assigned addresses to the attachment. An undone ADD does not release those that the container had
// before: they may be in use on another of its interfaces, which shares the handle.
func (c *call) given(a *cni.Attachment, got, before []netip.Prefix) {
	a.Assigned, a.Addresses = got, addresses(got)
	if c.machine == nil { // a virtual machine keeps them for its next pod
		a.Fresh = without(a.Addresses, addresses(before))
	}
}

// without returns the addresses that are not in others.
func without(list, others []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return slices.Contains(others, a) })
}

// fits reports whether the container's addresses satisfy an ADD: one of each requested family.
func (c *call) fits(have []netip.Prefix, pod *facts) bool {
	v4, v6 := pod.families(c.conf)
	if c.extra.IP != nil || len(pod.wanted) > 0 || len(have) != count(v4)+count(v6) || len(have) == 0 {
		return false
	}
	n4 := 0
	for _, p := range have {
		n4 += count(p.Addr().Is4())
	}
	return n4 == count(v4)
}

// ipamAdd assigns addresses for another network plugin.
func (c *call) ipamAdd(ctx context.Context) error {
	pod, err := c.facts(ctx, nil)
	if err != nil {
		return err
	}
	unlock := c.lock(ctx)
	defer unlock()
	got, err := c.takeOver(ctx)
	if err == nil && len(got) == 0 {
		got, err = c.assign(ctx, pod, nil)
	}
	c.reply.Attachment = &cni.Attachment{Assigned: got}
	return err
}

// releaseEarlier releases the requested addresses that an earlier container of the pod still has: the runtime may have
// lost that container without a DEL.
func (c *call) releaseEarlier(ctx context.Context, stored *model.Object, wanted []netip.Addr) error {
	e := endpointOf(stored)
	if len(wanted) == 0 || e == nil || e.Spec.ContainerID == "" || c.ours(stored) {
		return nil
	}
	if err := c.mayReplace(stored); err != nil {
		return err
	}
	old := c.work
	old.ContainerID = e.Spec.ContainerID
	for _, a := range wanted {
		has, err := c.allocator().GetAssignmentAttributes(ctx, a)
		// The stored container ID is an annotation of the pod, whose writer could name the container of another pod.
		if err != nil || has.Handle != old.handle() || has.Attrs["namespace"] != c.work.Namespace ||
			has.Attrs["pod"] != c.work.Pod {
			continue // the assignment reports any problem
		}
		c.log.Info("an earlier container of the pod has the requested address", zap.Stringer("address", a),
			zap.String("earlier", old.ContainerID))
		release := ipam.Release{Address: a, Handle: has.Handle}
		if _, err := c.allocator().ReleaseIPs(ctx, release); err != nil {
			return err
		}
	}
	return nil
}

// assign assigns one address of each requested family, or the requested addresses: all of them or none.
func (c *call) assign(ctx context.Context, pod *facts, later *writes) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, assignTimeout)
	defer cancel()
	var wanted []netip.Addr
	if c.extra.IP != nil {
		a, ok := netip.AddrFromSlice(c.extra.IP)
		if !ok {
			return nil, types.NewError(types.ErrInvalidEnvironmentVariables,
				fmt.Sprintf("IP = %q in CNI_ARGS is no address", c.extra.IP), "")
		}
		wanted = []netip.Addr{a.Unmap()}
	} else {
		wanted = pod.wanted
	}
	var got []netip.Prefix
	var err error
	if len(wanted) > 0 {
		got, err = c.assignGiven(ctx, wanted, later)
	} else {
		got, err = c.assignAny(ctx, pod, later)
	}
	if err != nil {
		return nil, err
	}
	c.log.Info("assigned", zap.Stringers("addresses", got), zap.String("handle", c.handle()))
	return got, nil
}

// behind lets writes end after the response, if this process lasts. The handle of a virtual machine is found by its
// count from other nodes, too: that is written before.
func (c *call) behind(later *writes) ipam.Later {
	if !c.Lasting || later == nil || c.machine != nil {
		return nil
	}
	return later.add
}

// assignGiven assigns the requested addresses, except those that the container has of an ADD that was interrupted.
func (c *call) assignGiven(ctx context.Context, wanted []netip.Addr, later *writes) ([]netip.Prefix, error) {
	var all, got []netip.Prefix
	for _, a := range wanted {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
		err := c.allocator().AssignIP(ctx, ipam.AddressRequest{Address: a, Host: c.work.Node, Handle: c.handle(),
			Attrs: c.attributes(), Use: v3.IPPoolAllowedUseWorkload, InUse: c.inUse, Later: c.behind(later)})
		if errors.Is(err, ipam.ErrAssigned) && c.has(ctx, a) {
			continue
		}
		if err != nil {
			later.end(ctx)
			return nil, cni.Afterwards(err, c.giveBack(ctx, addresses(got)))
		}
		got = append(got, netip.PrefixFrom(a, a.BitLen()))
	}
	return all, nil
}

// has reports whether the container has an address, and makes its handle count it.
func (c *call) has(ctx context.Context, a netip.Addr) bool {
	have, err := c.allocator().AssignedTo(ctx, c.work.Node, c.handle())
	i := slices.IndexFunc(have, func(p netip.Prefix) bool { return p.Addr() == a })
	return err == nil && i >= 0 && c.allocator().CountHandle(ctx, c.handle(), have[i].Masked()) == nil
}

func (c *call) attributes() map[string]string {
	attrs := c.work.attributes(c.Now().UTC().String())
	if c.machine != nil {
		maps.Copy(attrs, c.machine.attrs)
	}
	return attrs
}

func (c *call) assignAny(ctx context.Context, pod *facts, later *writes) ([]netip.Prefix, error) {
	v4, v6 := pod.families(c.conf)
	if !v4 && !v6 {
		return nil, invalidConf("ipam requests no address", "assign_ipv4 is \"false\" and assign_ipv6 is not "+
			"\"true\": set one of them")
	}
	req := ipam.Request{
		Host: c.work.Node, Handle: c.handle(), Attrs: c.attributes(), Use: v3.IPPoolAllowedUseWorkload,
		Num4: count(v4), Num6: count(v6), NamespaceLabels: pod.namespaceLabels,
		InUse: c.inUse, Later: c.behind(later),
	}
	var err error
	if req.Pools4, err = c.pools(ctx, pod.pools(c.conf, ipam.IPv4), ipam.IPv4); err != nil {
		return nil, err
	}
	if req.Pools6, err = c.pools(ctx, pod.pools(c.conf, ipam.IPv6), ipam.IPv6); err != nil {
		return nil, err
	}
	r, err := c.allocator().AutoAssign(ctx, req)
	got := append(r.V4.Addresses, r.V6.Addresses...)
	if err == nil {
		err = r.Short()
	}
	if err != nil {
		later.end(ctx)
		return nil, cni.Afterwards(err, c.giveBack(ctx, addresses(got)))
	}
	if c.Assigned != nil {
		req.InUse = nil // of this call
		c.Assigned(req)
	}
	return got, nil
}

// inUse reports whether another interface of this host than the workload's own has an address, or leads to it.
func (c *call) inUse(a netip.Addr) bool {
	if c.InterfaceWith == nil {
		return false
	}
	if used, known := c.used[a]; known {
		return used
	}
	used := c.isUsed(a)
	if c.used == nil {
		c.used = map[netip.Addr]bool{}
	}
	c.used[a] = used
	return used
}

func (c *call) isUsed(a netip.Addr) bool {
	name, err := c.InterfaceWith(a)
	if err != nil {
		c.log.Warn("it is unknown whether an address is in use on this host", zap.Stringer("address", a),
			zap.Error(err))
		return false
	}
	if name == "" || name == c.work.hostIf(c.prefix()) {
		return false
	}
	c.log.Warn("an address that is free in the datastore is in use on this host, and is not assigned",
		zap.Stringer("address", a), zap.String("interface", name))
	return true
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

// giveBack releases these addresses, and no other of the container.
func (c *call) giveBack(ctx context.Context, got []netip.Addr) error {
	if len(got) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var releases []ipam.Release
	for _, a := range got {
		releases = append(releases, ipam.Release{Address: a, Handle: c.handle()})
	}
	c.released(got)
	_, err := c.allocator().ReleaseIPs(ctx, releases...)
	return err
}

// pools resolves pools that are named by CIDR or by name.
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
			return nil, invalidConf(fmt.Sprintf("ipam pool %q cannot be used for %s", name, family),
				"its CIDR is "+cidr.String())
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

// releaseExcept releases all addresses of the container's handle except keep.
func (c *call) releaseExcept(ctx context.Context, keep []netip.Addr) error {
	if len(keep) == 0 {
		return c.releaseHandle(ctx, c.handle())
	}
	now, err := c.allocator().AssignedTo(ctx, c.work.Node, c.handle())
	if err != nil {
		return err
	}
	return c.giveBack(ctx, without(addresses(now), keep))
}

// checkAssigned checks that the container's handle has all of want.
func (c *call) checkAssigned(ctx context.Context, want []netip.Addr) error {
	have, err := c.allocator().IPsByHandle(ctx, c.handle())
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return fmt.Errorf("read handle %s: %w", c.handle(), err)
	}
	for _, a := range want {
		if !slices.Contains(have, a) {
			return fmt.Errorf("address %s is not assigned to container %s any more", a, c.q.ContainerID)
		}
	}
	return nil
}

func sameAddresses(a, b []netip.Addr) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, netip.Addr.Compare)
	slices.SortFunc(b, netip.Addr.Compare)
	return slices.Equal(a, b)
}
