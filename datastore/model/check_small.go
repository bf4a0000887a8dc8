package model

import (
	"net/netip"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/util/validation"
)

// onlyDefault applies the rule of kinds that have one object.
func (c *check) onlyDefault() {
	c.failIf(c.key.Name != "default", "metadata.name", c.key.Name, `must be "default": there is only one`)
}

func checkIPReservation(c *check, r *v3.IPReservation) {
	for i, n := range r.Spec.ReservedCIDRs {
		if _, err := netip.ParsePrefix(n); err != nil {
			c.fail(at("spec.reservedCIDRs", i), n, "must be a CIDR: ADDRESS/LENGTH")
		}
	}
}

func checkClusterInformation(c *check, _ *v3.ClusterInformation) { c.onlyDefault() }

func defaultIPAMConfiguration(i *IPAMConfiguration) {
	if i.Spec.AutoAllocateBlocks == nil {
		i.Spec.AutoAllocateBlocks = ptr(true)
	}
}

func checkIPAMConfiguration(c *check, i *IPAMConfiguration) {
	c.onlyDefault()
	c.failIf(i.Spec.MaxBlocksPerHost < 0 || i.Spec.MaxBlocksPerHost > 1000000, "spec.maxBlocksPerHost",
		i.Spec.MaxBlocksPerHost,
		"must be from 0 to 1000000")
	checkIPAMExtras(c, "spec.", i.Spec.KubeVirtVMAddressPersistence, i.Spec.IPCooldownSeconds)
}

func checkIPAMExtras(c *check, prefix string, persistence *string, cooldown *int) {
	enumPtr(c, prefix+"kubeVirtVMAddressPersistence", persistence, "Enabled", "Disabled")
	if cooldown != nil {
		c.failIf(*cooldown < 0 || *cooldown > 1200, prefix+"ipCooldownSeconds", *cooldown, "must be from 0 to 1200")
	}
}

func checkIPAMConfig(c *check, i *IPAMConfig) {
	c.failIf(!i.StrictAffinity && !i.AutoAllocateBlocks, "auto_allocate_blocks", false,
		"cannot be false while strict_affinity is false")
	c.failIf(i.MaxBlocksPerHost < 0, "maxBlocksPerHost", i.MaxBlocksPerHost, "cannot be negative")
	c.failIf(i.MaxBlocksPerHost > 0 && !i.StrictAffinity, "maxBlocksPerHost", i.MaxBlocksPerHost,
		"needs strict_affinity")
	checkIPAMExtras(c, "", i.KubeVirtVMAddressPersistence, i.IPCooldownSeconds)
}

// DefaultAllowProfile is a profile that every cluster has and no datastore stores.
const DefaultAllowProfile = "projectcalico-default-allow"

func checkProfile(c *check, p *v3.Profile) {
	c.failIf(p.Name == DefaultAllowProfile, "metadata.name", p.Name, "is built in and cannot be written")
	c.labels("spec.labelsToApply", p.Spec.LabelsToApply)
}

// builtInTiers are the tiers that always exist, with their settings.
var builtInTiers = map[string]struct {
	order  float64
	action v3.Action
}{
	"default":       {v3.DefaultTierOrder, v3.Deny},
	"kube-admin":    {v3.AdminNetworkPolicyTierOrder, v3.Pass},
	"kube-baseline": {v3.BaselineAdminNetworkPolicyTierOrder, v3.Pass},
}

func defaultTier(t *Tier) {
	if t.Spec.Order == nil {
		t.Spec.Order = ptr(v3.DefaultTierOrder)
	}
	if t.Spec.DefaultAction == nil {
		t.Spec.DefaultAction = ptr(v3.Deny)
	}
	if t.Status == nil {
		t.Status = &TierStatus{}
	}
}

func checkTier(c *check, t *Tier) {
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

// printable returns the content of an optional field, for messages.
func printable[T any](p *T) any {
	if p == nil {
		return ""
	}
	return *p
}

// maxUpdatePeriod is a day, in seconds.
const maxUpdatePeriod = 86400

func checkCalicoNodeStatus(c *check, s *v3.CalicoNodeStatus) {
	c.failIf(s.Spec.Node == "", "spec.node", "", "is required: the node that reports its status here")
	c.name("spec.node", s.Spec.Node)
	c.failIf(len(s.Spec.Classes) == 0, "spec.classes", "", "is required: "+list(nodeStatusClasses))
	seen := map[v3.NodeStatusClassType]bool{}
	for i, class := range s.Spec.Classes {
		enum(c, at("spec.classes", i), class, nodeStatusClasses...)
		c.failIf(seen[class], at("spec.classes", i), class, "must not stand there twice")
		seen[class] = true
	}
	switch p := s.Spec.UpdatePeriodSeconds; {
	case p == nil:
		c.fail("spec.updatePeriodSeconds", "", "is required: seconds between reports, 0 for none after the first")
	case *p > maxUpdatePeriod:
		c.fail("spec.updatePeriodSeconds", *p, "must be from 0 to %d", maxUpdatePeriod)
	}
}

var nodeStatusClasses = []v3.NodeStatusClassType{v3.NodeStatusClassTypeAgent, v3.NodeStatusClassTypeBGP,
	v3.NodeStatusClassTypeRoutes}
