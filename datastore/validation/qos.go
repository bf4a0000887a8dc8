package validation

import (
	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/datastore/model"
)

// checkQoS applies Calico's rules for pods to a written endpoint. A stored value outside is used as far as possible: a
// negative one as no limit, one that is too high as the maximum.
func checkQoS(c *check, q *model.QoSControls) {
	if q == nil {
		return
	}
	qosLimits{q.IngressBandwidth, q.IngressBurst, q.IngressPeakrate, q.IngressMinburst, q.IngressPacketRate,
		q.IngressPacketBurst, q.IngressMaxConnections}.check(c, "spec.qosControls.ingress")
	qosLimits{q.EgressBandwidth, q.EgressBurst, q.EgressPeakrate, q.EgressMinburst, q.EgressPacketRate,
		q.EgressPacketBurst, q.EgressMaxConnections}.check(c, "spec.qosControls.egress")
	if q.DSCP != "" {
		dscp := numorstring.DSCPFromString(q.DSCP)
		c.failIf(dscp.Validate() != nil, "spec.qosControls.dscp", q.DSCP,
			"must be a number from 0 to 63 or a name like EF, AF11 or CS1")
	}
}

// qosLimits are the settings of one direction.
type qosLimits struct{ bandwidth, burst, peakrate, minburst, packetRate, packetBurst, connections int64 }

func (l qosLimits) check(c *check, direction string) {
	r := model.QoSRanges
	for _, x := range []struct {
		name  string
		value int64
		in    model.Range
	}{
		{"Bandwidth", l.bandwidth, r.Bandwidth}, {"Burst", l.burst, r.Burst}, {"Peakrate", l.peakrate, r.Peakrate},
		{"Minburst", l.minburst, r.Minburst},
		{"PacketRate", l.packetRate, r.PacketRate}, {"PacketBurst", l.packetBurst, r.PacketBurst},
		{"MaxConnections", l.connections, r.MaxConnections},
	} {
		if x.value != 0 && (x.value < x.in.Least || x.value > x.in.Most) {
			c.fail(direction+x.name, x.value, "must be from %d to %d, or left out for no limit", x.in.Least, x.in.Most)
		}
	}
	needs := func(name string, value int64, other string, have int64) {
		if value != 0 && have == 0 {
			c.fail(direction+name, value, "needs %s%s, to which it belongs", direction, other)
		}
	}
	needs("Burst", l.burst, "Bandwidth", l.bandwidth)
	needs("Peakrate", l.peakrate, "Bandwidth", l.bandwidth)
	needs("Minburst", l.minburst, "Peakrate", l.peakrate)
	needs("PacketBurst", l.packetBurst, "PacketRate", l.packetRate)
	if l.peakrate != 0 && l.bandwidth != 0 && l.peakrate <= l.bandwidth {
		c.fail(direction+"Peakrate", l.peakrate, "must be greater than %sBandwidth, %d", direction, l.bandwidth)
	}
}
