package bgp

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// floating reports whether workloads can be reached by floating addresses (FelixConfiguration, floatingIPs), which then are
// announced like addresses of their own.
func (c *cluster) floating(r model.Reader) bool {
	var setting *v3.FloatingIPType
	for _, f := range model.FelixConfigurations(r, c.me.name) {
		setting = model.MergeFloatingIPs(setting, f.Spec.FloatingIPs)
	}
	return setting != nil && *setting == v3.FloatingIPsEnabled
}
