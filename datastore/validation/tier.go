package validation

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/manxnet/manx/datastore/model"
)

// builtInTiers are the tiers that always exist, with their settings.
var builtInTiers = map[string]struct {
	order  float64
	action v3.Action
}{
	"default":       {v3.DefaultTierOrder, v3.Deny},
	"kube-admin":    {v3.AdminNetworkPolicyTierOrder, v3.Pass},
	"kube-baseline": {v3.BaselineAdminNetworkPolicyTierOrder, v3.Pass},
}

func defaultTier(t *model.Tier) {
	if t.Spec.Order == nil {
		t.Spec.Order = ptr(v3.DefaultTierOrder)
	}
	if t.Spec.DefaultAction == nil {
		t.Spec.DefaultAction = ptr(v3.Deny)
	}
	if t.Status == nil {
		t.Status = &model.TierStatus{}
	}
}

func checkTier(c *check, t *model.Tier) {
	if len(validation.IsDNS1123Label(t.Name)) > 0 {
		c.fail("metadata.name", t.Name, "must be at most 63 lower-case letters, digits and '-'")
	}
	if t.Spec.DefaultAction != nil {
		brokenEnum(c, "spec.defaultAction", *t.Spec.DefaultAction, v3.Deny, v3.Pass)
	}
	fixed, ok := builtInTiers[t.Name]
	if !ok {
		return
	}
	if o := t.Spec.Order; o == nil || *o != fixed.order {
		c.fail("spec.order", printable(o), "must be %v in the built-in tier %s", fixed.order, t.Name)
	}
	if a := t.Spec.DefaultAction; a == nil || *a != fixed.action {
		c.fail("spec.defaultAction", printable(a), "must be %s in the built-in tier %s", fixed.action, t.Name)
	}
}

// CheckPolicyTier reports an error if the tier of a policy does not exist. It is separate from validation because
// it needs the tiers. Built-in tiers always exist.
func CheckPolicyTier(value any, tiers model.Reader) []model.FieldError {
	tier := model.PolicyTier(value)
	if tier == "" || BuiltInTier(tier) || tiers.Get(model.ResourceKey(model.KindTier, tier)) != nil {
		return nil
	}
	return []model.FieldError{{Field: "spec.tier", Value: tier, Rule: "must be a tier that exists: create it first"}}
}

// BuiltInTier reports whether every cluster has a tier of that name, which cannot be deleted.
func BuiltInTier(name string) bool {
	_, ok := builtInTiers[name]
	return ok
}
