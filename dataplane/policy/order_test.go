package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

const testNode = "here"

func workload(name, iface string, profiles ...string) *model.Object {
	w := &model.WorkloadEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	w.Spec = model.WorkloadEndpointSpec{Node: testNode, InterfaceName: iface, Profiles: profiles,
		IPNetworks: []string{"10.0.0.1/32"}}
	return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name}, w)
}

func allowAll(name string) *model.Object {
	p := &v3.Profile{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Ingress, p.Spec.Egress = []v3.Rule{{Action: v3.Allow}}, []v3.Rule{{Action: v3.Allow}}
	return model.NewObject(model.ResourceKey(model.KindProfile, name), p)
}

// acceptsInto reports whether a new connection into an interface would be accepted.
func acceptsInto(c *Calculator, iface string) bool {
	return c.Table().Eval(nil, ruleset.Forward,
		ruleset.Packet{In: "eth0", Out: iface, Source: netip.MustParseAddr("192.0.2.1"),
			Destination: netip.MustParseAddr("10.0.0.1"), Protocol: 6}, nil).Accepted()
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
		if step(); !acceptsInto(c, "cali1") {
			t.Error("dropped")
		}
	}
}

// An endpoint without addresses does not count: it takes no interface from another endpoint, and releases its interface
// when it loses its addresses.
func TestEndpointsWithoutAddressesAreNone(t *testing.T) {
	first, second := workload("a", "cali1", "open"), workload("b", "cali1", "open")
	set := model.NewSet(allowAll("open"), first)
	c := Build(Config{Node: testNode}, set, nil)
	if !acceptsInto(c, "cali1") {
		t.Error("dropped")
	}
	bare := workload("a", "cali1", "open")
	bare.Value.(*model.WorkloadEndpoint).Spec.IPNetworks = nil
	set[bare.Key] = bare
	if c.Update(set, bare.Key); acceptsInto(c, "cali1") {
		t.Error("taken for an endpoint without addresses")
	}
	set[second.Key] = second
	if c.Update(set, second.Key); !acceptsInto(c, "cali1") || *c.Workload("cali1") != second.Key {
		t.Error("an endpoint without addresses keeps the interface from another one")
	}
}

