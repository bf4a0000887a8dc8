package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// drain takes this node out of service, and back, according to its Node.
type drain struct {
	*node.Drainer
	deps deps.Deps
}

// newDrain returns nil without BGP: then there are no routes that a drain could withdraw.
func newDrain(d deps.Deps, o networkingOptions) *drain {
	if !o.bgp() {
		return nil
	}
	return &drain{deps: d, Drainer: &node.Drainer{Store: d.Store, Node: d.Node.Name, Log: d.Log.Named("drain"),
		Packets: func() (uint64, error) {
			return d.Kernel.SentPackets(workloadInterfaces(d.Tables.Snapshot(), d.Node).Match)
		}}}
}

func (d *drain) Name() string { return "drain" }
func (d *drain) Needs() part.Needs {
	return append(part.OwnOf(model.KindNode), part.AllOf(model.KindFelixConfiguration)...)
}
func (d *drain) Notices() []server.Notice {
	return append(drainNotice(d.deps.Node.Name, d.State()), peerDrainNotices(d.deps.Node.Name, d.Peers())...)
}
func (d *drain) Run(ctx context.Context) error { return d.Drainer.Run(ctx, d.deps.Tables) }

var metricDrain = prometheus.NewDesc("manx_node_drain_phase",
	"1 for the phase that the node is in, 0 for the others: in_service, draining, drained.", []string{"phase"}, nil)

// Describe implements prometheus.Collector.
func (*drain) Describe(out chan<- *prometheus.Desc) { out <- metricDrain }

// Collect implements prometheus.Collector.
func (d *drain) Collect(out chan<- prometheus.Metric) {
	now := d.State().Phase
	for _, phase := range []model.DrainPhase{model.InService, model.Draining, model.Drained} {
		value := 0.0
		if phase == now {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(metricDrain, prometheus.GaugeValue, value,
			cmp.Or(string(phase), "in_service"))
	}
}

// outOfService returns the condition's message while the node's routes are withdrawn.
func (d *drain) outOfService() string {
	if d != nil && d.State().Phase == model.Drained {
		return "this node is drained on request, its routes are withdrawn: manxctl node undrain returns it to service"
	}
	return ""
}

// workloadInterfaces returns the prefixes of workloads' host interfaces.
func workloadInterfaces(r model.Reader, n deps.Node) felixconfig.InterfacePrefixes {
	return felixconfig.ParseInterfacePrefixes(felixconfig.Merge(r, n.Name, n.Felix).InterfacePrefix)
}

// drainNotice reports that the node is not in service.
func drainNotice(name string, s node.DrainState) []server.Notice {
	if s.Phase == model.InService {
		return nil
	}
	return []server.Notice{{Topic: "node", Subject: name, Text: fmt.Sprintf("%s: %s", s.Phase, s.Reason)}}
}

// peerDrainNotices report the peers that are not in service.
func peerDrainNotices(name string, peers map[netip.Addr]model.DrainPhase) (list []server.Notice) {
	for _, a := range slices.SortedFunc(maps.Keys(peers), netip.Addr.Compare) {
		text := "its routes, and those that it is sent, are the last choice"
		if peers[a] == model.Draining {
			text += "; waiting for other routers to act"
		}
		list = append(list, server.Notice{Topic: "bgp", Subject: "session with " + a.String(),
			Text: fmt.Sprintf("%s: %s; manxctl node undrain %s --peer %s returns it to service", peers[a], text, name,
				a)})
	}
	return list
}
