package validation

import (
	"cmp"
	"regexp"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

func defaultKubeControllers(k *model.KubeControllersConfiguration) {
	s := &k.Spec
	s.HealthChecks = cmp.Or(s.HealthChecks, "Enabled")
	if s.PrometheusMetricsPort == nil {
		s.PrometheusMetricsPort = ptr(9094)
	}
	if n := s.Controllers.Node; n != nil && n.LeakGracePeriod == nil {
		n.LeakGracePeriod = &metav1.Duration{Duration: 15 * time.Minute}
	}
	if l := s.Controllers.LoadBalancer; l != nil {
		l.AssignIPs = cmp.Or(l.AssignIPs, v3.AllServices)
	}
	if m := s.Controllers.Migration; m != nil {
		m.PolicyNameMigrator = cmp.Or(m.PolicyNameMigrator, "Enabled")
	}
}

func checkKubeControllers(c *check, k *model.KubeControllersConfiguration) {
	c.onlyDefault()
	s := k.Spec
	enum(c, "spec.logSeverityScreen", s.LogSeverityScreen, "None", "Debug", "Info", "Warning", "Error", "Fatal",
		"Panic")
	enum(c, "spec.healthChecks", s.HealthChecks, "Enabled", "Disabled")
	if p := s.PrometheusMetricsPort; p != nil {
		c.failIf(*p < 0 || *p > 65535, "spec.prometheusMetricsPort", *p, "must be from 0 to 65535")
	}
	if p := s.DebugProfilePort; p != nil {
		c.failIf(*p < 0 || *p > 65535, "spec.debugProfilePort", *p, "must be from 0 to 65535")
	}
	const field = "spec.controllers"
	if l := s.Controllers.LoadBalancer; l != nil {
		enum(c, field+".loadBalancer.assignIPs", l.AssignIPs, v3.AllServices, v3.RequestedServicesOnly)
	}
	if m := s.Controllers.Migration; m != nil {
		enum(c, field+".migration.policyNameMigrator", m.PolicyNameMigrator, "Enabled", "Disabled")
	}
	if n := s.Controllers.Node; n != nil {
		enum(c, field+".node.syncLabels", n.SyncLabels, "Enabled", "Disabled")
		if n.HostEndpoint != nil {
			checkAutoHostEndpoints(c, field+".node.hostEndpoint", n.HostEndpoint)
		}
	}
}

func checkAutoHostEndpoints(c *check, field string, h *model.AutoHostEndpoints) {
	enum(c, field+".autoCreate", h.AutoCreate, "Enabled", "Disabled")
	enum(c, field+".createDefaultHostEndpoint", h.CreateDefaultHostEndpoint, "Enabled", "Disabled")
	seen := map[string]bool{}
	for i, t := range h.Templates {
		field := at(field+".templates", i)
		c.failIf(t.GenerateName == "", field+".generateName", "", "is required: it distinguishes the host endpoints "+
			"of one template from those of another")
		c.name(field+".generateName", t.GenerateName)
		c.failIf(seen[t.GenerateName], field+".generateName", t.GenerateName, "is the name of another template")
		seen[t.GenerateName] = true
		c.failIf(len(t.InterfaceCIDRs) == 0 && t.InterfacePattern == "", field+".interfacePattern", "",
			"is required unless interfaceCIDRs selects the interfaces")
		for j, n := range t.InterfaceCIDRs {
			if _, rule := parseNet(n, 0); rule != "" {
				c.fail(at(field+".interfaceCIDRs", j), n, "%s", rule)
			}
		}
		if _, err := regexp.Compile(t.InterfacePattern); err != nil {
			c.fail(field+".interfacePattern", t.InterfacePattern, "must be a regular expression: %v", err)
		}
		c.labels(field+".labels", t.Labels)
		c.selector(field+".nodeSelector", t.NodeSelector)
	}
}
