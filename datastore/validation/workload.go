package validation

import (
	"errors"
	"net/netip"
	"regexp"

	"github.com/manxnet/manx/datastore/model"
)

func defaultWorkloadEndpoint(w *model.WorkloadEndpoint) {
	if w.Labels == nil {
		w.Labels = map[string]string{}
	}
	w.Labels[model.LabelNamespace] = w.Namespace
	w.Labels[model.LabelOrchestrator] = w.Spec.Orchestrator
}

var containerFormat = regexp.MustCompile(`^[a-zA-Z0-9-]*$`)

func checkWorkloadEndpoint(c *check, w *model.WorkloadEndpoint) {
	s := w.Spec
	checkWorkloadName(c, w)
	c.failIf(!containerFormat.MatchString(s.ContainerID), "spec.containerID", s.ContainerID,
		"must be letters, digits and dashes")
	if !model.IsInterfaceName(s.InterfaceName) {
		c.broken("spec.interfaceName", s.InterfaceName, "must be an interface name of at most 15 characters")
	}
	c.mac("spec.mac", s.MAC)
	own := map[netip.Addr]bool{}
	for i, n := range s.IPNetworks {
		p, rule := parseNet(n, 0)
		switch {
		case rule != "":
			c.broken(at("spec.ipNetworks", i), n, "%s", rule)
		case !p.IsSingleIP():
			c.broken(at("spec.ipNetworks", i), n, "must be a single address (/32 or /128)")
		}
		own[p.Addr()] = true
	}
	for i, n := range s.IPNATs {
		checkNAT(c, at("spec.ipNATs", i), n, own)
	}
	c.ip("spec.ipv4Gateway", s.IPv4Gateway, 4)
	c.ip("spec.ipv6Gateway", s.IPv6Gateway, 6)
	for i, p := range s.AllowSpoofedSourcePrefixes {
		if _, rule := parseNet(p, 0); rule != "" {
			c.fail(at("spec.allowSpoofedSourcePrefixes", i), p, "%s", rule)
		}
	}
	checkQoS(c, s.QoSControls)
	for i, p := range s.Ports {
		field := at("spec.ports", i)
		c.failIf(p.Name == "" && p.HostPort == 0, field+".name", "", "a port needs a name or a hostPort")
		c.failIf(p.Port == 0, field+".port", p.Port, "must be from 1 to 65535")
		c.failIf(!p.Protocol.SupportsPorts(), field+".protocol", p.Protocol, "must be TCP, UDP or SCTP")
		c.ip(field+".hostIP", p.HostIP, 0)
	}
}

func checkWorkloadName(c *check, w *model.WorkloadEndpoint) {
	if c.lenient {
		return
	}
	want, err := model.WorkloadEndpointName(w.Spec.IDs())
	var wrong model.FieldError
	switch {
	case errors.As(err, &wrong):
		c.errs = append(c.errs, wrong)
	case w.Name != want:
		c.fail("metadata.name", w.Name, "must be %q, as spec calls for", want)
	}
}

func checkNAT(c *check, field string, n model.IPNAT, own map[netip.Addr]bool) {
	internal, rule := parseIP(n.InternalIP, 0)
	switch {
	case rule != "":
		c.fail(field+".internalIP", n.InternalIP, "%s", rule)
	case !own[internal]:
		c.fail(field+".internalIP", n.InternalIP, "must be one of spec.ipNetworks")
	}
	external, rule := parseIP(n.ExternalIP, 0)
	switch {
	case rule != "":
		c.fail(field+".externalIP", n.ExternalIP, "%s", rule)
	case internal.IsValid() && internal.Is4() != external.Is4():
		c.fail(field+".externalIP", n.ExternalIP, "must be of the same family as internalIP")
	}
}
