package validation

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/manxnet/manx/datastore/model"
)

// inferTypes sets the directions of a policy without any: those for which it has rules, ingress if it has none. An
// empty list would stand for both.
func (p policy) inferTypes() {
	switch {
	case len(*p.types) > 0 || p.deletes():
	case len(p.egress) == 0:
		*p.types = []v3.PolicyType{v3.PolicyTypeIngress}
	case len(p.ingress) == 0:
		*p.types = []v3.PolicyType{v3.PolicyTypeEgress}
	default:
		*p.types = []v3.PolicyType{v3.PolicyTypeIngress, v3.PolicyTypeEgress}
	}
}

// defaultPolicy sets the defaults of Calico for a stored policy.
func defaultPolicy(value any) {
	p, _ := policyOf(value)
	if p.staged != nil && *p.staged == "" {
		*p.staged = v3.StagedActionSet
	}
	if *p.tier == "" {
		*p.tier = model.DefaultTier
	}
	p.setLabel()
	p.inferTypes()
	delete(p.meta.Annotations, model.AnnotationMetadata) // encoding adds it
}

// CompletePolicy sets the fields of a stored policy that old writers left out. It leaves other values alone.
func CompletePolicy(value any) {
	if v, ok := value.(*v3.StagedKubernetesNetworkPolicy); ok {
		completeStagedKubernetesNetworkPolicy(v)
		return
	}
	p, ok := policyOf(value)
	if !ok {
		return
	}
	if *p.tier == "" {
		*p.tier = model.DefaultTier
	}
	if p.meta.Labels[model.LabelTier] == "" {
		p.setLabel()
	}
	p.inferTypes()
}

func defaultNetworkPolicy(v *v3.NetworkPolicy)                         { defaultPolicy(v) }
func defaultGlobalNetworkPolicy(v *v3.GlobalNetworkPolicy)             { defaultPolicy(v) }
func defaultStagedNetworkPolicy(v *v3.StagedNetworkPolicy)             { defaultPolicy(v) }
func defaultStagedGlobalNetworkPolicy(v *v3.StagedGlobalNetworkPolicy) { defaultPolicy(v) }

// defaultStagedKubernetesNetworkPolicy also sets missing directions, as Calico does if the policy is stored in
// Kubernetes, so that every reader evaluates them equally.
func defaultStagedKubernetesNetworkPolicy(v *v3.StagedKubernetesNetworkPolicy) {
	if v.Spec.StagedAction == "" {
		v.Spec.StagedAction = v3.StagedActionSet
	}
	completeStagedKubernetesNetworkPolicy(v)
}

func completeStagedKubernetesNetworkPolicy(v *v3.StagedKubernetesNetworkPolicy) {
	if s := &v.Spec; len(s.PolicyTypes) == 0 && s.StagedAction != v3.StagedActionDelete {
		s.PolicyTypes = kubernetesPolicyTypes(len(s.Egress))
	}
}

// defaultKubernetesNetworkPolicy sets the API server's defaults for a policy without directions.
func defaultKubernetesNetworkPolicy(v *networkingv1.NetworkPolicy) {
	if s := &v.Spec; len(s.PolicyTypes) == 0 {
		s.PolicyTypes = kubernetesPolicyTypes(len(s.Egress))
	}
}

func kubernetesPolicyTypes(egressRules int) []networkingv1.PolicyType {
	types := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	if egressRules > 0 {
		types = append(types, networkingv1.PolicyTypeEgress)
	}
	return types
}
