package shape

import (
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Name is the target's in logs.
func (t *Target) Name() string { return "shape" }

// Health returns the health of the limits.
func (t *Target) Health() reconcile.Health {
	return reconcile.Health{Part: "bandwidth", Failures: t.Failures(), Problem: t.Problem()}
}

// Notices returns none: Failed lists the failures.
func (t *Target) Notices() []reconcile.Notice { return nil }

// SetState sets the wanted limits of bandwidth on this host from a state.
func (t *Target) SetState(h *hoststate.Host) {
	t.Synced(h.DatastoreSynced)
	if h.Concerned {
		t.Configure(fromState(h))
	}
}

// fromState lists the limits of this node's workloads, in order.
func fromState(h *hoststate.Host) []Endpoint {
	var list []Endpoint
	for _, e := range h.Usable() {
		if q := e.Spec.QoSControls; q != nil {
			list = append(list, Endpoint{
				Interface: e.Spec.InterfaceName,
				Ingress: Limit{Bandwidth: q.IngressBandwidth, Burst: q.IngressBurst, PeakRate: q.IngressPeakrate,
					MinBurst: q.IngressMinburst},
				Egress: Limit{Bandwidth: q.EgressBandwidth, Burst: q.EgressBurst, PeakRate: q.EgressPeakrate,
					MinBurst: q.EgressMinburst},
			})
		}
	}
	slices.SortFunc(list, func(a, b Endpoint) int { return strings.Compare(a.Interface, b.Interface) })
	return list
}
