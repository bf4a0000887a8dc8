package validation

import (
	"fmt"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	"k8s.io/apimachinery/pkg/util/validation"
)

// entity checks one end of a rule; remote is set for the far end, seen from the policy's endpoints.
func (c ruleCheck) entity(field string, e *v3.EntityRule, remote bool) {
	c.nets(field+".nets", e.Nets)
	c.nets(field+".notNets", e.NotNets)
	for i, n := range e.NotNets {
		p, rule := parseNet(n, 0)
		c.failIf(rule == "" && p.Bits() == 0, at(field+".notNets", i), n, "would exclude everything")
	}
	c.plainSelector(field+".selector", e.Selector)
	c.plainSelector(field+".notSelector", e.NotSelector)
	c.namespaceSelector(field+".namespaceSelector", e.NamespaceSelector)
	if e.ServiceAccounts != nil {
		c.plainSelector(field+".serviceAccounts.selector", e.ServiceAccounts.Selector)
		for i, name := range e.ServiceAccounts.Names {
			// A selector is made of the names.
			if strings.ContainsAny(name, `'"`) {
				c.broken(at(field+".serviceAccounts.names", i), name, "cannot be the name of a ServiceAccount")
			}
		}
	}
	c.ports(field+".ports", e.Ports)
	c.ports(field+".notPorts", e.NotPorts)
	if e.Services != nil {
		c.services(field, e, remote)
	}
}

func (c ruleCheck) nets(field string, nets []string) {
	c.failIf(len(nets) > maxNets, field, len(nets), fmt.Sprintf("can have at most %d networks", maxNets))
	for i, n := range nets {
		p, rule := parseNet(n, 0)
		if rule != "" {
			c.broken(at(field, i), n, "%s", rule)
		} else if rule = strictNet(n, p); rule != "" {
			c.fail(at(field, i), n, "%s", rule)
		}
	}
}

func (c ruleCheck) ports(field string, ports []numorstring.Port) {
	c.failIf(len(ports) > maxPorts, field, len(ports), fmt.Sprintf("can have at most %d ports", maxPorts))
	if p := c.rule.Protocol; len(ports) > 0 && p != nil && !p.SupportsPorts() {
		c.broken(field, ports[0], "need protocol TCP, UDP or SCTP: %s has no ports", p)
	}
	for i, p := range ports {
		switch {
		case p.PortName != "":
			if !nameFormat.MatchString(p.PortName) {
				c.broken(at(field, i), p.PortName, "must be the name of a port: 1 to 128 letters, digits, "+
					"'_', '.' or '-'")
			}
			continue
		case p.MinPort > p.MaxPort:
			c.broken(at(field, i), p, "the first port of a range cannot be above the last")
		case p.MinPort == 0:
			c.fail(at(field, i), p, "must be from 1 to 65535")
		}
		if c.rule.Protocol == nil {
			c.broken(at(field, i), p, "needs protocol TCP, UDP or SCTP in the same rule: only names of ports "+
				"can do without")
		}
	}
}

// services checks an end that a Kubernetes service defines. The service's endpoints define it completely.
func (c ruleCheck) services(field string, e *v3.EntityRule, remote bool) {
	s := e.Services
	if !remote {
		c.broken(field+".services", s.Name, "can only be the destination of an egress rule or the source of an "+
			"ingress rule")
	}
	if s.Name == "" {
		c.broken(field+".services.name", "", "is required")
	} else if len(validation.IsDNS1123Subdomain(s.Name)) > 0 {
		c.fail(field+".services.name", s.Name, "must be the name of a service: at most 253 lower-case letters, "+
			"digits, '-' and '.'")
	}
	if s.Namespace == "" && c.global {
		c.broken(field+".services.namespace", "", "is required: this policy is in no namespace")
	}
	c.failIf(s.Namespace != "" && len(validation.IsDNS1123Label(s.Namespace)) > 0, field+".services.namespace",
		s.Namespace,
		"must be the name of a namespace: at most 63 lower-case letters, digits and '-'")
	beside := func(set bool, name string) {
		if set {
			c.broken(field+"."+name, "set", "cannot stand beside services, which names its endpoints")
		}
	}
	beside(e.Selector != "", "selector")
	beside(e.NotSelector != "", "notSelector")
	beside(e.NamespaceSelector != "", "namespaceSelector")
	beside(e.ServiceAccounts != nil, "serviceAccounts")
	beside(len(e.Nets) > 0, "nets")
	beside(len(e.NotNets) > 0, "notNets")
	if !c.ingress {
		beside(len(e.Ports) > 0, "ports")
		beside(len(e.NotPorts) > 0, "notPorts")
	}
}
