package policy

import (
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// With the Kubernetes API as datastore, profiles are namespaces and service accounts.
func TestNamespacesAndServiceAccountsAreProfiles(t *testing.T) {
	labelled := func(labels map[string]string) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindNamespace, "guest"),
			&model.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "guest", Labels: labels}})
	}
	account := func(labels map[string]string) *model.Object {
		key := model.Key{Kind: model.KindServiceAccount, Namespace: "guest", Name: "default"}
		return model.NewObject(key, &model.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Namespace: "guest", Name: "default", Labels: labels}})
	}
	policy := &v3.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "admin", Name: "p"},
		Spec: v3.NetworkPolicySpec{
			Types: []v3.PolicyType{v3.PolicyTypeIngress}, Ingress: []v3.Rule{{Action: v3.Allow, Source: v3.EntityRule{
				NamespaceSelector: "trusted == 'yes'", ServiceAccounts: &v3.ServiceAccountMatch{
					Selector: "robot == 'yes'"},
			}}},
		}}
	trusted, robot := labelled(map[string]string{"trusted": "yes"}), account(map[string]string{"robot": "yes"})
	set := model.NewSet(trusted, robot, pod("admin", "db", "10.0.0.1", nil), pod("guest", "web", "10.0.0.2", nil),
		model.NewObject(model.ResourceKey(model.KindNamespace, "admin"),
			&model.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "admin"}}),
		model.NewObject(model.Key{Kind: model.KindNetworkPolicy, Namespace: "admin", Name: "p"}, policy))
	c := Build(Config{Node: testNode}, set, nil)
	check := func(what string, db, web bool) {
		t.Helper()
		if have := reaches(c, "10.0.0.2", "10.0.0.1", "calidb", 80); have != db {
			t.Errorf("%s: the database takes the pod of the other namespace: %v", what, have)
		}
		if have := reaches(c, "10.0.0.1", "10.0.0.2", "caliweb", 80); have != web {
			t.Errorf("%s: the namespace without policies is open: %v", what, have)
		}
	}
	change := func(o *model.Object) {
		set[o.Key] = o
		c.Update(set, o.Key)
	}
	check("at first", true, true)
	change(labelled(nil))
	check("the namespace lost its label", false, true)
	change(trusted)
	change(account(nil))
	check("the account lost its label", false, true)
	change(robot)
	check("both are back", true, true)
	c.Update(set)
	check("all was looked at again", true, true)
	delete(set, trusted.Key)
	c.Update(set, trusted.Key)
	check("the namespace is gone", false, false)
	change(trusted)
	delete(set, robot.Key)
	c.Update(set)
	check("the account is gone", false, true)
}
