package server

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/hostfirewall"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// PolicyView shows the policy that the kernel enforces, and explains it. Its source is zero while the daemon enforces
// none.
type PolicyView struct {
	shown[PolicySource]
	node        string
	log         *zap.Logger
	datastore   *DatastoreView
	dataplane   *DataplaneView
	traces      atomic.Int32 // that run
	programming prometheus.Histogram
	newest      reading[dataplane.PolicyStatus]
	busiest     reading[[]countedRule]
	firewalls   atomic.Pointer[Firewalls]
}

// PolicySource is the source of a PolicyView.
type PolicySource struct {
	Agent  Policy
	Tracer FlowTracer // nil: packets cannot be traced
}

// Firewalls are the rules of other programs on this node.
type Firewalls interface {
	// Tables returns their tables in the kernel, as they are now.
	Tables() ([]*hostfirewall.Table, error)
}

// ShowFirewalls has explanations include the rules of other programs.
func (v *PolicyView) ShowFirewalls(f Firewalls) { v.firewalls.Store(&f) }

// Policy has the calls of the policy agent that the view uses.
type Policy interface {
	Status() dataplane.PolicyStatus
	Inspect(func(*policy.Calculator, *ruleset.Table))
	Counters() (map[string][]nftables.Counter, error)
	Dropped() (map[policy.Reason]uint64, error)
	Retry(context.Context) (dataplane.Retried, error)
}

// Ready reports whether the rules are in the kernel. Before the agent is shown the answer is no.
func (v *PolicyView) Ready() Check {
	c := Check{Name: checkPolicy, Reason: notStarted}
	agent := v.now().Agent
	if agent == nil {
		return c
	}
	st, late := v.newest.take(agent.Status)
	switch {
	case st.LastError != "":
		c.Reason = "the rules cannot be programmed: " + st.LastError
	case st.Since.IsZero() || st.Transactions == 0 && st.Resyncs == 0:
		c.Reason = "no rules were programmed since the start: those of an earlier run stay"
	case st.Unprotected != "":
		c.Reason = st.Unprotected
	default:
		c.OK, c.Reason = true, "the rules are in the kernel"
		if st.Revision != 0 {
			c.Reason += fmt.Sprintf(", as of revision %d", st.Revision)
		}
		if n := len(st.Refused); n > 0 {
			c.Reason += fmt.Sprintf(", except for %d parts that it refuses, where everything is dropped", n)
		}
	}
	c.Reason = asOf(c.Reason, late)
	return c
}

// Checks implements Checker. There are none if policy is not this daemon's business.
func (v *PolicyView) Checks() []Check {
	if v.now().Agent == nil {
		return nil
	}
	return []Check{v.Ready()}
}

// status leaves out policy if that is not this daemon's business.
func (v *PolicyView) status(r *manxv1.GetStatusResponse) {
	agent := v.now().Agent
	if agent == nil {
		return
	}
	st, _ := v.newest.take(agent.Status)
	p := &manxv1.PolicyStatus{
		InSync: st.InSync, SinceUnixMs: unixMs(st.Since), Revision: st.Revision, LastError: st.LastError,
		Chains: uint32(st.Chains), Rules: uint32(st.Rules), Sets: uint32(st.Sets), Elements: uint32(st.Elements),
		Endpoints: uint32(st.Endpoints), Transactions: st.Transactions,
	}
	for _, x := range st.Refused {
		p.Refused = append(p.Refused, &manxv1.RefusedRules{Object: x.Object, Comment: x.Comment, Reason: x.Reason,
			SinceUnixMs: unixMs(x.Since)})
	}
	r.Policy = p
}

