package bgp

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// LabelExclude, when "true" on a Node, keeps the node from attracting traffic to services.
const LabelExclude = "node.kubernetes.io/exclude-from-external-load-balancers"

// orchestratorKubernetes marks the OrchRef that holds the node's name in Kubernetes.
const orchestratorKubernetes = "k8s"

// serviceRoutes are the routes of services on one node.
type serviceRoutes struct {
	node string         // the name by which endpoints are on this node; empty: single services do not matter
	own  []netip.Prefix // the node announces these; never in the kernel, where a blackhole would cut the host off
	// whole ranges: routes inside come from nodes and are for the world outside, not for this kernel
	aggregates []netip.Prefix
	reflected  []netip.Prefix // a route reflector passes on routes inside these
}

// serviceRanges are the ranges that BGPConfiguration opens to the outside.
type serviceRanges struct {
	cluster, external, balancer []netip.Prefix
	// load balancer addresses are announced one by one (serviceLoadBalancerAggregation Disabled)
	singly bool
}

// services decides which addresses of services the node announces, as calico/node does: whole ranges from every node,
// and single addresses where it matters which node the traffic reaches.
func (c *cluster) services(r model.Reader, clusterIPs string) serviceRoutes {
	ranges := c.serviceRanges(clusterIPs)
	routes := serviceRoutes{aggregates: ranges.aggregates()}
	if c.me.reflects().IsValid() {
		routes.reflected = slices.Concat(ranges.balancer, ranges.external)
	}
	if c.me.labels[LabelExclude] == "true" || ranges.empty() {
		return routes
	}
	known := false
	routes.node, routes.own = c.me.kubernetesName(), slices.Clone(routes.aggregates)
	ready := readyEndpoints(r, routes.node)
	for k, v := range model.All[model.Service](r, model.KindService) {
		known = true
		if ranges.singled(v, ready[model.Key{Namespace: k.Namespace, Name: k.Name}]) {
			routes.own = append(routes.own, c.serviceAddresses(k, v, ranges)...)
		}
	}
	if !known {
		c.note("BGPConfiguration/default", "no Service is known here: ranges of service addresses are advertised "+
			"as a whole, "+
			"but single addresses (externalTrafficPolicy Local, ranges of one address, "+
			"serviceLoadBalancerAggregation Disabled) need the services of Kubernetes")
	}
	routes.own = sortedPrefixes(routes.own)
	return routes
}

// serviceRanges reads the ranges. clusterIPs, if not empty, stands in for those of cluster IPs.
func (c *cluster) serviceRanges(clusterIPs string) serviceRanges {
	const object = "BGPConfiguration/default"
	s := c.config
	ranges := serviceRanges{singly: s.ServiceLoadBalancerAggregation != nil &&
		*s.ServiceLoadBalancerAggregation == v3.ServiceLoadBalancerAggregationDisabled}
	for _, b := range s.ServiceExternalIPs {
		ranges.external = c.addRange(ranges.external, object, "spec.serviceExternalIPs", b.CIDR)
	}
	for _, b := range s.ServiceLoadBalancerIPs {
		ranges.balancer = c.addRange(ranges.balancer, object, "spec.serviceLoadBalancerIPs", b.CIDR)
	}
	if clusterIPs != "" {
		for text := range strings.SplitSeq(clusterIPs, ",") {
			ranges.cluster = c.addRange(ranges.cluster, "Node/"+c.me.name, "CALICO_ADVERTISE_CLUSTER_IPS",
				strings.TrimSpace(text))
		}
		return ranges
	}
	for _, b := range s.ServiceClusterIPs {
		ranges.cluster = c.addRange(ranges.cluster, object, "spec.serviceClusterIPs", b.CIDR)
	}
	return ranges
}

// addRange appends a CIDR. An empty one is nothing, as in Calico.
func (c *cluster) addRange(to []netip.Prefix, object, field, text string) []netip.Prefix {
	if text == "" {
		return to
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		c.note(object, fmt.Sprintf("%s: %q is ignored: want ADDRESS/LENGTH", field, text))
		return to
	}
	return append(to, p.Masked())
}

func (s serviceRanges) empty() bool { return len(s.cluster)+len(s.external)+len(s.balancer) == 0 }

// aggregates returns the ranges that are announced as a whole. A range of one external or load balancer address
// represents the services that have it.
func (s serviceRanges) aggregates() []netip.Prefix {
	whole := slices.Concat(s.cluster, s.external)
	if !s.singly {
		whole = append(whole, s.balancer...)
	}
	whole = slices.DeleteFunc(whole, func(p netip.Prefix) bool {
		return p.IsSingleIP() &&
			!slices.Contains(s.cluster, p)
	})
	return sortedPrefixes(whole)
}

// singled reports whether this node announces the addresses of a service one by one.
func (s serviceRanges) singled(v *model.Service, ready readiness) bool {
	switch v.Spec.Type {
	case "", model.ServiceClusterIP, model.ServiceNodePort, model.ServiceLoadBalancer:
	default:
		return false
	}
	if v.Spec.ClusterIP == "" || v.Spec.ClusterIP == model.ClusterIPNone {
		return false
	}
	if v.Spec.ExternalTrafficPolicy == model.TrafficPolicyLocal {
		return ready.in(v.Spec.IPFamilies, ready.here)
	}
	if !v.FromOutside() {
		return false
	}
	return s.hasOwnRange(v) || s.singly && ready.in(v.Spec.IPFamilies, ready.anywhere)
}

