package controllers

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/manxnet/manx/controllers/ipamgc"
)

var (
	descLeading = prometheus.NewDesc("manx_controllers_leading", "1 where the controllers of the cluster run.", nil,
		nil)
	descRunning = prometheus.NewDesc("manx_controllers_running", "Controllers that run here.", []string{"controller"},
		nil)
	descWrites = prometheus.NewDesc("manx_controllers_writes_total",
		"Objects that controllers tried to write, by verb (create, update, delete) and outcome (done, "+
			"overtaken, failed).",
		[]string{"controller", "verb", "outcome"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) {
	ch <- descLeading
	ch <- descRunning
	ch <- descWrites
	m.releases.Describe(ch)
	m.audit.Describe(ch)
	m.migrated.Describe(ch)
	ipamgc.DescribeUsage(ch)
}

// Collect implements prometheus.Collector.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	s := m.State()
	leading := 0.0
	if s.Leading {
		leading = 1
	}
	ch <- prometheus.MustNewConstMetric(descLeading, prometheus.GaugeValue, leading)
	for _, name := range s.Controllers {
		ch <- prometheus.MustNewConstMetric(descRunning, prometheus.GaugeValue, 1, name)
	}
	for w, n := range m.counts.All() {
		ch <- prometheus.MustNewConstMetric(descWrites, prometheus.CounterValue, n, w.Controller, w.Verb, w.Outcome)
	}
	m.releases.Collect(ch)
	m.audit.Collect(ch)
	m.migrated.Collect(ch)
	m.mu.Lock()
	c := m.collector
	m.mu.Unlock()
	if c != nil {
		c.Collect(ch)
	}
}
