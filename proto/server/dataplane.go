package server

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/wireguard"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// DataplaneView shows the kernel state of this node: routes, settings, and those of the workloads.
type DataplaneView struct {
	shown[DataplaneSource]
	node      string
	datastore *DatastoreView
	policy    *PolicyView
	newest    reading[dataplane.Status]
	counted   reading[tally]
}

// DataplaneSource is the source of a DataplaneView.
type DataplaneSource struct {
	Agent Dataplane // nil: not started yet
}

// Dataplane has the calls of *dataplane.Agent that the view uses.
type Dataplane interface {
	Status() dataplane.Status
	Routes() []route.Status
	FollowRoutes() *dataplane.RouteChanges
	RouteCounts() map[reconcile.Phase]int
	Objects(target string) []dataplane.Object
	ObjectCounts() map[string]map[reconcile.Phase]int
	Encryption() []wireguard.PeerStatus
	Route(netip.Prefix) (route.Status, bool)
	RouteTo(netip.Addr) (route.Status, bool)
	OfOthers(iface string) (reconcile.Status, bool)
	Resync()
	Retry(context.Context) ([]dataplane.Retried, error)
}

// Ready reports whether the kernel has been brought to the state of the datastore.
func (v *DataplaneView) Ready() Check {
	c := Check{Name: checkDataplane, Reason: notStarted}
	agent := v.now().Agent
	if agent == nil {
		return c
	}
	st, late := v.newest.take(agent.Status)
	switch {
	case st.LastError != "":
		c.Reason = "the kernel cannot be read or watched: " + st.LastError
	case !st.Started:
		c.Reason = "the kernel has not been brought to the state of the datastore yet"
	case st.NotForwarding != "":
		c.Reason = st.NotForwarding
	default:
		c.OK, c.Reason = true, "the kernel has the wanted devices and routes"
		if st.Failed > 0 {
			c.Reason += fmt.Sprintf(", except for failed ones, which are tried again (%d)", st.Failed)
		}
	}
	c.Reason = asOf(c.Reason, late)
	return c
}

// Checks implements Checker.
func (v *DataplaneView) Checks() []Check { return []Check{v.Ready()} }

func (v *DataplaneView) status(r *manxv1.GetStatusResponse) {
	all, _ := v.counted.take(v.count)
	for phase, n := range all.routes {
		r.Routes[string(phase)] = uint32(n)
	}
	for phase, n := range all.endpoints {
		r.Endpoints[phase] = uint32(n)
	}
}

// tally has the numbers of routes, endpoints and other objects in each phase.
type tally struct {
	peers     []wireguard.PeerStatus
	objects   map[string]map[reconcile.Phase]int // by target
	routes    map[reconcile.Phase]int
	endpoints map[string]int
}

func (v *DataplaneView) count() tally {
	all := tally{endpoints: map[string]int{}}
	if agent := v.now().Agent; agent != nil {
		all.routes, all.objects, all.peers = agent.RouteCounts(), agent.ObjectCounts(), agent.Encryption()
	}
	for _, e := range v.endpoints() {
		all.endpoints[e.GetPhase()]++
	}
	return all
}

// Notices lists the settings of the host that cannot be made.
func (v *DataplaneView) Notices() (all []Notice) {
	agent := v.now().Agent
	if agent == nil {
		return nil
	}
	status, _ := v.newest.take(agent.Status)
	for _, n := range status.Notices {
		all = append(all, Notice{Topic: "dataplane", Subject: n.Subject, Text: n.Text, Since: n.Since})
	}
	if v.policy.now().Agent == nil { // which reports the same
		for _, n := range status.RefusedEndpoints {
			all = append(all, Notice{Topic: "dataplane", Subject: n.Subject, Text: n.Text, Since: n.Since})
		}
	}
	return all
}

// ListHostObjects implements manxv1.ManxServer.
func (v *DataplaneView) ListHostObjects(
	_ context.Context, q *manxv1.ListHostObjectsRequest,
) (*manxv1.ListHostObjectsResponse, error) {
	agent := v.now().Agent
	if agent == nil {
		return nil, status.Error(codes.Unavailable, "manxd is starting: the dataplane does not run yet")
	}
	r := &manxv1.ListHostObjectsResponse{}
	for _, x := range agent.Objects(q.GetTarget()) {
		r.Objects = append(r.Objects, &manxv1.HostObject{Target: x.Target, Name: x.Key, Phase: string(x.Phase),
			Reason: x.Reason, Desired: x.Desired, Actual: x.Actual, SinceUnixMs: unixMs(x.Since)})
	}
	return r, nil
}

// Resync implements manxv1.ManxServer.
func (v *DataplaneView) Resync(context.Context, *manxv1.ResyncRequest) (*manxv1.ResyncResponse, error) {
	agent := v.now().Agent
	if agent == nil {
		return nil, status.Error(codes.Unavailable, "manxd is starting: the dataplane does not run yet")
	}
	agent.Resync()
	return &manxv1.ResyncResponse{Results: []string{
		"the dataplane compares the kernel with the wanted state, and repairs it: see manxctl routes",
	}}, nil
}

const (
	metricRoutes      = "manx_routes"
	metricEndpoints   = "manx_endpoints"
	metricHostObjects = "manx_host_objects"

	metricEncrypted    = "manx_wireguard_encrypted"
	metricHandshakeAge = "manx_wireguard_handshake_age_seconds"
	metricSent         = "manx_wireguard_sent_bytes_total"
	metricReceived     = "manx_wireguard_received_bytes_total"
)

var dataplaneMetrics = describe([]description{
	{metricRoutes, "Routes that are wanted or there, by phase.", []string{"phase"}},
	{metricEndpoints, "Workload endpoints of this node, by phase.", []string{"phase"}},
	{metricHostObjects, "Objects on this host that are wanted or there, by target and phase.",
		[]string{"target", "phase"}},
	{metricEncrypted, "Whether packets to the workloads of a node are encrypted.", ofPeer},
	{metricHandshakeAge, "Time since the last handshake of WireGuard with a node.", ofPeer},
	{metricSent, "Bytes that were sent to a node by WireGuard.", ofPeer},
	{metricReceived, "Bytes that were received from a node by WireGuard.", ofPeer},
})

// ofPeer are the labels of metrics about another node: its name, and ipv4 or ipv6.
var ofPeer = []string{"node", "family"}

// Describe implements prometheus.Collector.
func (*DataplaneView) Describe(out chan<- *prometheus.Desc) { dataplaneMetrics.Describe(out) }

// Collect implements prometheus.Collector.
func (v *DataplaneView) Collect(out chan<- prometheus.Metric) {
	gauge, counter := dataplaneMetrics.send(out)
	all, _ := v.counted.take(v.count)
	for phase, n := range all.routes {
		gauge(metricRoutes, float64(n), string(phase))
	}
	for phase, n := range all.endpoints {
		gauge(metricEndpoints, float64(n), phase)
	}
	for target, phases := range all.objects {
		for phase, n := range phases {
			gauge(metricHostObjects, float64(n), target, string(phase))
		}
	}
	for _, p := range all.peers {
		labels := []string{p.Node, fmt.Sprintf("ipv%d", p.Family)}
		gauge(metricEncrypted, number(p.Encrypted), labels...)
		if p.Key.IsZero() {
			continue
		}
		if !p.Handshake.IsZero() {
			gauge(metricHandshakeAge, time.Since(p.Handshake).Seconds(), labels...)
		}
		counter(metricSent, float64(p.Sent), labels...)
		counter(metricReceived, float64(p.Received), labels...)
	}
}