// Notices lists the objects that policy cannot use, or not everywhere, and the parts that the kernel refuses.
func (v *PolicyView) Notices() []Notice {
	agent := v.now().Agent
	if agent == nil {
		return nil
	}
	var list []Notice
	st, _ := v.newest.take(agent.Status)
	for k, why := range st.Bad {
		list = append(list, Notice{Topic: "dataplane", Subject: k.String(), Text: why})
	}
	for k, why := range st.Closed {
		list = append(list, Notice{Topic: "dataplane", Subject: k.String(), Text: why})
	}
	for k, why := range st.Ignored {
		list = append(list, Notice{Topic: "dataplane", Subject: k.String(), Text: why})
	}
	if st.Outdated != "" {
		list = append(list, Notice{Topic: "dataplane", Subject: "floating addresses", Text: st.Outdated})
	}
	for _, r := range st.Refused {
		list = append(list, Notice{Topic: "dataplane", Subject: r.Comment, Since: r.Since,
			Text: "the kernel refuses its rules (" + r.Object + "), everything it is about is dropped: " + r.Reason})
	}
	for _, text := range st.Missing {
		list = append(list, Notice{Topic: "dataplane", Subject: "rules", Text: text})
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
	metricPolicyClosed   = "manx_policy_above_budget"
	metricPolicyRevision = "manx_policy_revision"
)

var policyMetrics = describe([]description{
	{metricPolicyInSync, "Whether the kernel has the rules that are wanted.", nil},
	{metricPolicySizes, "What the rules consist of, by kind: chain, rule, set, element, endpoint.", []string{"kind"}},
	{metricPolicyCommits, "Changes of rules that were made, each in one transaction.", nil},
	{metricPolicyFailed, "Transactions that the kernel did not take.", nil},
	{metricPolicyReads, "Comparisons with all rules in the kernel.", nil},
	{metricPolicyRepairs, "Chains, sets and maps that others had changed and that were brought back.", nil},
	{metricPolicyRefused, "Parts of the rules that the kernel refuses; what they are about is dropped.", nil},
	{metricPolicyBad, "Policies, profiles and endpoints that cannot be used.", nil},
	{metricPolicyClosed, "Policies above the budget of their namespace, which drop all packets in a direction.", nil},
	{metricPolicyRevision, "Revision of the datastore that is in the kernel's rules.", nil},
})

// Describe implements prometheus.Collector.
func (v *PolicyView) Describe(out chan<- *prometheus.Desc) {
	policyMetrics.Describe(out)
	policyCounters.Describe(out)
	v.programming.Describe(out)
}

// Collect implements prometheus.Collector.
func (v *PolicyView) Collect(out chan<- prometheus.Metric) {
	v.programming.Collect(out)
	agent := v.now().Agent
	if agent == nil {
		return
	}
	st, _ := v.newest.take(agent.Status)
	gauge, counter := policyMetrics.send(out)
	gauge(metricPolicyInSync, number(st.InSync))
	for kind, n := range map[string]int{"chain": st.Chains, "rule": st.Rules, "set": st.Sets, "element": st.Elements,
		"endpoint": st.Endpoints} {
		gauge(metricPolicySizes, float64(n), kind)
	}
	counter(metricPolicyCommits, float64(st.Transactions))
	counter(metricPolicyFailed, float64(st.FailedTransactions))
	counter(metricPolicyReads, float64(st.Resyncs))
	counter(metricPolicyRepairs, float64(st.DriftRepairs))
	gauge(metricPolicyRefused, float64(len(st.Refused)))
	gauge(metricPolicyBad, float64(len(st.Bad)))
	gauge(metricPolicyClosed, float64(len(st.Closed)))
	gauge(metricPolicyRevision, float64(st.Revision))
	_, counter = policyCounters.send(out)
	v.collectCounters(agent, counter)
}

// newProgramming makes the histogram of how long changes of policy take.
func newProgramming() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "manx_policy_programming_seconds",
		Help:    "Time from the arrival of a change in this daemon to its rules in the kernel.",
		Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30},
	})
}

// Programmed records how long a change of policy took from its arrival to the kernel.
func (v *PolicyView) Programmed(d time.Duration) { v.programming.Observe(d.Seconds()) }
