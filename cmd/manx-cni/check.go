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
	"github.com/containernetworking/cni/pkg/version"

	"github.com/manxnet/manx/dataplane/kernel"
)

// check compares what ADD returned with the datastore and the kernel, and reports every difference.
func (c *call) check(ctx context.Context) error {
	want, err := c.previous()
	if err != nil {
		return err
	}
	stored, err := c.storedEndpoint(ctx)
	if err != nil {
		return err
	}
	e := endpointOf(stored)
	if e == nil {
		return fmt.Errorf("the WorkloadEndpoint of container %s is missing", c.args.ContainerID)
	}
	if e.Spec.ContainerID != c.args.ContainerID {
		return fmt.Errorf("%s belongs to container %s", stored.Key, e.Spec.ContainerID)
	}
	var problems []error
	if have := endpointAddresses(e); !sameAddresses(have, want) {
		problems = append(problems, fmt.Errorf("%s has addresses %v, ADD returned %v", stored.Key, have, want))
	}
	pod, err := c.pod(want)
	if err != nil {
		return err
	}
	if pod.HostIf != e.Spec.InterfaceName {
		problems = append(problems, fmt.Errorf("%s has interfaceName = %q, want %q", stored.Key, e.Spec.InterfaceName, pod.HostIf))
	}
	if pod.MAC, err = net.ParseMAC(e.Spec.MAC); err != nil {
		problems = append(problems, fmt.Errorf("%s has mac = %q: %w", stored.Key, e.Spec.MAC, err))
	}
	return errors.Join(append(problems, kernel.CheckPod(pod), c.checkAddresses(ctx, want))...)
}

// previous reads the addresses of this interface from the result that the runtime hands back.
func (c *call) previous() ([]netip.Addr, error) {
	if err := version.ParsePrevResult(&c.conf.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult cannot be read", err.Error())
	}
	if c.conf.PrevResult == nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "prevResult is missing", "CHECK needs what ADD returned")
	}
	r, err := current.NewResultFromResult(c.conf.PrevResult)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult cannot be read", err.Error())
	}
	var addrs []netip.Addr
	for _, ip := range r.IPs {
		if ip == nil || !belongsTo(c.args.IfName, r, ip.Interface) {
			continue // of another plugin in the chain
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs, nil
}

func sameAddresses(a, b []netip.Addr) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, netip.Addr.Compare)
	slices.SortFunc(b, netip.Addr.Compare)
	return slices.Equal(a, b)
}

// belongsTo tells whether an address of a result, with the index of its interface, is on the interface of that name.
// An address without interface is taken to be.
func belongsTo(name string, r *current.Result, index *int) bool {
	if index == nil {
		return true
	}
	i := *index
	return i >= 0 && i < len(r.Interfaces) && r.Interfaces[i] != nil && r.Interfaces[i].Name == name
}
