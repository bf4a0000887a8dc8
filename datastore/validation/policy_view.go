package validation

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// policy has the common fields of the four kinds of tiered policies. The pointers point into the object.
type policy struct {
	meta                             *metav1.ObjectMeta
	staged                           *v3.StagedAction // nil for an enforced policy
	tier                             *string
	types                            *[]v3.PolicyType
	order                            *float64
	ingress, egress                  []v3.Rule
	selector, serviceAccountSelector string
	hints                            []v3.PolicyPerformanceHint
	global                           *globalPolicy // nil for a namespaced policy
}

// globalPolicy has the fields of GlobalNetworkPolicies, staged or not, only.
type globalPolicy struct {
	namespaceSelector                   string
	doNotTrack, preDNAT, applyOnForward bool
}

// policyOf returns the common view of a tiered policy; ok is false for any other value.
func policyOf(value any) (p policy, ok bool) {
	switch v := value.(type) {
	case *v3.NetworkPolicy:
		s := &v.Spec
		return policy{&v.ObjectMeta, nil, &s.Tier, &s.Types, s.Order, s.Ingress, s.Egress, s.Selector,
			s.ServiceAccountSelector,
			s.PerformanceHints, nil}, true
	case *v3.StagedNetworkPolicy:
		s := &v.Spec
		return policy{&v.ObjectMeta, &s.StagedAction, &s.Tier, &s.Types, s.Order, s.Ingress, s.Egress, s.Selector,
			s.ServiceAccountSelector,
			s.PerformanceHints, nil}, true
	case *v3.GlobalNetworkPolicy:
		s := &v.Spec
		return policy{&v.ObjectMeta, nil, &s.Tier, &s.Types, s.Order, s.Ingress, s.Egress, s.Selector,
			s.ServiceAccountSelector,
			s.PerformanceHints, &globalPolicy{s.NamespaceSelector, s.DoNotTrack, s.PreDNAT, s.ApplyOnForward}}, true
	case *v3.StagedGlobalNetworkPolicy:
		s := &v.Spec
		return policy{&v.ObjectMeta, &s.StagedAction, &s.Tier, &s.Types, s.Order, s.Ingress, s.Egress, s.Selector,
			s.ServiceAccountSelector,
			s.PerformanceHints, &globalPolicy{s.NamespaceSelector, s.DoNotTrack, s.PreDNAT, s.ApplyOnForward}}, true
	}
	return policy{}, false
}

// deletes reports whether a staged policy is for the removal of the enforced one of its name.
func (p policy) deletes() bool { return p.staged != nil && *p.staged == v3.StagedActionDelete }

func (p policy) setLabel() {
	if p.meta.Labels == nil {
		p.meta.Labels = map[string]string{}
	}
	p.meta.Labels[model.LabelTier] = *p.tier
}
