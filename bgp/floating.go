package bgp

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// floating reports whether workloads can be reached by floating addresses (FelixConfiguration, floatingIPs), which then are
// announced like addresses of their own.
func (c *cluster) floating(r model.Reader) bool {
	var setting *v3.FloatingIPType
	for _, name := range []string{"default", "node." + c.me.name} {
		f := model.Get[model.FelixConfiguration](r, model.ResourceKey(model.KindFelixConfiguration, name))
		if f != nil {
			setting = model.MergeFloatingIPs(setting, f.Spec.FloatingIPs)
		}
	}
	return setting != nil && *setting == v3.FloatingIPsEnabled
}
