package validation

import (
	"github.com/manxnet/manx/datastore/model"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/util/validation"
)

func checkHostEndpoint(c *check, h *v3.HostEndpoint) {
	s := h.Spec
	c.failIf(s.Node == "", "spec.node", "", "is required: the node that the endpoint is on")
	c.name("spec.node", s.Node)
	if s.InterfaceName == "" && len(s.ExpectedIPs) == 0 {
		c.broken("spec.interfaceName", "", "is required unless expectedIPs selects the interface")
	}
	if n := s.InterfaceName; n != "" && n != model.AllInterfaces && !model.IsInterfaceName(n) {
		c.broken("spec.interfaceName", n, `must be "*" or an interface name of at most 15 characters`)
	}
	for i, a := range s.ExpectedIPs {
		if _, rule := parseIP(a, 0); rule != "" {
			c.broken(at("spec.expectedIPs", i), a, "%s", rule)
		}
	}
	for i, p := range s.Profiles {
		c.failIf(p == "", at("spec.profiles", i), "", "must be the name of a profile")
		c.name(at("spec.profiles", i), p)
	}
	for i, p := range s.Ports {
		field := at("spec.ports", i)
		if msgs := validation.IsValidPortName(p.Name); len(msgs) > 0 {
			c.fail(field+".name", p.Name, "must be the name of a port: %s", msgs[0])
		}
		c.failIf(p.Port == 0, field+".port", p.Port, "must be from 1 to 65535")
		c.failIf(!p.Protocol.SupportsPorts(), field+".protocol", p.Protocol, "must be TCP, UDP or SCTP")
	}
}
