package validation

import (
	"github.com/manxnet/manx/datastore/model"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

func checkNetworkSet(c *check, s *v3.NetworkSet) { checkSet(c, s.Labels, s.Spec.Nets) }

func checkGlobalNetworkSet(c *check, s *v3.GlobalNetworkSet) { checkSet(c, s.Labels, s.Spec.Nets) }

func checkSet(c *check, labels map[string]string, nets []string) {
	if v, ok := labels[model.LabelNamespace]; ok {
		c.fail("metadata.labels", model.LabelNamespace+"="+v, "is a label that Calico keeps for itself")
	}
	for i, n := range nets {
		if _, rule := parseNet(n, 0); rule != "" {
			c.broken(at("spec.nets", i), n, "%s", rule)
		}
	}
}
