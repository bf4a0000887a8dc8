package dataplane

import (
	"errors"
	"fmt"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/wireguard"
)

// Cleanup removes from the host the objects that agents leave there when they end: all routes of protocols 12 and 80 in
// the tables of a node, the limits of bandwidth, its own VXLAN and WireGuard devices with their rules and routes, the
// addresses of its other devices, the entries of neighbours, and those for which the host answers. Nobody may open
// sockets for ICMP echo again, if only the group of this process could. Workload interfaces stay: they go with
// their workloads. It returns how many routes, limits, devices and addresses it removed.
func Cleanup(k Kernel) (removed int, err error) {
	return cleanup(k, route.OwnTables(), overlay.DeviceNames())
}

// CleanupBesideCalico removes the objects that a calico-node on this host neither has nor changes, beside the packet
// filter: the rest is its own by now.
func CleanupBesideCalico(k Kernel) error { return wireguard.CleanupExceptions(k) }

func cleanup(k Kernel, tables []kernel.Table, devices []string) (removed int, err error) {
	routes, err := k.ListRoutes(tables...)
	if err != nil {
		return 0, err
	}
	var ops []kernel.RouteOp
	for _, r := range routes {
		if r.Protocol == kernel.ProtocolBIRD || r.Protocol == kernel.ProtocolCalico {
			ops = append(ops, kernel.RouteOp{Verb: kernel.DeleteRoute, Route: r})
		}
	}
	var errs []error
	for i, err := range k.ApplyRoutes(ops) {
		if err != nil {
			removed--
			errs = append(errs, fmt.Errorf("remove route %s: %w", ops[i].Route.Place(), err))
		}
	}
	removed += len(ops)
	limits, err := k.ListShapes()
	errs = append(errs, err)
	for device, l := range limits {
		if err := k.RemoveShape(device, l); err != nil {
			errs = append(errs, err)
			continue
		}
		removed++
	}
	n, err := deleteVXLAN(k, devices)
	removed += n
	errs = append(errs, err)
	n, err = wireguard.Cleanup(k)
	removed += n
	errs = append(errs, err)
	addresses, err := addressesOf(k, devices)
	errs = append(errs, err)
	for _, a := range addresses {
		if err := k.DeleteAddress(a); err != nil {
			errs = append(errs, fmt.Errorf("remove address %s: %w", a.Prefix, err))
			continue
		}
		removed++
	}
	neighbours, err := k.ListNeighbours()
	errs = append(errs, err)
	for _, n := range neighbours {
		if n.Own { // the kernel resolves it again when it is needed
			errs = append(errs, k.RemoveNeighbour(n.Link, n.Address))
		}
	}
	proxies, err := k.ListProxyNeighbours()
	errs = append(errs, err)
	for _, p := range proxies {
		errs = append(errs, k.RemoveProxyNeighbour(p.Link, p.Address))
	}
	return removed, errors.Join(append(errs, forbidEcho(k))...)
}

// deleteVXLAN deletes VXLAN devices, which would take packets from every host. Those of IPIP belong to the kernel.
func deleteVXLAN(k kernel.Links, devices []string) (deleted int, err error) {
	links, err := k.ListLinks()
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, l := range links {
		if l.Kind == kernel.KindVXLAN && slices.Contains(devices, l.Name) {
			if err := k.DeleteLink(l.Index); err != nil {
				errs = append(errs, err)
				continue
			}
			deleted++
		}
	}
	return deleted, errors.Join(errs...)
}

func addressesOf(k kernel.Links, devices []string) ([]kernel.Address, error) {
	links, err := k.ListLinks()
	if err != nil {
		return nil, err
	}
	all, err := k.ListAddresses()
	if err != nil {
		return nil, err
	}
	var list []kernel.Address
	for _, l := range links {
		for _, a := range all {
			if a.Link == l.Index && slices.Contains(devices, l.Name) {
				list = append(list, a)
			}
		}
	}
	return list, nil
}
