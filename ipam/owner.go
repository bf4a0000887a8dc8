package ipam

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/model"
)

// SetOwner replaces the attributes of all addresses of a handle: another workload has them now. It returns the
// addresses with the length of their block, none if the handle has none. Each address gets a new sequence number: a
// release that was decided before fails.
func (a *Allocator) SetOwner(ctx context.Context, handle string, attrs map[string]string) ([]netip.Prefix, error) {
	return a.changeOwners(ctx, handle, func(attr *model.BlockAttribute) bool {
		attr.Secondary = attrs
		return true
	})
}

// SetNextOwner sets the attributes of the workload that shall have all addresses of a handle next (Calico's alternate
// owner), unless it is their owner already. It returns the addresses as SetOwner.
func (a *Allocator) SetNextOwner(ctx context.Context, handle string, attrs map[string]string) ([]netip.Prefix, error) {
	return a.changeOwners(ctx, handle, func(attr *model.BlockAttribute) bool {
		if samePod(attr.Secondary, attrs) {
			return false
		}
		attr.Alternate = attrs
		return true
	})
}

// Promote makes a pod the owner of the addresses of a handle whose next owner it is.
func (a *Allocator) Promote(ctx context.Context, handle, namespace, pod string) error {
	next := map[string]string{"namespace": namespace, "pod": pod}
	_, err := a.changeOwners(ctx, handle, func(attr *model.BlockAttribute) bool {
		if !samePod(attr.Alternate, next) {
			return false
		}
		attr.Secondary, attr.Alternate = attr.Alternate, nil
		return true
	})
	return err
}

// DropNextOwner makes a pod the next owner of the addresses of a handle no more.
func (a *Allocator) DropNextOwner(ctx context.Context, handle, namespace, pod string) error {
	next := map[string]string{"namespace": namespace, "pod": pod}
	_, err := a.changeOwners(ctx, handle, func(attr *model.BlockAttribute) bool {
		if !samePod(attr.Alternate, next) {
			return false
		}
		attr.Alternate = nil
		return true
	})
	return err
}

// samePod reports whether two sets of attributes are of one pod.
func samePod(a, b map[string]string) bool {
	return a["pod"] != "" && a["pod"] == b["pod"] && a["namespace"] == b["namespace"]
}

// MachineHandle returns the handle of a virtual machine of KubeVirt. Beyond 128 characters its name is hashed, as in
// Calico.
func MachineHandle(network, namespace, name string) string {
	const longest = 128
	prefix, rest := network+".vmi.", namespace+"."+name
	if len(prefix)+len(rest) <= longest {
		return prefix + rest
	}
	sum := sha256.Sum256([]byte(rest))
	hash := base64.RawURLEncoding.EncodeToString(sum[:])
	return prefix + "_" + hash[:min(len(hash), max(0, longest-1-len(prefix)))]
}

// changeOwners applies a change of the attributes of all addresses of a handle, which returns whether there is one. The
// result is that of SetOwner, with the unchanged addresses.
func (a *Allocator) changeOwners(ctx context.Context, handle string, change func(*model.BlockAttribute) bool) (
	[]netip.Prefix, error) {
	var all []netip.Prefix
	err := a.eachBlockOf(ctx, handle, func(s session, cidr netip.Prefix) error {
		var found []netip.Prefix
		err := repeat(ctx, "set owner in block "+cidr.String(), func() error {
			found = nil
			b, err := s.getBlock(ctx, cidr)
			if err != nil {
				return err
			}
			changed := false
			for _, o := range ordinalsOf(b.Block, handle) {
				attr := b.Attributes[*b.Allocations[o]]
				found = append(found, netip.PrefixFrom(addressAt(cidr, o), cidr.Bits()))
				if change(&attr) {
					changed = true
					occupy(b.Block, o, addAttribute(b.Block, attr))
				}
			}
			if !changed {
				return nil
			}
			compact(b.Block)
			_, err = s.putBlock(ctx, b)
			return gone(err)
		})
		all = append(all, found...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("set the owner of the addresses of handle %s: %w", handle, err)
	}
	return all, nil
}

// AllocationsOf lists the addresses of a handle, none if it has none.
func (a *Allocator) AllocationsOf(ctx context.Context, handle string) (list []Allocation, err error) {
	err = a.eachBlockOf(ctx, handle, func(s session, cidr netip.Prefix) error {
		b, err := s.getBlock(ctx, cidr)
		if err != nil {
			return err
		}
		for x := range Allocations(b.Block) {
			if x.Handle == handle {
				list = append(list, x)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("addresses of handle %s: %w", handle, err)
	}
	return list, nil
}

// eachBlockOf visits the blocks that a handle counts addresses in, as the datastore has them: other nodes may have
// written them. One that is missing is none.
func (a *Allocator) eachBlockOf(ctx context.Context, handle string, visit func(session, netip.Prefix) error) error {
	a.refresh()
	s, err := a.begin(ctx)
	if err != nil {
		return err
	}
	_, h, err := s.getHandle(ctx, handle)
	if errors.Is(err, model.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var blocks []netip.Prefix
	for name := range h.Block {
		cidr, err := netip.ParsePrefix(name)
		if err != nil {
			return fmt.Errorf("it names block %q, want ADDRESS/LENGTH: %w", name, err)
		}
		blocks = append(blocks, cidr)
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	for _, cidr := range blocks {
		if err := visit(s, cidr); err != nil && !errors.Is(err, model.ErrNotFound) {
			return err
		}
	}
	return nil
}
