package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// randomObject returns an object of any kind in one of a few versions. Many objects name each other.
func randomObject(r *rand.Rand) *model.Object {
	labels := map[string]string{"app": fmt.Sprint(r.IntN(3))}
	selector := func() string { return fmt.Sprintf("app == '%d'", r.IntN(3)) }
	name, order := fmt.Sprint("n", r.IntN(4)), float64(r.IntN(3))
	global := func(k model.Kind, v any) *model.Object { return model.NewObject(model.ResourceKey(k, name), v) }
	inside := func(k model.Kind, v any) *model.Object {
		return model.NewObject(model.Key{Kind: k, Namespace: "default", Name: name}, v)
	}
	meta := metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels}
	rules := []v3.Rule{
		{Action: v3.Pass, Protocol: protocolOf("TCP"),
			Source: v3.EntityRule{Selector: selector(), NotSelector: selector()}, Destination: v3.EntityRule{
				Ports: []numorstring.Port{numorstring.NamedPort("http"), numorstring.SinglePort(uint16(r.IntN(9) + 1)),
					numorstring.SinglePort(99)}}},
		{Action: v3.Allow, Source: v3.EntityRule{Services: &v3.ServiceMatch{Namespace: "default", Name: "s"}}},
		{Action: v3.Deny, Source: v3.EntityRule{
			Nets: []string{fmt.Sprintf("10.%d.0.0/16", r.IntN(3)), "192.0.2.0/24"}}},
	}
	switch r.IntN(18) {
	case 0, 1, 2:
		w := pod("default", name, fmt.Sprintf("10.0.0.%d", 1+r.IntN(5)), labels)
		s := &w.Value.(*model.WorkloadEndpoint).Spec
		s.InterfaceName = fmt.Sprint("cali", r.IntN(3)) // several claim one
		s.Profiles = []string{"kns.default", fmt.Sprint("p", r.IntN(2)), "missing"}[:r.IntN(4)]
		s.Ports = []model.EndpointPort{{Name: "http", Protocol: *protocolOf("TCP"), Port: uint16(80 + r.IntN(2))}}
		s.AllowSpoofedSourcePrefixes = []string{"192.0.2.0/24"}[:r.IntN(2)]
		s.IPNATs = []model.IPNAT{{InternalIP: "10.0.0.1", ExternalIP: fmt.Sprintf("203.0.113.%d", r.IntN(3))}}[:r.IntN(
			2)]
		s.Node = []string{testNode, testNode, "other"}[r.IntN(3)]
		if r.IntN(2) == 0 {
			s.QoSControls = &model.QoSControls{IngressPacketRate: 5, DSCP: []string{"", "EF", "10", "none"}[r.IntN(4)]}
		}
		return w
	case 3:
		h := &v3.HostEndpoint{ObjectMeta: meta, Spec: v3.HostEndpointSpec{
			Node: testNode, InterfaceName: []string{"eth0", "*", "eth7"}[r.IntN(3)], Profiles: []string{"lost"}}}
		if r.IntN(2) == 0 {
			h.Annotations = map[string]string{"qos.projectcalico.org/dscp": []string{"ef", "63"}[r.IntN(2)]}
			h.Spec.ExpectedIPs = []string{"10.0.0.1", "fd00::1"}[:r.IntN(3)]
		}
		return global(model.KindHostEndpoint, h)
	case 4, 5, 6:
		return globalPolicy(name, v3.GlobalNetworkPolicySpec{Tier: fmt.Sprint("t", r.IntN(3)), Order: &order,
			Selector: selector(), Types: twoTypes, Ingress: rules,
			ApplyOnForward: r.IntN(2) == 0, DoNotTrack: r.IntN(5) == 0})
	case 7:
		return inside(model.KindNetworkPolicy, &v3.NetworkPolicy{
			ObjectMeta: meta, Spec: v3.NetworkPolicySpec{Types: twoTypes, Ingress: rules, Egress: rules}})
	case 8:
		return inside(model.KindStagedNetworkPolicy, &v3.StagedNetworkPolicy{
			ObjectMeta: meta, Spec: v3.StagedNetworkPolicySpec{Types: twoTypes, Ingress: rules}})
	case 9: // cannot be used
		return globalPolicy(name, v3.GlobalNetworkPolicySpec{Selector: "((("})
	case 10:
		return inside(model.KindKubernetesNetworkPolicy, &networkingv1.NetworkPolicy{
			ObjectMeta: meta, Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "app", Operator: []metav1.LabelSelectorOperator{"Exists", "Bad"}[r.IntN(2)]}}}}})
	case 11:
		p := namespace([]string{"default", "other"}[r.IntN(2)], labels)
		return p
	case 12:
		p := &v3.Profile{Spec: v3.ProfileSpec{LabelsToApply: labels, Ingress: rules[1:]}}
		if r.IntN(4) == 0 {
			p.Spec.Ingress = []v3.Rule{{Action: "Nothing"}}
		}
		return model.NewObject(model.ResourceKey(model.KindProfile, fmt.Sprint("p", r.IntN(2))), p)
	case 13:
		return model.NewObject(model.ResourceKey(model.KindTier, fmt.Sprint("t", r.IntN(3))),
			&model.Tier{Spec: v3.TierSpec{Order: &order}})
	case 14:
		return inside(model.KindNetworkSet, &v3.NetworkSet{
			ObjectMeta: meta, Spec: v3.NetworkSetSpec{
				Nets: []string{"10.0.0.0/30", "10.0.0.1", "fd00::/64"}[r.IntN(3):]}})
	case 15:
		return global(model.KindGlobalNetworkSet, &v3.GlobalNetworkSet{ObjectMeta: meta, Spec: v3.GlobalNetworkSetSpec{
			Nets: []string{"10.0.0.0/8"}}})
	case 16:
		port := int32(80)
		slice := &model.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{model.LabelServiceName: []string{"s", "u"}[r.IntN(2)]}},
			Endpoints: []model.Endpoint{{Addresses: []string{"10.0.0.1"}}}, Ports: []model.SlicePort{{Port: &port}}}
		return inside(model.KindEndpointSlice, slice)
	}
	felix := &model.FelixConfiguration{}
	on := v3.FloatingIPsEnabled
	felix.Spec.FloatingIPs = &on
	felix.Spec.WorkloadSourceSpoofing = "Any"
	return model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix)
}

