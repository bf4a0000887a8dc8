package model

import (
	"cmp"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

const (
	// LabelTier is on every policy that has a tier; its value is the tier.
	LabelTier = "projectcalico.org/tier"
	// AnnotationMetadata holds the name of a policy in the datastore. Decoding removes it, encoding adds it.
	AnnotationMetadata = "projectcalico.org/metadata"

	// DefaultTier is the tier of policies that name none.
	DefaultTier = "default"
	// oldPrefix is the prefix of the stored names of the default tier's policies before Calico 3.32.
	oldPrefix = DefaultTier + "."
	// KubernetesPolicyPrefix is the prefix of the NetworkPolicies that Calico's controllers derive from Kubernetes'
	// own.
	KubernetesPolicyPrefix = "knp.default."
)

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

// PolicyTier returns the tier of a tiered policy, "" for any other value.
func PolicyTier(value any) string {
	switch v := value.(type) {
	case *v3.NetworkPolicy:
		return cmp.Or(v.Spec.Tier, DefaultTier)
	case *v3.GlobalNetworkPolicy:
		return cmp.Or(v.Spec.Tier, DefaultTier)
	case *v3.StagedNetworkPolicy:
		return cmp.Or(v.Spec.Tier, DefaultTier)
	case *v3.StagedGlobalNetworkPolicy:
		return cmp.Or(v.Spec.Tier, DefaultTier)
	}
	return ""
}

// PolicyKinds returns the kinds whose objects belong to a tier.
func PolicyKinds() []Kind {
	return []Kind{KindNetworkPolicy, KindGlobalNetworkPolicy, KindStagedNetworkPolicy, KindStagedGlobalNetworkPolicy}
}

// DefaultAllowProfile is a profile that every cluster has and no datastore stores.
const DefaultAllowProfile = "projectcalico-default-allow"
