package validation_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

func TestQoSRules(t *testing.T) {
	for _, x := range []struct {
		rule   string
		limits model.QoSControls
		want   []string // fields below spec.qosControls
	}{
		{"nothing", model.QoSControls{}, nil},
		{"everything, as low as may be", model.QoSControls{IngressBandwidth: 1000, IngressBurst: 1000,
			IngressPeakrate:   1010,
			IngressMinburst:   1000,
			IngressPacketRate: 1, IngressPacketBurst: 1, IngressMaxConnections: 1, DSCP: "0"}, nil},
		{"everything, as high as may be", model.QoSControls{EgressBandwidth: 1e15, EgressBurst: 34359738360,
			EgressPeakrate: 1.01e15, EgressMinburst: 1e8,
			EgressPacketRate: 10000, EgressPacketBurst: 10000, EgressMaxConnections: 4294967295, DSCP: "EF"}, nil},
		{"a rate alone", model.QoSControls{EgressPacketRate: 100}, nil},
		{"no rate is negative", model.QoSControls{IngressPacketRate: -1, EgressPacketRate: -100},
			[]string{"ingressPacketRate", "egressPacketRate"}},
		{"a rate is bounded", model.QoSControls{IngressPacketRate: 10001, EgressPacketRate: 1 << 40},
			[]string{"ingressPacketRate", "egressPacketRate"}},
		{"a burst is bounded", model.QoSControls{IngressPacketRate: 10, IngressPacketBurst: 10001, EgressPacketRate: 10,
			EgressPacketBurst: -5},
			[]string{"ingressPacketBurst", "egressPacketBurst"}},
		{"connections are counted in 32 bits", model.QoSControls{IngressMaxConnections: 1 << 32,
			EgressMaxConnections: -1},
			[]string{"ingressMaxConnections", "egressMaxConnections"}},
		{"a bandwidth is bounded", model.QoSControls{IngressBandwidth: 999, EgressBandwidth: 1e15 + 1},
			[]string{"ingressBandwidth", "egressBandwidth"}},
		{"a burst of bits is bounded", model.QoSControls{IngressBandwidth: 1e6, IngressBurst: 999, EgressBandwidth: 1e6,
			EgressBurst: 34359738361},
			[]string{"ingressBurst", "egressBurst"}},
		{"what belongs to a setting does not stand alone", model.QoSControls{IngressBurst: 1e6, IngressPeakrate: 1e6,
			EgressBandwidth: 1e6, EgressMinburst: 2000,
			EgressPacketBurst: 5}, []string{"ingressBurst", "ingressPeakrate", "egressMinburst", "egressPacketBurst"}},
		{"the peak is above the rate", model.QoSControls{IngressBandwidth: 1e6, IngressPeakrate: 1e6},
			[]string{"ingressPeakrate"}},
		{"a DSCP is one", model.QoSControls{DSCP: "64"}, []string{"dscp"}},
	} {
		t.Run(x.rule, func(t *testing.T) {
			key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: "n1-k8s-p-eth0"}
			w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1", Orchestrator: "k8s", Pod: "p",
				Endpoint: "eth0", InterfaceName: "cali1", QoSControls: &x.limits}}
			w.Name, w.Namespace = key.Name, key.Namespace
			o := model.NewObject(key, w)
			err := codec.PrepareCreate(o, time.Now())
			var invalid *model.InvalidError
			var fields []string
			if errors.As(err, &invalid) {
				for _, f := range invalid.Fields {
					fields = append(fields, strings.TrimPrefix(f.Field, "spec.qosControls."))
				}
			}
			if !slices.Equal(fields, x.want) {
				t.Fatalf("refused for %v; want %v", err, x.want)
			}
			// A reader does not drop the endpoint for that.
			raw, err := codec.Encode(o)
			if err != nil {
				t.Fatal(err)
			}
			if read := codec.Decode(key, raw, 1); read.Err != nil {
				t.Errorf("quarantined: %v", read.Err)
			}
		})
	}
}
