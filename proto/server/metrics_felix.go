package server

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// ServeFelixMetrics serves /metrics on l as ServeWeb does, with further metrics under the names that Felix has for
// them, and without the ones whose names begin with a prefix.
func (s *Server) ServeFelixMetrics(ctx context.Context, l net.Listener, without ...string) error {
	felix := prometheus.NewRegistry()
	felix.MustRegister(&felixMetrics{s.config.Node, s.Datastore, s.Policy})
	own := prometheus.GathererFunc(leavingOut(s.registry.Gather, without))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metricsHandler(prometheus.Gatherers{own, felix}))
	return s.serveWeb(ctx, l, mux)
}

// leavingOut returns a function that gathers all but the families whose names begin with a prefix.
func leavingOut[F interface{ GetName() string }](gather func() ([]F, error), prefixes []string) func() ([]F, error) {
	return func() ([]F, error) {
		families, err := gather()
		return slices.DeleteFunc(families, func(f F) bool {
			return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(f.GetName(), p) })
		}), err
	}
}

// felixMetrics are the figures of Felix that this daemon has, too.
type felixMetrics struct {
	node      string
	datastore *DatastoreView
	policy    *PolicyView
}

const (
	felixEndpoints         = "felix_active_local_endpoints"
	felixPolicies          = "felix_active_local_policies"
	felixSelectors         = "felix_active_local_selectors"
	felixHosts             = "felix_cluster_num_hosts"
	felixHostEndpoints     = "felix_cluster_num_host_endpoints"
	felixWorkloadEndpoints = "felix_cluster_num_workload_endpoints"
	felixClusterPolicies   = "felix_cluster_num_policies"
	felixProfiles          = "felix_cluster_num_profiles"
	felixTiers             = "felix_cluster_num_tiers"
	felixResyncState       = "felix_resync_state"
	felixResyncs           = "felix_resyncs_started"
	felixFailures          = "felix_int_dataplane_failures"
)

var felixDescriptions = describe([]description{
	{felixEndpoints, "Workload endpoints and host endpoints of this node.", nil},
	{felixPolicies, "Policies that select endpoints of this node.", nil},
	{felixSelectors, "Selectors that the rules of this node use.", nil},
	{felixHosts, "Nodes of the cluster.", nil},
	{felixHostEndpoints, "Host endpoints of the cluster.", nil},
	{felixWorkloadEndpoints, "Workload endpoints of the cluster.", nil},
	{felixClusterPolicies, "Policies of the cluster, of all kinds.", nil},
	{felixProfiles, "Profiles of the cluster, also those of namespaces and service accounts.", nil},
	{felixTiers, "Tiers of the cluster.", nil},
	{felixResyncState, "State of the datastore: 1 waiting for it, 2 being read, 3 in sync.", nil},
	{felixResyncs, "Full reads of the datastore.", nil},
	{felixFailures, "Changes of rules that the kernel did not take.", nil},
})

// Describe implements prometheus.Collector.
func (*felixMetrics) Describe(out chan<- *prometheus.Desc) { felixDescriptions.Describe(out) }

// Collect implements prometheus.Collector. A figure that is not known, because nothing here reads its kind or policy is
// another program's business, is left out.
func (m *felixMetrics) Collect(out chan<- prometheus.Metric) {
	gauge, counter := felixDescriptions.send(out)
	if agent := m.policy.now().Agent; agent != nil {
		st, _ := m.policy.newest.take(agent.Status)
		gauge(felixPolicies, float64(st.Policies))
		gauge(felixSelectors, float64(st.Selectors))
		counter(felixFailures, float64(st.FailedTransactions))
	}
	tables := m.datastore.now().Tables
	if tables == nil {
		gauge(felixResyncState, resyncState(datastore.Status{}, false))
		return
	}
	st := tables.Status()
	gauge(felixResyncState, resyncState(st, true))
	if !st.Complete {
		counter(felixResyncs, 0)
		return
	}
	counter(felixResyncs, float64(1+st.Restarts)) // the first one counts
	for name, n := range clusterSizes(tables.Kinds()) {
		gauge(name, float64(n))
	}
	gauge(felixEndpoints, float64(endpointsOf(tables.Snapshot(), m.node)))
}

// resyncState is the state in Felix' numbers.
func resyncState(st datastore.Status, connected bool) float64 {
	switch {
	case st.InSync:
		return 3
	case connected && st.LastError == nil:
		return 2
	}
	return 1
}

// clusterSizes returns the numbers of objects under their names, of the kinds that are read.
func clusterSizes(kinds []datastore.KindStatus) map[string]int {
	sizes := map[string]int{}
	for _, k := range kinds {
		name := map[model.Kind]string{model.KindNode: felixHosts, model.KindHostEndpoint: felixHostEndpoints,
			model.KindWorkloadEndpoint: felixWorkloadEndpoints, model.KindTier: felixTiers,
			model.KindProfile: felixProfiles, model.KindNamespace: felixProfiles,
			model.KindServiceAccount: felixProfiles}[k.Kind]
		if policy.IsPolicy(k.Kind) {
			name = felixClusterPolicies
		}
		if name != "" {
			sizes[name] += k.Objects
		}
	}
	return sizes
}

// endpointsOf counts the endpoints of a node.
func endpointsOf(r model.Reader, node string) (n int) {
	for _, e := range model.All[model.WorkloadEndpoint](r, model.KindWorkloadEndpoint) { // those of others are reduced
		if e.Spec.Node == node {
			n++
		}
	}
	for _, e := range model.All[v3.HostEndpoint](r, model.KindHostEndpoint) {
		if e.Spec.Node == node {
			n++
		}
	}
	return n
}
