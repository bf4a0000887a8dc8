package bgp

import (
	"fmt"
	"slices"

	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// elevatedPriority is the kernel metric of routes that come before ordinary ones when FelixConfiguration sets none.
const elevatedPriority = 512

// elevated lists the metrics below the ordinary one, by family, that routes can have: the elevated priority of
// FelixConfiguration, and those that import filters set.
func (c *cluster) elevated(r model.Reader, filters []Filter) [families][]uint32 {
	metrics := c.felixPriorities(r)
	for _, f := range filters {
		for family, rules := range [families][]Rule{f.ImportV4, f.ImportV6} {
			for _, rule := range rules {
				for _, o := range rule.Operations {
					metrics[family] = append(metrics[family], o.SetPriority)
				}
			}
		}
	}
	for family, list := range metrics {
		list = slices.DeleteFunc(list, func(m uint32) bool { return m == 0 || m >= c.priorities[family] })
		slices.Sort(list)
		metrics[family] = slices.Compact(list)
	}
	return metrics
}

// felixPriorities reads the elevated priorities; the settings of the node win over those of the cluster, and those of
// its host, which are valid, over both.
func (c *cluster) felixPriorities(r model.Reader) [families][]uint32 {
	metrics := [families][]uint32{{elevatedPriority}, {elevatedPriority}}
	for name, f := range felixconfig.Applicable(r, c.me.name) {
		for family, value := range [families]*int{f.Spec.IPv4ElevatedRoutePriority, f.Spec.IPv6ElevatedRoutePriority} {
			if value == nil {
				continue
			}
			m, err := priority(fmt.Sprintf("spec.ip%sElevatedRoutePriority", [families]string{"v4", "v6"}[family]),
				*value)
			if err != nil {
				c.note("FelixConfiguration/"+name, "is ignored: "+err.Error())
				continue
			}
			metrics[family] = []uint32{m}
		}
	}
	if c.host != nil {
		for family, value := range [families]*int{c.host.Spec.IPv4ElevatedRoutePriority,
			c.host.Spec.IPv6ElevatedRoutePriority} {
			if value != nil {
				metrics[family] = []uint32{uint32(*value)}
			}
		}
	}
	return metrics
}
