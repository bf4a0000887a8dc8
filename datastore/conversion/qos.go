package conversion

import (
	"regexp"
	"strings"

	"github.com/projectcalico/api/pkg/lib/numorstring"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/manxnet/manx/datastore/model"
)

const (
	defaultBurst       = 4 << 30 // bits
	defaultPacketBurst = 5
	qosPrefix          = "qos.projectcalico.org/"
	bandwidthSuffix    = "-bandwidth"
)

// qosControls parses the traffic limits of a pod, nil for none.
func qosControls(n *notices, annotations map[string]string) *model.QoSControls {
	if !limited(annotations) {
		return nil
	}
	in, out := qosOf(n, annotations, "ingress"), qosOf(n, annotations, "egress")
	q := model.QoSControls{
		IngressBandwidth: in.bandwidth, IngressBurst: in.burst, IngressPeakrate: in.peakrate,
		IngressMinburst:   in.minburst,
		IngressPacketRate: in.packetRate, IngressPacketBurst: in.packetBurst, IngressMaxConnections: in.connections,
		EgressBandwidth: out.bandwidth, EgressBurst: out.burst, EgressPeakrate: out.peakrate,
		EgressMinburst:   out.minburst,
		EgressPacketRate: out.packetRate, EgressPacketBurst: out.packetBurst, EgressMaxConnections: out.connections,
	}
	if text, ok := annotations[qosPrefix+"dscp"]; ok {
		dscp := numorstring.DSCPFromString(text)
		if dscp.Validate() != nil {
			n.add(wrong(annotation(qosPrefix+"dscp"), text, "must be a number from 0 to 63 or a name like EF, "+
				"AF11 or CS1"), "the annotation is left out")
		} else {
			q.DSCP = dscp.String()
		}
	}
	if q == (model.QoSControls{}) {
		return nil
	}
	return &q
}

// limited reports whether there is any annotation of limits. Most pods have none, and should cost nothing.
func limited(annotations map[string]string) bool {
	for name := range annotations {
		if strings.HasPrefix(name, qosPrefix) || strings.HasSuffix(name, bandwidthSuffix) {
			return true
		}
	}
	return false
}

// qos is the limits of one direction; 0 is none.
type qos struct {
	bandwidth, burst, peakrate, minburst, packetRate, packetBurst, connections int64
}

func qosOf(n *notices, annotations map[string]string, direction string) qos {
	read := func(key string, l model.Range) int64 { return quantity(n, annotations, key, l) }
	own, ranges := qosPrefix+direction, model.QoSRanges
	q := qos{
		burst: read(own+"Burst", ranges.Burst), peakrate: read(own+"Peakrate", ranges.Peakrate),
		minburst:   read(own+"Minburst", ranges.Minburst),
		packetRate: read(own+"PacketRate", ranges.PacketRate), packetBurst: read(own+"PacketBurst", ranges.PacketBurst),
		connections: read(own+"MaxConnections", ranges.MaxConnections),
	}
	if _, ok := annotations[own+"Bandwidth"]; ok {
		q.bandwidth = read(own+"Bandwidth", ranges.Bandwidth)
	} else {
		q.bandwidth = read("kubernetes.io/"+direction+bandwidthSuffix, ranges.Bandwidth)
	}
	needs := func(value *int64, key string, fits bool, rule string) {
		if *value != 0 && !fits {
			n.add(wrong(annotation(own+key), annotations[own+key], "%s", rule), "the annotation is left out")
			*value = 0
		}
	}
	needs(&q.burst, "Burst", q.bandwidth != 0, "needs "+direction+"Bandwidth")
	needs(&q.peakrate, "Peakrate", q.bandwidth != 0 && q.peakrate > q.bandwidth, "must be greater than "+direction+
		"Bandwidth")
	needs(&q.minburst, "Minburst", q.peakrate != 0, "needs "+direction+"Peakrate")
	needs(&q.packetBurst, "PacketBurst", q.packetRate != 0, "needs "+direction+"PacketRate")
	if q.bandwidth != 0 && q.burst == 0 {
		q.burst = defaultBurst
	}
	if q.packetRate != 0 && q.packetBurst == 0 {
		q.packetBurst = defaultPacketBurst
	}
	return q
}

// shortQuantity matches numbers that are short enough to calculate with: a comparison with 1e9999999 takes seconds.
var shortQuantity = regexp.MustCompile(`^[+-]?[0-9.]{1,32}([eE][+-]?[0-9]{1,2}|[A-Za-z]{0,2})$`)

// quantity parses a number such as "10M", 0 for none.
func quantity(n *notices, annotations map[string]string, key string, l model.Range) int64 {
	text, ok := annotations[key]
	if !ok {
		return 0
	}
	q, ok := parseQuantity(text)
	if !ok {
		n.add(wrong(annotation(key), text, "must be a number, like 1000 or 10M"), "the annotation is left out")
		return 0
	}
	for _, end := range []struct {
		outside bool
		value   int64
	}{{q.CmpInt64(l.Least) < 0, l.Least}, {q.CmpInt64(l.Most) > 0, l.Most}} {
		if end.outside {
			n.add(wrong(annotation(key), text, "must be from %d to %d", l.Least, l.Most),
				"it is taken as the nearest of these")
			return end.value
		}
	}
	return q.Value()
}

func parseQuantity(text string) (resource.Quantity, bool) {
	if !shortQuantity.MatchString(text) {
		return resource.Quantity{}, false
	}
	q, err := resource.ParseQuantity(text)
	return q, err == nil
}
