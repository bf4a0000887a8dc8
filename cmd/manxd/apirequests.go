package main

import "github.com/prometheus/client_golang/prometheus"

// newAPIRequests counts the requests to the Kubernetes API. Without one there is no series.
func newAPIRequests() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "manx_kubernetes_requests_total",
		Help: "Requests to the Kubernetes API, by verb and HTTP status; a watch counts when it begins."},
		[]string{"verb", "code"})
}
