package policy

import (
	"fmt"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/floating"
	"github.com/manxnet/manx/datastore/model"
)

// The kernel's connections are removed when a translation ends or changes its target, not when it begins or stays.
func TestFloatingAddressesThatLeadElsewhere(t *testing.T) {
	pool := &model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.250.0.0/24", Disabled: true}}
	pool.Annotations = map[string]string{floating.Annotation: "true"}
	set := model.NewSet(model.NewObject(model.ResourceKey(model.KindIPPool, "floating"), pool))
	felix := &model.Object{Key: model.ResourceKey(model.KindFelixConfiguration, "default")}
	enable := func(how v3.FloatingIPType) {
		f := &model.FelixConfiguration{}
		f.Spec.FloatingIPs = &how
		felix = &model.Object{Key: felix.Key, Value: f}
		set[felix.Key] = felix
	}
	translate := func(name, internal string) model.Key {
		o := workload(name, "cali"+name)
		w := *o.Value.(*model.WorkloadEndpoint)
		w.Spec.IPNATs = []model.IPNAT{{ExternalIP: "10.250.0.7", InternalIP: internal}}
		if internal == "" {
			w.Spec.IPNATs = nil
		}
		set[o.Key] = &model.Object{Key: o.Key, Value: &w}
		return o.Key
	}
	c := New(Config{Node: testNode})
	for _, step := range []struct {
		name string
		do   func() model.Key
		want string
	}{
		{"enabled", func() model.Key { enable(v3.FloatingIPsEnabled); return felix.Key }, "[]"},
		{"given to a workload", func() model.Key { return translate("b", "10.244.0.2") }, "[]"},
		{"again", func() model.Key { return translate("b", "10.244.0.2") }, "[]"},
		{"another address of the workload", func() model.Key { return translate("b", "10.244.0.3") }, "[10.250.0.7]"},
		{"claimed by one that comes later", func() model.Key { return translate("c", "10.244.0.9") }, "[]"},
		{"given up by the first", func() model.Key { return translate("b", "") }, "[10.250.0.7]"},
		{"disabled", func() model.Key { enable(v3.FloatingIPsDisabled); return felix.Key }, "[10.250.0.7]"},
		{"enabled again", func() model.Key { enable(v3.FloatingIPsEnabled); return felix.Key }, "[]"},
		{"in a pool whose addresses others can get", func() model.Key {
			o := model.NewObject(model.ResourceKey(model.KindIPPool, "floating"), &model.IPPool{
				Spec: model.IPPoolSpec{CIDR: "10.250.0.0/24"}})
			set[o.Key] = o
			return o.Key
		}, "[10.250.0.7]"},
	} {
		c.Update(set, step.do())
		if got := fmt.Sprint(c.Retranslated()); got != step.want {
			t.Errorf("%s: connections of %s are to be forgotten, want %s", step.name, got, step.want)
		}
	}
}
