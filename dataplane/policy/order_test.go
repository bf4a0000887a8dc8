package policy

import (
	"net/netip"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

const testNode = "here"

func workload(name, iface string, profiles ...string) *model.Object {
	w := &model.WorkloadEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	w.Spec = model.WorkloadEndpointSpec{Node: testNode, InterfaceName: iface, Profiles: profiles}
	return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name}, w)
}

func allowAll(name string) *model.Object {
	p := &v3.Profile{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Ingress, p.Spec.Egress = []v3.Rule{{Action: v3.Allow}}, []v3.Rule{{Action: v3.Allow}}
	return model.NewObject(model.ResourceKey(model.KindProfile, name), p)
}

// takes tells whether a new connection into an interface would be accepted.
func takes(c *Calculator, iface string) bool {
	return c.Table().Eval(nil, ruleset.Forward, ruleset.Packet{In: "eth0", Out: iface, Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("10.0.0.1"), Protocol: 6}, nil).Accepted()
}

func TestProfileThatAllowsAllNeedsNoObject(t *testing.T) {
	set := model.NewSet(workload("a", "cali1", model.DefaultAllowProfile))
	c := Build(Config{Node: testNode}, set, nil)
	for _, step := range []func(){
		func() {},
		func() { c.Update(set) },
		func() {
			p := allowAll(model.DefaultAllowProfile)
			set[p.Key] = p
			c.Update(set, p.Key)
			delete(set, p.Key)
			c.Update(set, p.Key)
		},
	} {
		if step(); !takes(c, "cali1") {
			t.Error("dropped")
		}
	}
}

// Interfaces are handed on in a row, in both directions of the names.
func TestWorkloadsPassTheirInterfacesOn(t *testing.T) {
	for _, names := range [][3]string{{"a", "b", "c"}, {"c", "b", "a"}} {
		set := model.NewSet(allowAll("open"), workload(names[0], "cali1", "open"), workload(names[1], "cali2", "open"), workload(names[2], "cali3", "open"))
		c := Build(Config{Node: testNode}, set, nil)
		var changed []model.Key
		for i, iface := range []string{"cali2", "cali3", "cali4"} {
			o := workload(names[i], iface, "open")
			set[o.Key] = o
			changed = append(changed, o.Key)
		}
		c.Update(set, changed...)
		for iface, want := range map[string]bool{"cali1": false, "cali2": true, "cali3": true, "cali4": true} {
			if takes(c, iface) != want {
				t.Errorf("%v: %s takes packets: %v, want %v", names, iface, !want, want)
			}
		}
	}
}

func TestNothingIsSaidOfEndpointsThatAreGone(t *testing.T) {
	set := model.NewSet(workload("a", "cali1"), workload("b", "cali1"))
	c := Build(Config{Node: testNode}, set, nil)
	count := func() (n int) {
		for range c.Bad() {
			n++
		}
		return n
	}
	if n := count(); n != 1 {
		t.Fatalf("%d endpoints cannot be used, want 1: both have one interface", n)
	}
	k := workload("b", "").Key
	delete(set, k)
	if c.Update(set, k); count() != 0 {
		t.Error("an endpoint that is gone still has its interface disputed")
	}
}
