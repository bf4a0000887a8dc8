package validation

import (
	"net/netip"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
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

func defaultIPAMConfiguration(i *model.IPAMConfiguration) {
	if i.Spec.AutoAllocateBlocks == nil {
		i.Spec.AutoAllocateBlocks = ptr(true)
	}
}

func checkIPAMConfiguration(c *check, i *model.IPAMConfiguration) {
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

func checkIPAMConfig(c *check, i *model.IPAMConfig) {
	c.failIf(!i.StrictAffinity && !i.AutoAllocateBlocks, "auto_allocate_blocks", false,
		"cannot be false while strict_affinity is false")
	c.failIf(i.MaxBlocksPerHost < 0, "maxBlocksPerHost", i.MaxBlocksPerHost, "cannot be negative")
	c.failIf(i.MaxBlocksPerHost > 0 && !i.StrictAffinity, "maxBlocksPerHost", i.MaxBlocksPerHost,
		"needs strict_affinity; 0 is no limit")
	checkIPAMExtras(c, "", i.KubeVirtVMAddressPersistence, i.IPCooldownSeconds)
}

func checkProfile(c *check, p *v3.Profile) {
	c.failIf(p.Name == model.DefaultAllowProfile, "metadata.name", p.Name, "is built in and cannot be written")
	c.labels("spec.labelsToApply", p.Spec.LabelsToApply)
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
