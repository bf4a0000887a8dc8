package e2e

import (
	"fmt"
	"net/http"
	"testing"
)

const (
	services = "/api/v1/namespaces/default/services"
	slicesIn = "/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices"
)

// slice is an EndpointSlice of a service with one TCP port.
func slice(name, service string, port int, pods ...*pod) map[string]any {
	endpoints := []any{}
	for _, p := range pods {
		endpoints = append(endpoints, map[string]any{"addresses": []string{p.ip.String()},
			"conditions": map[string]any{"ready": true}})
	}
	return map[string]any{"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
		"metadata":  map[string]any{"name": name, "labels": map[string]string{"kubernetes.io/service-name": service}},
		"endpoints": endpoints, "ports": []any{map[string]any{"name": "", "port": port, "protocol": "TCP"}}}
}

// putSlice stores an EndpointSlice as the controller of Kubernetes does.
func (w *world) putSlice(t *testing.T, namespace string, o map[string]any) {
	t.Helper()
	at := fmt.Sprintf(slicesIn, namespace)
	name := o["metadata"].(map[string]any)["name"].(string)
	if _, err := w.server.Try(t.Context(), t, http.MethodGet, at+"/"+name, nil); err != nil {
		w.server.Request(t, http.MethodPost, at, o)
		return
	}
	w.server.Request(t, http.MethodPatch, at+"/"+name, map[string]any{"endpoints": o["endpoints"], "ports": o["ports"]})
}

func (w *world) dropSlice(t *testing.T, name string) {
	t.Helper()
	w.server.Request(t, http.MethodDelete, fmt.Sprintf(slicesIn, "default")+"/"+name, nil)
}

// putService stores a service as a user does; its slices are stored beside it.
func (w *world) putService(t *testing.T, name string) {
	t.Helper()
	w.server.Request(t, http.MethodPost, services, map[string]any{"kind": "Service", "apiVersion": "v1",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"ports": []any{map[string]any{"port": 80}}}})
}

// Rules that name services allow connections to the endpoints in their EndpointSlices, and follow them: addresses and
// ports that come and go, several slices, a slice that moves to another service, a deleted service.
func TestServicesInRules(t *testing.T) {
	w := newWorld(t)
	w.start(t)
	a, c := w.addPod(t, w.n1, "a"), w.addPod(t, w.n1, "c")
	b, d := w.addPod(t, w.n2, "b"), w.addPod(t, w.n2, "d")
	for _, p := range []*pod{b, d} {
		p.echo(t, 7, 8)
	}
	open := func(from, to *pod, port int) flow { return flow{from, to, port, true} }
	shut := func(from, to *pod, port int) flow { return flow{from, to, port, false} }
	expect(t, "without policies", open(a, b, 7), open(a, d, 8), open(c, b, 8), open(c, d, 7))

	w.putService(t, "web")
	w.apply(t, crds+"namespaces/default/networkpolicies", policy("NetworkPolicy", "default.to-web", map[string]any{
		"selector": "app == 'a'", "types": []string{"Egress"}, "egress": []any{map[string]any{"action": "Allow",
			"destination": map[string]any{"services": map[string]any{"name": "web"}}}}}))
	w.apply(t, crds+"globalnetworkpolicies", policy("GlobalNetworkPolicy", "default.from-clients", map[string]any{
		"selector": "app == 'd'", "types": []string{"Ingress"}, "ingress": []any{map[string]any{"action": "Allow",
			"source": map[string]any{"services": map[string]any{"name": "clients", "namespace": "default"}}}}}))
	expect(t, "services without endpoints", shut(a, b, 7), shut(a, d, 7), shut(c, d, 7), open(c, b, 7))

	w.putSlice(t, "default", slice("clients-1", "clients", 9, a, c))
	expect(t, "sources of a GlobalNetworkPolicy", open(c, d, 7), open(c, d, 8), shut(a, d, 7))
	w.putSlice(t, "default", slice("web-1", "web", 7, b))
	w.putSlice(t, "kube-system", slice("web-9", "web", 8, b, d))
	expect(t, "an endpoint, and a service of the same name elsewhere", open(a, b, 7), shut(a, b, 8), shut(a, d, 8))
	w.putSlice(t, "default", slice("web-2", "web", 8, d))
	expect(t, "a second slice", open(a, d, 8), shut(a, d, 7), open(a, b, 7))
	w.putSlice(t, "default", slice("web-1", "web", 7, d))
	expect(t, "another endpoint", open(a, d, 7), shut(a, b, 7), open(a, d, 8))
	w.putSlice(t, "default", slice("web-1", "web", 8, b))
	expect(t, "another port", open(a, b, 8), shut(a, b, 7), shut(a, d, 7), open(a, d, 8))
	w.dropSlice(t, "web-2")
	expect(t, "a slice less", shut(a, d, 8), open(a, b, 8))
	w.server.Request(t, http.MethodPatch, fmt.Sprintf(slicesIn, "default")+"/web-1", map[string]any{
		"metadata": map[string]any{"labels": map[string]string{"kubernetes.io/service-name": "other"}}})
	expect(t, "a slice of another service", shut(a, b, 8))
	w.putSlice(t, "default", slice("web-3", "web", 7, b))
	expect(t, "back", open(a, b, 7))

	// The slices of a deleted service are deleted: Kubernetes deletes owned objects.
	w.server.Request(t, http.MethodDelete, services+"/web", nil)
	w.dropSlice(t, "web-3")
	w.dropSlice(t, "clients-1")
	expect(t, "services deleted", shut(a, b, 7), shut(a, d, 8), shut(c, d, 7), open(c, b, 7))
	w.putService(t, "web")
	w.putSlice(t, "default", slice("web-4", "web", 8, b))
	expect(t, "a service made again", open(a, b, 8), shut(a, b, 7))
}

// policy is an object of Calico's API group v1.
func policy(kind, name string, spec map[string]any) map[string]any {
	spec["tier"] = "default"
	return map[string]any{"kind": kind, "apiVersion": group, "metadata": map[string]any{"name": name}, "spec": spec}
}

// flow is a connection between pods that is allowed or denied.
type flow struct {
	from, to *pod
	port     int
	open     bool
}

// expect waits until each connection has its expected result.
func expect(t *testing.T, what string, flows ...flow) {
	t.Helper()
	for _, f := range flows {
		until(t, fmt.Sprintf("%s: %s to port %d of %s, want %t", what, f.from.name, f.port, f.to.name, f.open),
			func() error {
				if err := f.from.dial(f.to, f.port); (err == nil) != f.open {
					return fmt.Errorf("open %t: %v", err == nil, err)
				}
				return nil
			})
	}
}
