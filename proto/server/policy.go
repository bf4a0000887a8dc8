package server

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (s *Source) policyCheck() Check {
	c := Check{Name: checkPolicy}
	st := s.Policy.Status()
	switch {
	case st.LastError != "":
		c.Reason = "the rules cannot be programmed: " + st.LastError
	case st.Since.IsZero() || st.Transactions == 0 && st.Resyncs == 0:
		c.Reason = "the rules have not been programmed yet"
	default:
		c.OK, c.Reason = true, "the rules are in the kernel"
		if st.Revision != 0 {
			c.Reason += fmt.Sprintf(", as of revision %d", st.Revision)
		}
		if n := len(st.Refused); n > 0 {
			c.Reason += fmt.Sprintf(", except for %d parts that it refuses, where everything is dropped", n)
		}
	}
	return c
}

// policyStatus is nil if policy is not this daemon's business.
func (s *Source) policyStatus() *manxv1.PolicyStatus {
	if s.Policy == nil {
		return nil
	}
	st := s.Policy.Status()
	p := &manxv1.PolicyStatus{
		InSync: st.InSync, SinceUnixMs: unixMs(st.Since), Revision: st.Revision, LastError: st.LastError,
		Chains: uint32(st.Chains), Rules: uint32(st.Rules), Sets: uint32(st.Sets), Elements: uint32(st.Elements),
		Endpoints: uint32(st.Endpoints), Transactions: st.Transactions,
	}
	for _, r := range st.Refused {
		p.Refused = append(p.Refused, &manxv1.RefusedRules{Object: r.Object, Comment: r.Comment, Reason: r.Reason, SinceUnixMs: unixMs(r.Since)})
	}
	return p
}

// policyNotices tell of objects that policy cannot use and of what the kernel refuses.
func (s *Source) policyNotices() []Notice {
	if s.Policy == nil {
		return nil
	}
	var list []Notice
	st := s.Policy.Status()
	for k, why := range st.Bad {
		list = append(list, Notice{Topic: "dataplane", Subject: k.String(), Text: why})
	}
	for _, r := range st.Refused {
		list = append(list, Notice{Topic: "dataplane", Subject: r.Comment, Since: r.Since,
			Text: "the kernel refuses its rules (" + r.Object + "), everything it is about is dropped: " + r.Reason})
	}
	for _, text := range st.MissingLogs {
		list = append(list, Notice{Topic: "dataplane", Subject: "log", Text: text})
	}
	return list
}

const (
	metricPolicyInSync   = "manx_policy_in_sync"
	metricPolicySizes    = "manx_policy_objects"
	metricPolicyCommits  = "manx_policy_transactions_total"
	metricPolicyFailed   = "manx_policy_failed_transactions_total"
	metricPolicyReads    = "manx_policy_full_comparisons_total"
	metricPolicyRepairs  = "manx_policy_drift_repairs_total"
	metricPolicyRefused  = "manx_policy_refused"
	metricPolicyBad      = "manx_policy_unusable_objects"
	metricPolicyRevision = "manx_policy_revision"
)

var policyDescriptions = []description{
	{metricPolicyInSync, "Whether the kernel has the rules that are wanted.", nil},
	{metricPolicySizes, "What the rules consist of, by kind: chain, rule, set, element, endpoint.", []string{"kind"}},
	{metricPolicyCommits, "Changes of rules that were made, each in one transaction.", nil},
	{metricPolicyFailed, "Transactions that the kernel did not take.", nil},
	{metricPolicyReads, "Comparisons with all rules in the kernel.", nil},
	{metricPolicyRepairs, "Chains, sets and maps that others had changed and that were brought back.", nil},
	{metricPolicyRefused, "Parts of the rules that the kernel refuses; what they are about is dropped.", nil},
	{metricPolicyBad, "Policies, profiles and endpoints that cannot be used.", nil},
	{metricPolicyRevision, "Revision of the datastore that is in the kernel's rules.", nil},
}

func (c *collector) collectPolicy(s *Source, out chan<- prometheus.Metric) {
	if s.Policy == nil {
		return
	}
	st := s.Policy.Status()
	send := func(name string, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(c.descriptions[name], kind, v, labels...)
	}
	send(metricPolicyInSync, prometheus.GaugeValue, number(st.InSync))
	for kind, n := range map[string]int{"chain": st.Chains, "rule": st.Rules, "set": st.Sets, "element": st.Elements, "endpoint": st.Endpoints} {
		send(metricPolicySizes, prometheus.GaugeValue, float64(n), kind)
	}
	send(metricPolicyCommits, prometheus.CounterValue, float64(st.Transactions))
	send(metricPolicyFailed, prometheus.CounterValue, float64(st.FailedTransactions))
	send(metricPolicyReads, prometheus.CounterValue, float64(st.Resyncs))
	send(metricPolicyRepairs, prometheus.CounterValue, float64(st.DriftRepairs))
	send(metricPolicyRefused, prometheus.GaugeValue, float64(len(st.Refused)))
	send(metricPolicyBad, prometheus.GaugeValue, float64(len(st.Bad)))
	send(metricPolicyRevision, prometheus.GaugeValue, float64(st.Revision))
}

// newProgramming makes the histogram of how long changes of policy take.
func newProgramming() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "manx_policy_programming_seconds",
		Help:    "Time from the arrival of a change in this daemon to its rules in the kernel.",
		Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30},
	})
}

// ObserveProgramming notes how long a change of policy took from its arrival to the kernel.
func (s *Server) ObserveProgramming(d time.Duration) { s.programming.Observe(d.Seconds()) }
