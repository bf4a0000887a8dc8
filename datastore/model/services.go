package model

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds in this file belong to Kubernetes. Their types hold what Manx reads of them and no more: whatever else an
// object says is none of our business.

// Service is a Kubernetes service: addresses behind which a set of pods stands.
type Service struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              ServiceSpec   `json:"spec,omitempty"`
	Status            ServiceStatus `json:"status,omitempty"`
}

// ServiceType says how a service is exposed; empty is ServiceClusterIP.
type ServiceType string

// The types of service that have addresses of their own. (A service of type ExternalName is a DNS name.)
const (
	ServiceClusterIP    ServiceType = "ClusterIP"
	ServiceNodePort     ServiceType = "NodePort"
	ServiceLoadBalancer ServiceType = "LoadBalancer"
)

// TrafficPolicyLocal as externalTrafficPolicy leaves traffic from outside on the node that it came to; anything else
// lets that node pass it on to any endpoint.
const TrafficPolicyLocal = "Local"

// ClusterIPNone is the clusterIP of a headless service.
const ClusterIPNone = "None"

// ServiceSpec holds the addresses of a service and what traffic to them may do.
type ServiceSpec struct {
	Type                  ServiceType `json:"type,omitempty"`
	ClusterIP             string      `json:"clusterIP,omitempty"`
	ClusterIPs            []string    `json:"clusterIPs,omitempty"`
	ExternalIPs           []string    `json:"externalIPs,omitempty"`
	LoadBalancerIP        string      `json:"loadBalancerIP,omitempty"`
	IPFamilies            []string    `json:"ipFamilies,omitempty"` // IPv4, IPv6; none: not said
	ExternalTrafficPolicy string      `json:"externalTrafficPolicy,omitempty"`
	// Ports is what the service offers. Where traffic arrives at its endpoints is said by the EndpointSlices.
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

// LoadBalancerIngress is one address at which a service can be reached; IP is empty where it is a host name.
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
	// Ports are those at which all of the endpoints serve.
	Ports []SlicePort `json:"ports,omitempty"`
}

// SlicePort is one port at which the endpoints of a slice serve. Protocol nil is TCP, Port nil is every port.
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

// EndpointConditions tell whether an endpoint can serve; Ready nil counts as true, Terminating nil as false. One that
// terminates may be ready, if its service wants endpoints that are not ready (publishNotReadyAddresses).
type EndpointConditions struct {
	Ready       *bool `json:"ready,omitempty"`
	Terminating *bool `json:"terminating,omitempty"`
}

// Stays tells whether traffic should be sent to the endpoint that begins now: it is ready, and does not end.
func (c EndpointConditions) Stays() bool {
	return (c.Ready == nil || *c.Ready) && (c.Terminating == nil || !*c.Terminating)
}

// FromOutside tells whether the service is meant to be reached from outside the cluster.
func (s *Service) FromOutside() bool {
	return s.Spec.Type == ServiceNodePort || s.Spec.Type == ServiceLoadBalancer || len(s.Spec.ExternalIPs) > 0
}

func checkService(c *check, s *Service) {
	c.ip("spec.loadBalancerIP", s.Spec.LoadBalancerIP, 0)
	if s.Spec.ClusterIP != ClusterIPNone {
		c.ip("spec.clusterIP", s.Spec.ClusterIP, 0)
	}
	for i, a := range s.Spec.ExternalIPs {
		c.ip(at("spec.externalIPs", i), a, 0)
	}
	for i, f := range s.Spec.IPFamilies {
		enum(c, at("spec.ipFamilies", i), f, "IPv4", "IPv6")
	}
	enum(c, "spec.externalTrafficPolicy", s.Spec.ExternalTrafficPolicy, "Cluster", TrafficPolicyLocal)
}

func checkEndpointSlice(c *check, s *EndpointSlice) {
	enum(c, "addressType", s.AddressType, "IPv4", "IPv6", "FQDN")
	for i, e := range s.Endpoints {
		c.failIf(len(e.Addresses) == 0, fmt.Sprintf("endpoints[%d].addresses", i), "", "is required")
	}
}
