package server

import (
	"context"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// ListEndpoints implements manxv1.ManxServer.
func (v *DataplaneView) ListEndpoints(
	context.Context, *manxv1.ListEndpointsRequest,
) (*manxv1.ListEndpointsResponse, error) {
	return &manxv1.ListEndpointsResponse{Endpoints: v.endpoints()}, nil
}

// endpoints lists the workload endpoints of this node.
func (v *DataplaneView) endpoints() []*manxv1.Endpoint {
	snapshot := v.datastore.snapshot()
	if snapshot == nil {
		return nil
	}
	refused := map[string]dataplane.Notice{}
	if agent := v.now().Agent; agent != nil {
		for _, n := range agent.Status().RefusedEndpoints {
			refused[n.Subject] = n
		}
	}
	var list []*manxv1.Endpoint
	for key, e := range model.All[model.WorkloadEndpoint](snapshot, model.KindWorkloadEndpoint) {
		if e.Spec.Node == v.node {
			list = append(list, v.endpoint(key, e.Spec, refused))
		}
	}
	return list
}

// endpoint describes one of them. Its state is that of the route to it that is furthest from the desired state.
func (v *DataplaneView) endpoint(key model.Key, e model.WorkloadEndpointSpec,
	refused map[string]dataplane.Notice) *manxv1.Endpoint {
	x := &manxv1.Endpoint{
		Namespace: key.Namespace, Name: key.Name, Workload: e.Pod, Interface: e.InterfaceName, Addresses: e.IPNetworks,
		Phase: string(reconcile.Applied), Reason: "it has no addresses",
	}
	if x.Workload == "" {
		x.Workload = e.Workload
	}
	if n, ok := refused[key.String()]; ok {
		x.Phase, x.Reason, x.SinceUnixMs = string(reconcile.Blocked), n.Text, unixMs(n.Since)
		return x
	}
	if agent := v.now().Agent; agent != nil && e.InterfaceName != "" {
		if s, ok := agent.OfOthers(e.InterfaceName); ok {
			x.Phase, x.Reason = string(s.Phase), s.Reason
			return x
		}
	}
	for i, p := range model.Networks(e.IPNetworks) {
		r := v.workloadRoute(p)
		if i == 0 || worse(r.Phase, reconcile.Phase(x.Phase)) {
			x.Phase, x.Reason, x.SinceUnixMs = string(r.Phase), r.Reason, unixMs(r.Since)
		}
	}
	return x
}

// workloadRoute is the state of the route to an address of a workload.
func (v *DataplaneView) workloadRoute(p netip.Prefix) route.Status {
	if agent := v.now().Agent; agent != nil {
		if r, ok := agent.Route(p.Masked()); ok {
			return r
		}
	}
	return route.Status{Status: reconcile.Status{Phase: reconcile.Pending, Reason: "no route to " + p.String() +
		" has been decided yet"}}
}

// worse orders phases by severity.
func worse(a, b reconcile.Phase) bool {
	order := []reconcile.Phase{reconcile.Applied, reconcile.Leftover, reconcile.Removing, reconcile.Pending,
		reconcile.Blocked, reconcile.Failed}
	return slices.Index(order, a) > slices.Index(order, b)
}
