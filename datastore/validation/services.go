package validation

import (
	"fmt"

	"github.com/manxnet/manx/datastore/model"
)

func checkService(c *check, s *model.Service) {
	c.ip("spec.loadBalancerIP", s.Spec.LoadBalancerIP, 0)
	if s.Spec.ClusterIP != model.ClusterIPNone {
		c.ip("spec.clusterIP", s.Spec.ClusterIP, 0)
	}
	for i, a := range s.Spec.ExternalIPs {
		c.ip(at("spec.externalIPs", i), a, 0)
	}
	for i, f := range s.Spec.IPFamilies {
		enum(c, at("spec.ipFamilies", i), f, "IPv4", "IPv6")
	}
	enum(c, "spec.externalTrafficPolicy", s.Spec.ExternalTrafficPolicy, "Cluster", model.TrafficPolicyLocal)
}

func checkEndpointSlice(c *check, s *model.EndpointSlice) {
	enum(c, "addressType", s.AddressType, "IPv4", "IPv6", "FQDN")
	for i, e := range s.Endpoints {
		c.failIf(len(e.Addresses) == 0, fmt.Sprintf("endpoints[%d].addresses", i), "", "is required")
	}
}
