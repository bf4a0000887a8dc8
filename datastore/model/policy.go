package model

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// LabelTier is on every policy that has a tier; its value is the tier.
	LabelTier = "projectcalico.org/tier"
	// annotationMetadata holds the name of a policy in the datastore. Decoding removes it.
	annotationMetadata = "projectcalico.org/metadata"

	// DefaultTier is the tier of policies that name none.
	DefaultTier = "default"
	// oldPrefix is the prefix of the stored names of the default tier's policies before Calico 3.32.
	oldPrefix = DefaultTier + "."
	// KubernetesPolicyPrefix is the prefix of the NetworkPolicies that Calico's controllers derive from Kubernetes'
	// own.
	KubernetesPolicyPrefix = "knp.default."
)

// PolicyName returns the v3 name of a policy of a tier from its stored name. Releases before Calico 3.32 prefixed the
// names of the default tier's policies with "default."; later ones store every name unchanged and repeat it in an
// annotation, here annotated ("" for none). An annotation that matches neither form is ignored.
func PolicyName(stored, annotated, tier string) string {
	plain, old := strings.CutPrefix(stored, oldPrefix)
	switch {
	case annotated == stored || plain == "":
		return stored
	case old && annotated == plain:
		return plain
	case old && annotated == "" && (tier == "" || tier == DefaultTier):
		return plain
	}
	return stored
}

// OldPolicyKey returns the key of releases before Calico 3.32 for the policy of k, if it is in the default tier. ok is
// false for kinds that never had another name.
func OldPolicyKey(k Key) (old Key, ok bool) {
	k.Name = oldPrefix + k.Name
	return k, tiered(k.Kind)
}

// NewPolicyKey returns today's key for the policy that old releases stored under k. ok is false if k is no old key.
func NewPolicyKey(k Key) (current Key, ok bool) {
	plain, ok := strings.CutPrefix(k.Name, oldPrefix)
	k.Name = plain
	return k, ok && plain != "" && tiered(k.Kind)
}

// tiered reports whether objects of a kind belong to a tier.
func tiered(k Kind) bool { return slices.Contains(PolicyKinds(), k) }

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

// PolicyTier returns the tier of a tiered policy, "" for any other value.
func PolicyTier(value any) string {
	p, ok := policyOf(value)
	if !ok {
		return ""
	}
	return cmp.Or(*p.tier, DefaultTier)
}

// CheckPolicyTier reports an error if the tier of a new policy does not exist. It is separate from validation because
// it needs the tiers. Built-in tiers always exist.
func CheckPolicyTier(value any, tiers Reader) []FieldError {
	tier := PolicyTier(value)
	if tier == "" || BuiltInTier(tier) || tiers.Get(ResourceKey(KindTier, tier)) != nil {
		return nil
	}
	return []FieldError{{Field: "spec.tier", Value: tier, Rule: "must be a tier that exists: create it first"}}
}

// PolicyKinds returns the kinds whose objects belong to a tier.
func PolicyKinds() []Kind {
	return []Kind{KindNetworkPolicy, KindGlobalNetworkPolicy, KindStagedNetworkPolicy, KindStagedGlobalNetworkPolicy}
}

// BuiltInTier reports whether every cluster has a tier of that name, which cannot be deleted.
func BuiltInTier(name string) bool {
	_, ok := builtInTiers[name]
	return ok
}

// settlePolicy sets the name of a stored policy to the v3 name, and the fields that old writers left out.
func settlePolicy(stored string, value any) {
	if k, ok := value.(*v3.StagedKubernetesNetworkPolicy); ok {
		settleStagedKubernetesNetworkPolicy(k)
		return
	}
	p, ok := policyOf(value)
	if !ok {
		return
	}
	p.meta.Name = PolicyName(stored, annotatedName(p.meta), *p.tier)
	delete(p.meta.Annotations, annotationMetadata)
	if len(p.meta.Annotations) == 0 {
		p.meta.Annotations = nil
	}
	if *p.tier == "" {
		*p.tier = DefaultTier
	}
	if p.meta.Labels[LabelTier] == "" {
		p.setLabel()
	}
	p.inferTypes()
}

func annotatedName(m *metav1.ObjectMeta) string {
	var said struct{ Name string }
	if json.Unmarshal([]byte(m.Annotations[annotationMetadata]), &said) != nil {
		return ""
	}
	return said.Name
}

// annotatePolicy stores the name of a policy in Calico's annotation. It changes value.
func annotatePolicy(value any) error {
	p, ok := policyOf(value)
	if !ok {
		return nil
	}
	said, err := json.Marshal(map[string]string{"name": p.meta.Name})
	if err != nil {
		return err
	}
	p.meta.Annotations = maps.Clone(p.meta.Annotations)
	if p.meta.Annotations == nil {
		p.meta.Annotations = map[string]string{}
	}
	p.meta.Annotations[annotationMetadata] = string(said)
	return nil
}

func (p policy) setLabel() {
	if p.meta.Labels == nil {
		p.meta.Labels = map[string]string{}
	}
	p.meta.Labels[LabelTier] = *p.tier
}
