package shape

import "github.com/manxnet/manx/dataplane/hoststate"

// fromState lists the limits of this node's workloads.
func fromState(h *hoststate.Host) []endpoint {
	var list []endpoint
	for _, e := range h.Usable() {
		if q := e.QoSControls; q != nil && h.Connects(e.Interface) {
			list = append(list, endpoint{
				Interface: e.Interface,
				Ingress: limit{Bandwidth: q.IngressBandwidth, Burst: q.IngressBurst, PeakRate: q.IngressPeakrate,
					MinBurst: q.IngressMinburst},
				Egress: limit{Bandwidth: q.EgressBandwidth, Burst: q.EgressBurst, PeakRate: q.EgressPeakrate,
					MinBurst: q.EgressMinburst},
			})
		}
	}
	return list
}
