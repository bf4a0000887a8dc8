// Package deploy tests the contents of deploy/: the CustomResourceDefinitions, the schemas for editors, the chart, the
// manifests, the image, the alerts and the dashboards, against real programs of Kubernetes and Prometheus.
package deploy
