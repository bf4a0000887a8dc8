package main

import "github.com/prometheus/client_golang/prometheus"

// newAPIRequests counts the requests to the Kubernetes API. Without one there is no series.
func newAPIRequests() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "manx_kubernetes_requests_total",
		Help: "Requests to the Kubernetes API, by verb and HTTP status; a watch counts when it begins."},
		[]string{"verb", "code"})
}

// newWatchRestarts counts the watches of the datastore, of either type, that begin again.
func newWatchRestarts() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "manx_datastore_watch_restarts_total",
		Help: "Watches of the datastore that began again after they had ended."})
}
