package migration

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descPhase = prometheus.NewDesc("calico_migration_phase",
		"1 for the phase of the DatastoreMigration, on the leader of the controllers.", []string{"phase"}, nil)
	descObjects = prometheus.NewDesc("calico_migration_resources_total",
		"Objects that a DatastoreMigration has handled, by kind and outcome (migrated, skipped, conflict).",
		[]string{"kind", "outcome"}, nil)
	descErrors = prometheus.NewDesc("calico_migration_resource_errors_total",
		"Steps of a DatastoreMigration that failed and are tried again.", nil, nil)
)

// Metrics counts what migrations do. The names are those of calico-kube-controllers. The zero value is ready.
type Metrics struct {
	mu      sync.Mutex
	current string
	objects map[[2]string]float64
	errors  float64
}

func (m *Metrics) phase(phase string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current = phases[phase]
}

func (m *Metrics) failed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errors++
}

// copied counts the objects of a kind. In a further pass what is skipped was counted before.
func (m *Metrics) copied(d details, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects == nil {
		m.objects = map[[2]string]float64{}
	}
	m.objects[[2]string{d.Kind, "migrated"}] += float64(d.Migrated)
	m.objects[[2]string{d.Kind, "conflict"}] += float64(d.Conflicts)
	if first {
		m.objects[[2]string{d.Kind, "skipped"}] += float64(d.Skipped)
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- descPhase
	ch <- descObjects
	ch <- descErrors
}

// Collect implements prometheus.Collector. Where no migration is followed there are no metrics.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current == "" && len(m.objects) == 0 {
		return
	}
	for _, phase := range phases {
		value := 0.0
		if phase == m.current {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(descPhase, prometheus.GaugeValue, value, phase)
	}
	for k, n := range m.objects {
		ch <- prometheus.MustNewConstMetric(descObjects, prometheus.CounterValue, n, k[0], k[1])
	}
	ch <- prometheus.MustNewConstMetric(descErrors, prometheus.CounterValue, m.errors)
}
