package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

func tableText(t *testing.T, c *Calculator) string {
	t.Helper()
	var b strings.Builder
	if err := c.Table().Text(&b, ruleset.TextOptions{}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// usable returns a random object that is used: of one that is not, the last valid version stays in force.
func usable(r *rand.Rand) *model.Object {
	switch r.IntN(12) {
	case 0:
		f := &model.FelixConfiguration{}
		f.Spec.InterfacePrefix = []string{"cali", "cali,eth", "cali0,cali1"}[r.IntN(3)]
		return model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), f)
	case 1:
		p := &model.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}}
		p.Spec.CIDR, p.Spec.NATOutgoing = "10.0.0.0/24", true
		p.Spec.IPIPMode = []v3.IPIPMode{v3.IPIPModeNever, v3.IPIPModeAlways}[r.IntN(2)]
		return model.NewObject(model.ResourceKey(model.KindIPPool, "pool"), p)
	case 2:
		address := []string{"10.0.0.1/24", "192.0.2.2/24"}[r.IntN(2)]
		n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"},
			Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: address}}}
		return model.NewObject(model.ResourceKey(model.KindNode, "other"), n)
	}
	for {
		o := randomObject(r)
		c := New(Config{Node: testNode})
		c.Update(model.NewSet(o))
		if c.bad[o.Key] == "" {
			return o
		}
	}
}

// differs reports whether a Calculator with these steps comes to another table than a new one, in random states.
func differs(t *testing.T, order []step, seed uint64, rounds int) (different bool) {
	t.Helper()
	defer func() { different = recover() != nil || different }()
	uplinks := []map[string][]netip.Addr{
		{"eth0": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, "lo": nil},
		{"eth0": {netip.MustParseAddr("192.0.2.1")}, "eth7": {netip.MustParseAddr("2001:db8::7")}}}
	r := rand.New(rand.NewPCG(seed, 2))
	c, set := New(Config{Node: testNode}), model.Set{}
	c.steps = order
	for range rounds {
		links, devices := uplinks[r.IntN(2)], map[string]TunnelDevice{"tunl0": {Up: r.IntN(2) == 0},
			"vxlan.calico": {Up: r.IntN(2) == 0, VNI: uint32(r.IntN(3))}}
		var changed []model.Key
		for range 1 + r.IntN(3) {
			o := usable(r)
			if changed = append(changed, o.Key); set[o.Key] != nil && r.IntN(2) == 0 {
				delete(set, o.Key)
			} else {
				set[o.Key] = o
			}
		}
		c.SetInterfaces(links)
		c.SetTunnels(devices)
		c.Update(set, changed...)
		for len(c.policies.waiting) > 0 {
			c.Continue()
		}
		c.Table().TakeChanges()
		fresh := New(Config{Node: testNode})
		fresh.SetInterfaces(links)
		fresh.SetTunnels(devices)
		fresh.Update(set)
		if tableText(t, c) != tableText(t, fresh) {
			return true
		}
	}
	return false
}

// A step that moves before one whose outcome it reads makes the table wrong. So each `after` is needed.
func TestOrderOfSteps(t *testing.T) {
	if differs(t, steps, 0, 150) {
		t.Fatal("the table depends on the way to a state")
	}
	at := func(name string) int {
		return slices.IndexFunc(steps, func(s step) bool { return s.name == name })
	}
	for i, s := range steps {
		for _, name := range s.after {
			j := at(name)
			if j < 0 || j >= i {
				t.Fatalf("%s is not after %s", s.name, name)
			}
			order := slices.Insert(slices.Delete(slices.Clone(steps), i, i+1), j, s)
			if !differs(t, order, 0, 150) {
				t.Errorf("%s may stand before %s", s.name, name)
			}
		}
	}
}
