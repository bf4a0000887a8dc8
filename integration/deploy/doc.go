// Package deploy tests what deploy/ holds: the CustomResourceDefinitions, the chart, the manifests, the image, the
// alerts and the dashboards, against real programs of Kubernetes and Prometheus.
package deploy
