package route

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// Name is the target's in logs.
func (t *Target) Name() string { return "route" }

// Health returns the health of the routes.
func (t *Target) Health() reconcile.Health {
	return reconcile.Health{Part: "routes", Failures: t.table.Failures(), Problem: t.table.Problem()}
}

// SetState sets the wanted routes of this host from a state.
func (t *Target) SetState(h *hoststate.Host) {
	t.rules.node, t.rules.vteps, t.policyOnly = h.Node, h.VTEPs, h.PolicyOnly
	if !slices.Equal(t.static, h.Statics) {
		t.SetStatic(h.Statics)
	}
	t.setPeers(h.Peers)
	if h.NodesChanged {
		t.decideWorkloadsAgain()
	}
	if h.Concerned {
		t.Configure(fromState(h))
		t.disabled = overlay.Disabled(&h.Felix)
		t.bgpOff = ""
		if h.Own != nil {
			t.bgpOff = h.Own.Annotations[model.AnnotationBGPOff]
		}
	}
	if h.VTEPsChanged {
		t.followVTEPs(h.VTEPsOf)
	}
	t.Synced(h.DatastoreSynced && h.BGPSynced) // after the pools, whose source of routes has to be known
}

// fromState returns the routes that the datastore configures for this host.
func fromState(h *hoststate.Host) Config {
	c := Config{
		Node4:            h.BGPSpec().Address(model.IPv4),
		Node6:            h.BGPSpec().Address(model.IPv6),
		Pools:            h.PoolTable(),
		Tables:           OwnTables(),
		Blocks:           slices.SortedFunc(maps.Keys(h.Blocks), netip.Prefix.Compare),
		WorkloadMetric4:  metric(h.Felix.IPv4NormalRoutePriority),
		WorkloadMetric6:  metric(h.Felix.IPv6NormalRoutePriority),
		ElevatedMetric4:  metric(h.Felix.IPv4ElevatedRoutePriority),
		ElevatedMetric6:  metric(h.Felix.IPv6ElevatedRoutePriority),
		WorkloadSource4:  source(h.Felix.DeviceRouteSourceAddress),
		WorkloadSource6:  source(h.Felix.DeviceRouteSourceAddressIPv6),
		WorkloadProtocol: protocol(h.Felix.DeviceRouteProtocol),
		RemoveExternal:   h.Felix.RemoveExternalRoutes == nil || *h.Felix.RemoveExternalRoutes,
		LeaveWorkloads:   h.Felix.RouteSyncDisabled != nil && *h.Felix.RouteSyncDisabled,
		IsNode:           h.IsNode,
	}
	for _, prefix := range h.Interfaces {
		if h.Connects(prefix) {
			c.WorkloadPrefixes = append(c.WorkloadPrefixes, prefix)
		} else {
			c.ForeignPrefixes = append(c.ForeignPrefixes, prefix)
		}
	}
	for k, e := range h.Usable() {
		if !h.Connects(e.Interface) {
			continue
		}
		addresses, refusals := h.Addresses(e)
		c.Endpoints = append(c.Endpoints, Endpoint{
			Name: k.Namespace + "/" + k.Name, Interface: e.Interface,
			Addresses: masked(addresses), Refusals: refusals,
		})
	}
	slices.SortFunc(c.Endpoints, func(a, b Endpoint) int { return strings.Compare(a.Name, b.Name) })
	return c
}

func masked(list []netip.Prefix) []netip.Prefix {
	fresh := make([]netip.Prefix, len(list))
	for i, p := range list {
		fresh[i] = p.Masked()
	}
	return fresh
}

func metric(p *int) uint32 {
	if p == nil || *p <= 0 {
		return 0
	}
	return uint32(*p)
}

// source is the address of a setting, invalid if it has none.
func source(text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// protocol is that of a setting, 0 if it has none.
func protocol(p *int) kernel.Protocol {
	if p == nil || *p < 1 || *p > math.MaxUint8 {
		return 0
	}
	return kernel.Protocol(*p)
}
