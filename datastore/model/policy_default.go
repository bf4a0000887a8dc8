package model

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
)

// inferTypes fills in the directions of a policy that names none: those that it has rules for, ingress if it has none.
// Without this, an empty list would mean both.
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

// defaultPolicy is what Calico fills in when it stores a policy.
func defaultPolicy(value any) {
	p, _ := policyOf(value)
	if p.staged != nil && *p.staged == "" {
		*p.staged = v3.StagedActionSet
	}
	if *p.tier == "" {
		*p.tier = DefaultTier
	}
	p.setLabel()
	p.inferTypes()
	delete(p.meta.Annotations, annotationMetadata) // Encode says what is right
}

func defaultNetworkPolicy(v *v3.NetworkPolicy)                         { defaultPolicy(v) }
func defaultGlobalNetworkPolicy(v *v3.GlobalNetworkPolicy)             { defaultPolicy(v) }
func defaultStagedNetworkPolicy(v *v3.StagedNetworkPolicy)             { defaultPolicy(v) }
func defaultStagedGlobalNetworkPolicy(v *v3.StagedGlobalNetworkPolicy) { defaultPolicy(v) }

// defaultStagedKubernetesNetworkPolicy also stores the directions that the user did not name, as Calico does where the
// policy is kept in Kubernetes, so that what is stored means the same to everybody.
func defaultStagedKubernetesNetworkPolicy(v *v3.StagedKubernetesNetworkPolicy) {
	if v.Spec.StagedAction == "" {
		v.Spec.StagedAction = v3.StagedActionSet
	}
	settleStagedKubernetesNetworkPolicy(v)
}

func settleStagedKubernetesNetworkPolicy(v *v3.StagedKubernetesNetworkPolicy) {
	if s := &v.Spec; len(s.PolicyTypes) == 0 && s.StagedAction != v3.StagedActionDelete {
		s.PolicyTypes = kubernetesPolicyTypes(len(s.Egress))
	}
}

// defaultKubernetesNetworkPolicy does what Kubernetes' API server does to a policy that names no directions.
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
