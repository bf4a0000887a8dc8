package policy

import (
	"net/netip"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// pod is a workload with an address and labels, in a namespace without policy.
func pod(namespace, name, address string, labels map[string]string) *model.Object {
	w := &model.WorkloadEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{
			model.LabelNamespace: namespace, model.LabelOrchestrator: "k8s", model.LabelServiceAccount: "default"}}}
	for k, v := range labels {
		w.Labels[k] = v
	}
	w.Spec = model.WorkloadEndpointSpec{Node: testNode, InterfaceName: "cali" + name, IPNetworks: []string{address},
		ServiceAccountName: "default",
		Profiles:           []string{"kns." + namespace, "ksa." + namespace + ".default"}}
	return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: namespace, Name: name}, w)
}

// namespace is the profile of a namespace, with the labels that its pods inherit.
func namespace(name string, labels map[string]string) *model.Object {
	o := allowAll("kns." + name)
	p := o.Value.(*v3.Profile)
	p.Spec.LabelsToApply = map[string]string{"pcns.projectcalico.org/name": name}
	for k, v := range labels {
		p.Spec.LabelsToApply["pcns."+k] = v
	}
	return o
}

// reaches reports whether a new TCP connection from one address to another one, of a pod behind iface, is accepted.
func reaches(c *Calculator, source, destination, iface string, port uint16) bool {
	p := ruleset.Packet{In: "eth0", Out: iface, Source: netip.MustParseAddr(source),
		Destination: netip.MustParseAddr(destination), Protocol: 6,
		SourcePort: 1025, DestinationPort: port}
	return c.Table().Eval(nil, ruleset.Forward, p, nil).Accepted()
}

// A user who creates pods in one namespace cannot give them the rights of another namespace or service account.
func TestPodsCannotPretendToBeElsewhere(t *testing.T) {
	for _, c := range []struct {
		name   string
		source v3.EntityRule
		labels map[string]string
	}{
		{"namespace by name", v3.EntityRule{NamespaceSelector: "projectcalico.org/name == 'admin'"},
			map[string]string{"pcns.projectcalico.org/name": "admin"}},
		{"namespace by label", v3.EntityRule{NamespaceSelector: "trusted == 'yes'"},
			map[string]string{"pcns.trusted": "yes"}},
		{"label of the namespace in the selector",
			v3.EntityRule{NamespaceSelector: "all()", Selector: "pcns.trusted == 'yes'"},
			map[string]string{"pcns.trusted": "yes"}},
		{"service account by label", v3.EntityRule{NamespaceSelector: "all()", ServiceAccounts: &v3.ServiceAccountMatch{
			Selector: "trusted == 'yes'"}},
			map[string]string{"pcsa.trusted": "yes"}},
		{"service account by name", v3.EntityRule{NamespaceSelector: "all()", ServiceAccounts: &v3.ServiceAccountMatch{
			Names: []string{"root"}}},
			map[string]string{model.LabelServiceAccount: "root"}},
	} {
		p := &v3.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "admin", Name: "p"},
			Spec: v3.NetworkPolicySpec{Types: []v3.PolicyType{v3.PolicyTypeIngress},
				Ingress: []v3.Rule{{Action: v3.Allow, Source: c.source}}}}
		rightful := pod("admin", "friend", "10.0.0.3", nil)
		set := model.NewSet(namespace("admin", map[string]string{"trusted": "yes"}), namespace("guest", nil),
			pod("admin", "db", "10.0.0.1", nil), pod("guest", "evil", "10.0.0.2", c.labels), rightful,
			model.NewObject(model.Key{Kind: model.KindNetworkPolicy, Namespace: "admin", Name: "p"}, p))
		account := allowAll("ksa.admin.default")
		account.Value.(*v3.Profile).Spec.LabelsToApply = map[string]string{"pcsa.trusted": "yes"}
		set[account.Key] = account
		if names := c.source.ServiceAccounts; names != nil && len(names.Names) > 0 {
			rightful.Value.(*model.WorkloadEndpoint).Spec.ServiceAccountName = "root"
		}
		calc := Build(Config{Node: testNode}, set, nil)
		if reaches(calc, "10.0.0.2", "10.0.0.1", "calidb", 80) {
			t.Errorf("%s: a pod of another namespace gets in by its labels %v", c.name, c.labels)
		}
		netset := &v3.NetworkSet{ObjectMeta: metav1.ObjectMeta{Namespace: "guest", Name: "evil", Labels: c.labels},
			Spec: v3.NetworkSetSpec{Nets: []string{"10.0.0.2"}}}
		if k := (model.Key{Kind: model.KindNetworkSet, Namespace: "guest",
			Name: "evil"}); c.labels[model.LabelServiceAccount] == "" {
			set[k] = model.NewObject(k, netset)
			if calc.Update(set, k); reaches(calc, "10.0.0.2", "10.0.0.1", "calidb", 80) {
				t.Errorf("%s: a network set of another namespace gets in by its labels %v", c.name, c.labels)
			}
		}
		if !reaches(calc, "10.0.0.3", "10.0.0.1", "calidb", 80) {
			t.Errorf("%s: the pod that is meant does not get in", c.name)
		}
	}
}
