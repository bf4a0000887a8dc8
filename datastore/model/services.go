package model

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds in this file belong to Kubernetes. Their types have only the fields that Manx reads.

// Service is a Kubernetes service: addresses for a set of pods.
type Service struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              ServiceSpec   `json:"spec,omitempty"`
	Status            ServiceStatus `json:"status,omitempty"`
}

// ServiceType is the way a service is exposed; empty is ServiceClusterIP.
type ServiceType string

// The types of service that have addresses of their own. (A service of type ExternalName is a DNS name.)
const (
	ServiceClusterIP    ServiceType = "ClusterIP"
	ServiceNodePort     ServiceType = "NodePort"
	ServiceLoadBalancer ServiceType = "LoadBalancer"
)

// TrafficPolicyLocal as externalTrafficPolicy keeps external traffic on the node that received it; with any other value
// that node may forward it to any endpoint.
const TrafficPolicyLocal = "Local"

// ClusterIPNone is the clusterIP of a headless service.
const ClusterIPNone = "None"

// ServiceSpec has the addresses of a service and its traffic policies.
type ServiceSpec struct {
	Type                  ServiceType `json:"type,omitempty"`
	ClusterIP             string      `json:"clusterIP,omitempty"`
	ClusterIPs            []string    `json:"clusterIPs,omitempty"`
	ExternalIPs           []string    `json:"externalIPs,omitempty"`
	LoadBalancerIP        string      `json:"loadBalancerIP,omitempty"`
	IPFamilies            []string    `json:"ipFamilies,omitempty"` // IPv4, IPv6; none: not said
	ExternalTrafficPolicy string      `json:"externalTrafficPolicy,omitempty"`
	// Ports are the service's ports. The EndpointSlices have the ports of its endpoints.
	Ports []ServicePort `json:"ports,omitempty"`
}

// ServicePort is one port of a service.
type ServicePort struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol,omitempty"` // TCP, UDP or SCTP; empty is TCP
	Port     int32  `json:"port,omitempty"`
}

// ServiceStatus holds the addresses that a load balancer gave to a service.
type ServiceStatus struct {
	LoadBalancer LoadBalancerStatus `json:"loadBalancer,omitempty"`
}

// LoadBalancerStatus is part of ServiceStatus.
type LoadBalancerStatus struct {
	Ingress []LoadBalancerIngress `json:"ingress,omitempty"`
}

// LoadBalancerIngress is one address of a service; IP is empty for a host name.
type LoadBalancerIngress struct {
	IP string `json:"ip,omitempty"`
}

// LabelServiceName is the label of an EndpointSlice that names its service.
const LabelServiceName = "kubernetes.io/service-name"

// EndpointSlice lists endpoints of one service, all of one address family.
type EndpointSlice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	AddressType       string     `json:"addressType,omitempty"` // IPv4, IPv6 or FQDN
	Endpoints         []Endpoint `json:"endpoints,omitempty"`
	// Ports are the ports of all of the endpoints.
	Ports []SlicePort `json:"ports,omitempty"`
}

// SlicePort is one port of the endpoints of a slice. Protocol nil is TCP, Port nil is every port.
type SlicePort struct {
	Name     *string `json:"name,omitempty"`
	Protocol *string `json:"protocol,omitempty"`
	Port     *int32  `json:"port,omitempty"`
}

// Endpoint is one pod or host that serves a service.
type Endpoint struct {
	Addresses  []string           `json:"addresses,omitempty"`
	Conditions EndpointConditions `json:"conditions,omitempty"`
	NodeName   *string            `json:"nodeName,omitempty"`
}

// EndpointConditions report whether an endpoint can serve; Ready nil counts as true, Terminating nil as false. A
// terminating one may be ready, if its service includes endpoints that are not ready (publishNotReadyAddresses).
type EndpointConditions struct {
	Ready       *bool `json:"ready,omitempty"`
	Terminating *bool `json:"terminating,omitempty"`
}

// Stays reports whether new traffic should be sent to the endpoint: it is ready, and not terminating.
func (c EndpointConditions) Stays() bool {
	return (c.Ready == nil || *c.Ready) && (c.Terminating == nil || !*c.Terminating)
}

// FromOutside reports whether the service is exposed outside the cluster.
func (s *Service) FromOutside() bool {
	return s.Spec.Type == ServiceNodePort || s.Spec.Type == ServiceLoadBalancer || len(s.Spec.ExternalIPs) > 0
}