// hasOwnRange reports whether a range of one address represents the service.
func (s serviceRanges) hasOwnRange(v *model.Service) bool {
	single := func(ranges []netip.Prefix, text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && slices.Contains(ranges, hostPrefix(a))
	}
	if slices.ContainsFunc(v.Spec.ExternalIPs, func(text string) bool { return single(s.external, text) }) {
		return true
	}
	if v.Spec.Type != model.ServiceLoadBalancer {
		return false
	}
	return single(s.balancer, v.Spec.LoadBalancerIP) ||
		slices.ContainsFunc(v.Status.LoadBalancer.Ingress, func(i model.LoadBalancerIngress) bool {
			return single(s.balancer, i.IP)
		})
}

// serviceAddresses lists those addresses of a service that the ranges permit. Cluster IPs depend on the switch alone,
// as in Calico, whatever the range.
func (c *cluster) serviceAddresses(k model.Key, v *model.Service, ranges serviceRanges) []netip.Prefix {
	var out []netip.Prefix
	add := func(field, text string, allowed func(netip.Prefix) bool) {
		if text == "" {
			return
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			c.note(fmt.Sprintf("Service/%s/%s", k.Namespace, k.Name),
				fmt.Sprintf("%s = %q is ignored: want an IP address", field, text))
			return
		}
		if p := hostPrefix(a); allowed(p) {
			out = append(out, p)
		}
	}
	clusterIPs := func(netip.Prefix) bool { return len(ranges.cluster) > 0 }
	add("spec.clusterIP", v.Spec.ClusterIP, clusterIPs)
	for _, a := range v.Spec.ClusterIPs {
		add("spec.clusterIPs", a, clusterIPs)
	}
	for _, a := range v.Spec.ExternalIPs {
		add("spec.externalIPs", a, func(p netip.Prefix) bool { return insideAny(ranges.external, p) })
	}
	for _, i := range v.Status.LoadBalancer.Ingress {
		add("status.loadBalancer.ingress.ip", i.IP, func(p netip.Prefix) bool { return insideAny(ranges.balancer, p) })
	}
	return out
}

func hostPrefix(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// readiness records, by family, where a service has endpoints that can serve.
type readiness struct{ here, anywhere [families]bool }

func (r *readiness) add(other readiness) {
	for family := range families {
		r.here[family] = r.here[family] || other.here[family]
		r.anywhere[family] = r.anywhere[family] || other.anywhere[family]
	}
}

// in returns one of the two for the families of a service; a service that names none has both.
func (readiness) in(named []string, where [families]bool) bool {
	for family, ready := range where {
		if ready && (len(named) == 0 || slices.Contains(named, familyNames[family])) {
			return true
		}
	}
	return false
}

// readyEndpoints sums up the endpoint slices, by namespace and name of the service. All slices of a service count
// alike, so that it does not matter which of them comes, changes or goes.
func readyEndpoints(r model.Reader, node string) map[model.Key]readiness {
	services := map[model.Key]readiness{}
	for k, v := range model.All[model.EndpointSlice](r, model.KindEndpointSlice) {
		name, ready := readySlice(v, node)
		key := model.Key{Namespace: k.Namespace, Name: name}
		s := services[key]
		s.add(ready)
		services[key] = s
	}
	return services
}

// readySlice sums up one slice and returns the name of its service. A slice of host names, or of no service, has no
// endpoints. A terminating endpoint still serves but should get no new traffic: the address of a service is withdrawn
// while its last endpoint can still serve packets in flight.
func readySlice(v *model.EndpointSlice, node string) (service string, r readiness) {
	family := slices.Index(familyNames[:], v.AddressType)
	service = v.Labels[model.LabelServiceName]
	if family < 0 || service == "" {
		return "", r
	}
	for _, e := range v.Endpoints {
		if e.Conditions.Stays() {
			r.anywhere[family] = true
			r.here[family] = r.here[family] || e.NodeName != nil && *e.NodeName == node
		}
	}
	return service, r
}

// servicesMatter reports whether the change of a Service or an EndpointSlice can change the routes that this node
// announces. Pods on other nodes change slices all the time. Either object is nil if it does not exist.
func (d Desired) servicesMatter(before, after *model.Object) bool {
	if d.ServiceNode == "" {
		return false
	}
	oldService, newService := valueOf[model.Service](before), valueOf[model.Service](after)
	if oldService != nil && newService != nil {
		return !reflect.DeepEqual(oldService.Spec, newService.Spec) ||
			!reflect.DeepEqual(oldService.Status, newService.Status)
	}
	oldSlice, newSlice := valueOf[model.EndpointSlice](before), valueOf[model.EndpointSlice](after)
	if oldService != nil || newService != nil || oldSlice == nil && newSlice == nil {
		return true
	}
	var name [2]string
	var ready [2]readiness
	for i, s := range []*model.EndpointSlice{oldSlice, newSlice} {
		if s != nil {
			name[i], ready[i] = readySlice(s, d.ServiceNode)
		}
	}
	return ready[0] != ready[1] || name[0] != name[1] && ready[0] != readiness{}
}

func valueOf[T any](o *model.Object) *T {
	if o == nil {
		return nil
	}
	v, _ := o.Value.(*T)
	return v
}

// kubernetesName is the node's name in Kubernetes, as registered from CALICO_K8S_NODE_REF.
func (n *node) kubernetesName() string {
	for _, o := range n.object.Spec.OrchRefs {
		if o.Orchestrator == orchestratorKubernetes && o.NodeName != "" {
			return o.NodeName
		}
	}
	return n.name
}
