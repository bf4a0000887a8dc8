package ipamaudit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/manxnet/manx/ipam/check"
)

var (
	descProblems = prometheus.NewDesc("manx_ipam_problems",
		"Contradictions in the records of IPAM that the last audit found, by kind.", []string{"problem"}, nil)
	descAudited = prometheus.NewDesc("manx_ipam_audit_timestamp_seconds", "When the last audit of IPAM ended.", nil,
		nil)
)

// Describe implements prometheus.Collector.
func (a *Auditor) Describe(ch chan<- *prometheus.Desc) {
	ch <- descProblems
	ch <- descAudited
}

// Collect implements prometheus.Collector.
func (a *Auditor) Collect(ch chan<- prometheus.Metric) {
	r := a.Last()
	if r.At.IsZero() {
		return
	}
	for _, p := range check.Problems {
		ch <- prometheus.MustNewConstMetric(descProblems, prometheus.GaugeValue, float64(r.Found[p]), string(p))
	}
	ch <- prometheus.MustNewConstMetric(descAudited, prometheus.GaugeValue, float64(r.At.Unix()))
}
