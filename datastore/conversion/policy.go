package conversion

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/manxnet/manx/datastore/model"
)

// Policy returns the policy that an object of any kind of policy stands for, in Calico's terms: a Calico policy itself,
// what a Kubernetes policy is turned into, nil for what asks for nothing. Key and revision are those of o.
func Policy(o *model.Object) (*model.Object, error) {
	switch v := o.Value.(type) {
	case *networkingv1.NetworkPolicy:
		p, _, err := NetworkPolicy(v)
		return of(o, p), err
	case *v3.StagedKubernetesNetworkPolicy:
		if v.Spec.StagedAction == v3.StagedActionDelete || v.Spec.StagedAction == v3.StagedActionIgnore {
			return nil, nil
		}
		p, _, err := StagedKubernetesNetworkPolicy(v)
		return of(o, p), err
	case *model.ClusterNetworkPolicy:
		p, _, err := ClusterNetworkPolicy(v)
		if p == nil {
			return nil, err
		}
		return of(o, p), err
	}
	return o, nil
}

func of(o *model.Object, value any) *model.Object {
	return &model.Object{Key: o.Key, Revision: o.Revision, Value: value}
}
