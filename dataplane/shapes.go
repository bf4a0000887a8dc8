package dataplane

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/dataplane/shape"
)

// shapeConfig lists the limits of this node's workloads, in order.
func (s *state) shapeConfig() []shape.Endpoint {
	var list []shape.Endpoint
	for _, e := range s.usable() {
		if q := e.Spec.QoSControls; q != nil {
			list = append(list, shape.Endpoint{
				Interface: e.Spec.InterfaceName,
				Ingress:   shape.Limit{Bandwidth: q.IngressBandwidth, Burst: q.IngressBurst, PeakRate: q.IngressPeakrate, MinBurst: q.IngressMinburst},
				Egress:    shape.Limit{Bandwidth: q.EgressBandwidth, Burst: q.EgressBurst, PeakRate: q.EgressPeakrate, MinBurst: q.EgressMinburst},
			})
		}
	}
	slices.SortFunc(list, func(a, b shape.Endpoint) int { return strings.Compare(a.Interface, b.Interface) })
	return list
}

// flushShapes applies the limits. It returns when to be called again at the latest.
func (a *Agent) flushShapes() time.Duration {
	_, _, err := a.shapes.Flush()
	a.report("shape", cmp.Or(err, a.shapes.Problem()))
	a.reportRepairs("shape", a.shapes.Repairs)
	return a.shapes.Next()
}
