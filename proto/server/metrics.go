package server

import (
	"github.com/prometheus/client_golang/prometheus"
)

// description is the name, help text and labels of a metric. The names of the metrics are promises.
type description struct {
	name, help string
	labels     []string
}

// metrics are the descriptions of a view's metrics by name.
type metrics map[string]*prometheus.Desc

func describe(list []description) metrics {
	m := metrics{}
	for _, d := range list {
		m[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
	}
	return m
}

// Describe sends all of them.
func (m metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range m {
		out <- d
	}
}

// metricFunc sends the value of a metric.
type metricFunc func(name string, v float64, labels ...string)

// send makes the functions that send gauges and counters to out.
func (m metrics) send(out chan<- prometheus.Metric) (gauge, counter metricFunc) {
	of := func(kind prometheus.ValueType) metricFunc {
		return func(name string, v float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(m[name], kind, v, labels...)
		}
	}
	return of(prometheus.GaugeValue), of(prometheus.CounterValue)
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