// Workloads take over each other's interfaces in a chain, in both directions of the names.
func TestWorkloadsPassTheirInterfacesOn(t *testing.T) {
	for _, names := range [][3]string{{"a", "b", "c"}, {"c", "b", "a"}} {
		set := model.NewSet(allowAll("open"), workload(names[0], "cali1", "open"), workload(names[1], "cali2", "open"),
			workload(names[2], "cali3", "open"))
		c := Build(Config{Node: testNode}, set, nil)
		var changed []model.Key
		for i, iface := range []string{"cali2", "cali3", "cali4"} {
			o := workload(names[i], iface, "open")
			set[o.Key] = o
			changed = append(changed, o.Key)
		}
		c.Update(set, changed...)
		for iface, want := range map[string]bool{"cali1": false, "cali2": true, "cali3": true, "cali4": true} {
			if acceptsInto(c, iface) != want {
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

// Lower orders come first, policies without an order last; then names decide, then namespaces, then Calico's kinds. A
// '/' ends each name, so "a-b" stands before "a".
func TestPoliciesAndTiersAreAskedInCalicosOrder(t *testing.T) {
	order := func(f float64) *float64 { return &f }
	global := func(tier, name string, o *float64) *model.Object {
		return globalPolicy(name, v3.GlobalNetworkPolicySpec{Tier: tier, Order: o, Types: twoTypes[:1]})
	}
	inside := func(name string, o *float64) *model.Object {
		k := model.Key{Kind: model.KindNetworkPolicy, Namespace: "default", Name: name}
		return model.NewObject(k, &v3.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: v3.NetworkPolicySpec{Order: o, Types: twoTypes[:1]}})
	}
	kubernetes := func(name string) *model.Object {
		k := model.Key{Kind: model.KindKubernetesNetworkPolicy, Namespace: "default", Name: name}
		return model.NewObject(k, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
	}
	cluster := func(name string, priority int32) *model.Object {
		all := metav1.LabelSelector{}
		p := &model.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: model.ClusterNetworkPolicySpec{Tier: model.ClusterPolicyAdmin, Priority: priority,
				Subject: model.ClusterPolicySubject{Namespaces: &all}, Ingress: []model.ClusterIngressRule{
					{Action: "Pass", From: []model.ClusterPolicyPeer{{Namespaces: &all}}}}}}
		return model.NewObject(model.ResourceKey(model.KindClusterNetworkPolicy, name), p)
	}
	tier := func(name string, o *float64) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindTier, name),
			&model.Tier{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v3.TierSpec{Order: o}})
	}
	for _, c := range []struct {
		name    string
		objects []*model.Object
		want    []string
	}{
		{"by order", []*model.Object{global("", "a", nil), global("", "b", order(20)), global("", "c", order(-1)),
			global("", "d", order(0.5))}, []string{"c", "d", "b", "a"}},
		{"by name", []*model.Object{global("", "b", order(1)), global("", "a", order(1)), inside("c", order(1))},
			[]string{"a", "b", "c"}},
		{"by name, without orders", []*model.Object{inside("b", nil), global("", "c", nil), global("", "a", nil)},
			[]string{"a", "b", "c"}},
		{"names that begin alike", []*model.Object{global("", "a", nil), global("", "a-b", nil), global("", "a0", nil)},
			[]string{"a-b", "a", "a0"}},
		{"Kubernetes' are of order 1000", []*model.Object{kubernetes("b"), inside("a", order(1000)),
			inside("c", order(1000)), inside("d", order(999)), inside("e", order(1001))},
			[]string{"d", "a", "b", "c", "e"}},
		{"of one name by kind", []*model.Object{inside("a", order(1000)), kubernetes("a")},
			[]string{"KubernetesNetworkPolicy/default/a", "NetworkPolicy/default/a"}},
		{"a global one before one of a namespace", []*model.Object{inside("a", nil), global("", "a", nil)},
			[]string{"GlobalNetworkPolicy/a", "NetworkPolicy/default/a"}},
		{"a global one before an administrator's", []*model.Object{cluster("a", 5), global("kube-admin", "a", order(5)),
			cluster("b", 4)},
			[]string{"b", "GlobalNetworkPolicy/a", "ClusterNetworkPolicy/a"}},
		{"tiers by order, then name, those that are missing last", []*model.Object{
			global("last", "a", nil), global("default", "b", nil), global("y", "c", nil), global("x", "d", nil),
			global("none", "e", nil), global("kube-baseline", "f", nil),
			cluster("g", 1), tier("y", order(7)), tier("x", order(7)), tier("none", nil)},
			[]string{"d", "c", "g", "b", "f", "e", "a"}},
	} {
		set := model.NewSet(append(c.objects, pod("default", "w", "10.0.0.1", nil))...)
		calc := Build(Config{Node: testNode}, set, nil)
		policies := calc.PoliciesOf(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"}, true)
		policies = policies[:len(policies)-2] // profiles
		var got []string
		for i, id := range policies {
			if got = append(got, id.Name); i < len(c.want) && strings.Contains(c.want[i], "/") {
				got[i] = id.String()
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A tier's default action applies when one of its policies selects a packet and none decides. The profiles decide
// packets that the last tier passes. Staged policies decide nothing.
func TestEndOfTiers(t *testing.T) {
	deny, pass := v3.Deny, v3.Pass
	for _, c := range []struct {
		name    string
		actions []*v3.Action // of the tiers
		staged  bool
		rule    v3.Rule
		allowed bool
	}{
		{"no default action", []*v3.Action{nil}, false, v3.Rule{Action: v3.Log}, false},
		{"Deny", []*v3.Action{&deny}, false, v3.Rule{Action: v3.Log}, false},
		{"Pass", []*v3.Action{&pass}, false, v3.Rule{Action: v3.Log}, true},
		{"a rule that passes", []*v3.Action{&deny}, false, v3.Rule{Action: v3.Pass}, true},
		{"Pass everywhere", []*v3.Action{&pass, &pass, &pass}, false, v3.Rule{Action: v3.Log}, true},
		{"rules that pass everywhere", []*v3.Action{&deny, &deny, &deny}, false, v3.Rule{Action: v3.Pass}, true},
		{"Pass, then Deny", []*v3.Action{&pass, &deny}, false, v3.Rule{Action: v3.Log}, false},
		{"staged", []*v3.Action{&deny, &deny}, true, v3.Rule{Action: v3.Deny}, true},
		{"allowed in the first", []*v3.Action{&deny, &deny}, false, v3.Rule{Action: v3.Allow}, true},
	} {
		for _, profile := range []bool{true, false} {
			set := model.NewSet(pod("default", "w", "10.0.0.1", nil))
			if profile {
				p := namespace("default", nil)
				set[p.Key] = p
			}
			for i, a := range c.actions {
				name, order := fmt.Sprint("t", i), float64(i)
				tier := model.NewObject(model.ResourceKey(model.KindTier, name),
					&model.Tier{Spec: v3.TierSpec{Order: &order, DefaultAction: a}})
				set[tier.Key] = tier
				p := globalPolicy(name, v3.GlobalNetworkPolicySpec{Tier: name, Types: twoTypes[:1],
					Ingress: []v3.Rule{c.rule}})
				if c.staged {
					p = model.NewObject(model.ResourceKey(model.KindStagedGlobalNetworkPolicy, name),
						&v3.StagedGlobalNetworkPolicy{
							Spec: v3.StagedGlobalNetworkPolicySpec{Tier: name, Types: twoTypes[:1],
								Ingress: []v3.Rule{c.rule}}})
				}
				set[p.Key] = p
			}
			want := c.allowed && (profile || c.rule.Action == v3.Allow)
			if got := reaches(Build(Config{Node: testNode}, set, nil), "192.0.2.1", "10.0.0.1", "caliw",
				80); got != want {
				t.Errorf("%s, profile %v: allowed %v, want %v", c.name, profile, got, want)
			}
		}
	}
}

// Without a setting a Log rule has a limit: a pod that sends without a pause does not fill the kernel's log.
func TestLogActionIsLimited(t *testing.T) {
	p := globalPolicy("p", v3.GlobalNetworkPolicySpec{Types: twoTypes[:1], Ingress: []v3.Rule{{Action: v3.Log}}})
	for _, c := range []struct {
		setting string
		want    uint64 // a second
	}{{"", logRate}, {"1000000/second", 1000000}} {
		felix := &model.FelixConfiguration{}
		if c.setting != "" {
			felix.Spec.LogActionRateLimit = &c.setting
		}
		set := model.NewSet(pod("default", "w", "10.0.0.1", nil), p,
			model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))
		got := Build(Config{Node: testNode}, set, nil).Table().Chain("pi/GlobalNetworkPolicy/p").Rules[0].Log
		if got.Rate != c.want || got.Per != ruleset.PerSecond || got.Burst == 0 {
			t.Errorf("%q: the log is %+v, want %d a second", c.setting, got, c.want)
		}
	}
}

func TestLogAction(t *testing.T) {
	felix := &model.FelixConfiguration{}
	felix.Spec.LogPrefix = "%t %k %n %p"
	limit := "10/minute"
	felix.Spec.LogActionRateLimit = &limit
	p := globalPolicy("p", v3.GlobalNetworkPolicySpec{Tier: "kube-admin", Types: twoTypes[:1],
		Ingress: []v3.Rule{{Action: v3.Log}, {Action: v3.Deny}}})
	inside := model.NewObject(model.Key{Kind: model.KindNetworkPolicy, Namespace: "default", Name: "q"},
		&v3.NetworkPolicy{Spec: v3.NetworkPolicySpec{Types: twoTypes[:1], Ingress: []v3.Rule{{Action: v3.Log}}}})
	set := model.NewSet(pod("default", "w", "10.0.0.1", nil), p, inside,
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))
	long := strings.Repeat("n", 120)
	named := globalPolicy(long, v3.GlobalNetworkPolicySpec{Types: twoTypes[:1], Ingress: []v3.Rule{{Action: v3.Log}}})
	set[named.Key] = named
	for _, group := range []uint16{0, 7} {
		table := Build(Config{Node: testNode, FlowLog: group}, set, nil).Table()
		for chain, want := range map[string][2]string{
			"pi/GlobalNetworkPolicy/p":   {"kube-admin gnp p p: ", "log GlobalNetworkPolicy/p ingress 1"},
			"pi/NetworkPolicy/default/q": {"default np q default/q: ", "log NetworkPolicy/default/q ingress 1"},
			"pi/GlobalNetworkPolicy/" + long: {"default gnp " + long[:50] + ".." + long[:60] + ": ",
				"log GlobalNetworkPolicy/" + long[:38] + ".." + long[:52] + " ingress 1"},
		} {
			wanted := ruleset.Log{Kernel: want[0], Rate: 10, Burst: 5, Per: ruleset.PerMinute}
			if group != 0 {
				wanted.Group, wanted.Prefix = group, want[1]
			}
			got := table.Chain(chain).Rules[0]
			if got.Log != wanted {
				t.Errorf("%s has %+v, want %+v", chain, got.Log, wanted)
			}
			if rule, logged := ParseLogPrefix(got.Log.Prefix); group != 0 && (!logged || rule != want[1][4:]) {
				t.Errorf("%q is read as %q, logged %v", got.Log.Prefix, rule, logged)
			}
		}
		deny := table.Chain("pi/GlobalNetworkPolicy/p").Rules[1]
		if rule, logged := ParseLogPrefix(deny.Log.Prefix); group != 0 && (logged || rule != deny.Comment) {
			t.Errorf("%q is read as %q, logged %v", deny.Log.Prefix, rule, logged)
		}
	}
}
