package conversion

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/manxnet/manx/datastore/model"
)

// Policy returns the Calico policy of an object of any policy kind: a Calico policy itself, a Kubernetes policy
// converted, nil for one without effect. Key and revision are those of o.
func Policy(o *model.Object) (*model.Object, error) {
	switch v := o.Value.(type) {
	case *networkingv1.NetworkPolicy:
		p, _, err := NetworkPolicy(v)
		return of(o, p), err
	case *v3.StagedKubernetesNetworkPolicy:
		if v.Spec.StagedAction == v3.StagedActionDelete || v.Spec.StagedAction == v3.StagedActionIgnore {
			return nil, nil
		}
		p, _, err := stagedKubernetesNetworkPolicy(v)
		return of(o, p), err
	case *model.ClusterNetworkPolicy:
		p, _, err := clusterNetworkPolicy(v)
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
