package server

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// The names of the metrics are promises.
const (
	metricBuildInfo   = "manx_build_info"
	metricReady       = "manx_ready"
	metricInSync      = "manx_datastore_in_sync"
	metricRevision    = "manx_datastore_revision"
	metricObjects     = "manx_datastore_objects"
	metricQuarantined = "manx_datastore_quarantined"
	metricRestarts    = "manx_datastore_full_reads_total"
	metricRoutes      = "manx_routes"
	metricEndpoints   = "manx_endpoints"
	metricNotices     = "manx_notices"

	metricPolicyWaits        = "manx_cni_policy_waits_total"
	metricPolicyWaitSeconds  = "manx_cni_policy_wait_seconds_total"
	metricPolicyWaitTimeouts = "manx_cni_policy_wait_timeouts_total"
)

// collector reads the metrics from the source when they are asked for.
type collector struct {
	server       *Server
	descriptions map[string]*prometheus.Desc
}

// Collector makes the metrics of the server's source, for a registry.
func (s *Server) Collector() prometheus.Collector {
	c := &collector{server: s, descriptions: map[string]*prometheus.Desc{}}
	for _, d := range append([]description{
		{metricBuildInfo, "Always 1; the labels say what runs.", []string{"version", "commit", "gobgp", "go"}},
		{metricReady, "Whether a check of readiness is passed.", []string{"check"}},
		{metricInSync, "Whether the state of the datastore is complete and up to date.", nil},
		{metricRevision, "Revision of the datastore up to which its state is known.", nil},
		{metricObjects, "Objects of the datastore in use.", nil},
		{metricQuarantined, "Objects of the datastore that cannot be used.", nil},
		{metricRestarts, "Full reads of the datastore after the first.", nil},
		{metricRoutes, "Routes that are wanted or there, by phase.", []string{"phase"}},
		{metricEndpoints, "Workload endpoints of this node, by phase.", []string{"phase"}},
		{metricNotices, "Things that a person should look at; see manxctl status.", nil},
		{metricPolicyWaits, "Workloads whose start waited for policy and routes.", nil},
		{metricPolicyWaitSeconds, "Time that the start of workloads waited for policy and routes.", nil},
		{metricPolicyWaitTimeouts, "Workloads that were started before their policy and routes were in the kernel.", nil},
	}, slices.Concat(bgpDescriptions, policyDescriptions)...) {
		c.descriptions[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
	}
	return c
}

// description is what a metric says of itself.
type description struct {
	name, help string
	labels     []string
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descriptions {
		out <- d
	}
	c.server.programming.Describe(out)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(name string, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(c.descriptions[name], prometheus.GaugeValue, v, labels...)
	}
	counter := func(name string, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(c.descriptions[name], prometheus.CounterValue, v, labels...)
	}
	v, now := c.server.config.Version, c.server.now()
	gauge(metricBuildInfo, 1, v.Manx, v.Commit, v.GoBGP, v.Go)
	_, checks := c.server.Ready()
	for _, check := range checks {
		gauge(metricReady, number(check.OK), check.Name)
	}
	gauge(metricNotices, float64(len(now.notices())))
	w := &c.server.policyWaits
	counter(metricPolicyWaits, float64(w.waits.Load()))
	counter(metricPolicyWaitSeconds, float64(w.waitedMs.Load())/1000)
	counter(metricPolicyWaitTimeouts, float64(w.timeouts.Load()))
	if now.Datastore != nil {
		st := now.Datastore.Status()
		gauge(metricInSync, number(st.InSync))
		gauge(metricRevision, float64(st.Revision))
		gauge(metricObjects, float64(st.Objects))
		gauge(metricQuarantined, float64(st.Quarantined))
		counter(metricRestarts, float64(st.Restarts))
	}
	if now.BGP != nil {
		collectBGP(now, gauge, counter)
	}
	c.collectPolicy(now, out)
	c.server.programming.Collect(out)
	for phase, n := range now.routeCounts() {
		gauge(metricRoutes, float64(n), string(phase))
	}
	endpoints := map[string]int{}
	for _, e := range now.endpoints(c.server.config.Node) {
		endpoints[e.GetPhase()]++
	}
	for phase, n := range endpoints {
		gauge(metricEndpoints, float64(n), phase)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
