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
	return reconcile.Health{Part: "bandwidth", Failures: t.failures(), Problem: t.problem()}
}

// Notices returns none: Failed lists the failures.
func (t *Target) Notices() []reconcile.Notice { return nil }

// SetState sets the wanted limits of bandwidth on this host from a state.
func (t *Target) SetState(h *hoststate.Host) {
	t.synced(h.DatastoreSynced)
	if h.Concerned {
		t.configure(fromState(h))
	}
}

// fromState lists the limits of this node's workloads, in order.
func fromState(h *hoststate.Host) []endpoint {
	var list []endpoint
	for _, e := range h.Usable() {
		if q := e.Spec.QoSControls; q != nil {
			list = append(list, endpoint{
				Interface: e.Spec.InterfaceName,
				Ingress: limit{Bandwidth: q.IngressBandwidth, Burst: q.IngressBurst, PeakRate: q.IngressPeakrate,
					MinBurst: q.IngressMinburst},
				Egress: limit{Bandwidth: q.EgressBandwidth, Burst: q.EgressBurst, PeakRate: q.EgressPeakrate,
					MinBurst: q.EgressMinburst},
			})
		}
	}
	slices.SortFunc(list, func(a, b endpoint) int { return strings.Compare(a.Interface, b.Interface) })
	return list
}