// Removed objects leave nothing in the table or in any index.
func TestFlappingLeavesNothingBehind(t *testing.T) {
	links := map[string][]netip.Addr{"eth0": {netip.MustParseAddr("192.0.2.1")}, "lo": nil}
	fresh := New(Config{Node: testNode})
	fresh.SetInterfaces(links)
	fresh.Update(model.Set{})
	fresh.Table().TakeChanges()
	want := countContent(fresh)
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		c, set := New(Config{Node: testNode}), model.Set{}
		c.SetInterfaces(links)
		most := 0
		for range 500 {
			var changed []model.Key
			for range 1 + r.IntN(3) {
				o := randomObject(r)
				if changed = append(changed, o.Key); set[o.Key] != nil && r.IntN(2) == 0 {
					delete(set, o.Key)
				} else {
					set[o.Key] = o
				}
			}
			if r.IntN(20) == 0 {
				changed = nil // checks everything
			}
			c.Update(set, changed...)
			c.Table().TakeChanges()
			most = max(most, len(c.Table().Chains()))
		}
		if most < 30 {
			t.Fatalf("seed %d: no more than %d chains: that tests little", seed, most)
		}
		keys := slices.Collect(maps.Keys(set))
		clear(set)
		if seed%2 == 0 {
			keys = nil
		}
		c.Update(set, keys...)
		c.Table().TakeChanges()
		c.Retranslated()
		for what, n := range countContent(c) {
			if n != want[what] {
				t.Errorf("seed %d: %s holds %d, want %d", seed, what, n, want[what])
			}
		}
	}
}

// countContent counts the content of all maps that can be reached from a calculator, by their path.
func countContent(c *Calculator) map[string]int {
	counts, seen := map[string]int{}, map[uintptr]bool{}
	var visit func(string, reflect.Value)
	visit = func(path string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Map:
			counts[path] += v.Len()
		case reflect.Pointer:
			if v.IsNil() || seen[v.Pointer()] || !strings.Contains(v.Type().String(), "Calculator") &&
				!strings.Contains(v.Type().String(), "labels.Index") &&
				v.Type() != reflect.TypeOf(&ruleset.Table{}) {
				return
			}
			seen[v.Pointer()] = true
			visit(path, v.Elem())
		case reflect.Struct:
			for i := range v.NumField() {
				f := v.Type().Field(i)
				if v.Field(i).Kind() == reflect.Pointer && strings.Contains(v.Type().String(), "labels.set[") &&
					!v.Field(i).IsNil() {
					counts[path+"."+f.Name]++ // the only member of a set
					continue
				}
				visit(path+"."+f.Name, v.Field(i))
			}
		}
	}
	visit("calculator", reflect.ValueOf(c))
	return counts
}
