package validation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

func defaultIPPool(p *model.IPPool) {
	if prefix, err := netip.ParsePrefix(p.Spec.CIDR); err == nil && prefix == prefix.Masked() {
		p.Spec.CIDR = prefix.String()
	}
	*p = *p.WithDefaults()
}

var linkLocal = []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")}

func checkIPPool(c *check, p *model.IPPool) {
	p = p.WithDefaults()
	s := p.Spec
	brokenEnum(c, "spec.ipipMode", s.IPIPMode, v3.IPIPModeNever, v3.IPIPModeAlways, v3.IPIPModeCrossSubnet)
	brokenEnum(c, "spec.vxlanMode", s.VXLANMode, v3.VXLANModeNever, v3.VXLANModeAlways, v3.VXLANModeCrossSubnet)
	c.failIf(s.IPIPMode != v3.IPIPModeNever && s.VXLANMode != v3.VXLANModeNever, "spec.vxlanMode", s.VXLANMode,
		"cannot be enabled together with ipipMode")
	checkPoolSelector(c, "spec.nodeSelector", s.NodeSelector)
	checkPoolSelector(c, "spec.namespaceSelector", s.NamespaceSelector)
	c.failIf(s.NamespaceSelector != "" && slices.Contains(s.AllowedUses, v3.IPPoolAllowedUseTunnel),
		"spec.namespaceSelector",
		s.NamespaceSelector, "cannot be set while allowedUses has Tunnel, which is the default")
	checkPoolUses(c, s)
	enumPtr(c, "spec.assignmentMode", s.AssignmentMode, v3.Automatic, v3.Manual)
	if s.CIDR == "" {
		c.broken("spec.cidr", "", "is required")
		return
	}
	prefix, err := netip.ParsePrefix(s.CIDR)
	if err != nil {
		c.broken("spec.cidr", s.CIDR, "must be a CIDR: ADDRESS/LENGTH")
		return
	}
	checkPoolRange(c, s, prefix)
}

func checkPoolRange(c *check, s model.IPPoolSpec, prefix netip.Prefix) {
	c.network("spec.cidr", s.CIDR)
	for _, l := range linkLocal {
		if l.Overlaps(prefix) {
			c.fail("spec.cidr", s.CIDR, "overlaps the link-local range %s", l)
		}
	}
	low, high := 116, 128
	if prefix.Addr().Is4() {
		low, high = 20, 32
	} else {
		c.failIf(s.IPIPMode != v3.IPIPModeNever, "spec.ipipMode", s.IPIPMode, "IPIP exists for IPv4 only")
	}
	switch {
	case s.BlockSize < 0 || s.BlockSize > high:
		c.broken("spec.blockSize", s.BlockSize, "must be from %d to %d", low, high)
	case s.BlockSize < low:
		c.fail("spec.blockSize", s.BlockSize, "must be from %d to %d", low, high)
	case prefix.Bits() > s.BlockSize && !s.Disabled:
		c.fail("spec.blockSize", s.BlockSize, "the pool %s is smaller than one block: use at least %d", prefix,
			prefix.Bits())
	}
}

func checkPoolSelector(c *check, field, text string) {
	c.selector(field, text)
	c.failIf(strings.Contains(text, "global("), field, text, "cannot contain global()")
}

func checkPoolUses(c *check, s model.IPPoolSpec) {
	for i, u := range s.AllowedUses {
		enum(c, at("spec.allowedUses", i), u, v3.IPPoolAllowedUseWorkload, v3.IPPoolAllowedUseTunnel,
			v3.IPPoolAllowedUseLoadBalancer)
	}
	if !slices.Contains(s.AllowedUses, v3.IPPoolAllowedUseLoadBalancer) {
		return
	}
	c.failIf(len(s.AllowedUses) > 1, "spec.allowedUses", s.AllowedUses, "LoadBalancer excludes all other uses")
	c.failIf(s.IPIPMode != v3.IPIPModeNever, "spec.ipipMode", s.IPIPMode,
		"a pool for load balancers has no encapsulation")
	c.failIf(s.VXLANMode != v3.VXLANModeNever, "spec.vxlanMode", s.VXLANMode,
		"a pool for load balancers has no encapsulation")
	c.failIf(s.DisableBGPExport, "spec.disableBGPExport", true, "a pool for load balancers must be exported")
	c.failIf(s.NodeSelector != "all()", "spec.nodeSelector", s.NodeSelector,
		"must be all() in a pool for load balancers")
}

// checkPoolChange refuses changes that would orphan addresses.
func checkPoolChange(old, p *model.IPPool) []model.FieldError {
	c := &check{}
	before, after := old.WithDefaults().Spec, p.WithDefaults().Spec
	was, err1 := netip.ParsePrefix(before.CIDR)
	is, err2 := netip.ParsePrefix(after.CIDR)
	c.failIf(err1 == nil && err2 == nil && was.Masked() != is.Masked(), "spec.cidr", after.CIDR,
		"cannot be changed: it is "+before.CIDR)
	if before.BlockSize != after.BlockSize {
		c.fail("spec.blockSize", after.BlockSize, "cannot be changed: it is %d", before.BlockSize)
	}
	lb := func(s model.IPPoolSpec) bool { return slices.Contains(s.AllowedUses, v3.IPPoolAllowedUseLoadBalancer) }
	c.failIf(lb(before) && !lb(after), "spec.allowedUses", after.AllowedUses, "a pool for load balancers stays one")
	return c.errs
}

// CheckPoolBlocks refuses a new pool whose blocks would have another size than those that are in its range already: the
// addresses of one block would belong to two.
func CheckPoolBlocks(p *model.IPPool, blocks model.Reader) []model.FieldError {
	p = p.WithDefaults()
	mine, err := netip.ParsePrefix(p.Spec.CIDR)
	if err != nil {
		return nil
	}
	for o := range blocks.All(model.KindIPAMBlock) {
		if b, ok := o.Key.Block(); ok && b.Overlaps(mine) && b.Bits() != p.Spec.BlockSize {
			return []model.FieldError{{Field: "spec.blockSize", Value: p.Spec.BlockSize,
				Rule: fmt.Sprintf("must be %d: an earlier pool left block %s in this range", b.Bits(), b)}}
		}
	}
	return nil
}

// CheckPoolOverlap lists the pools whose range a new pool would overlap. It is separate from validation because it
// needs the other pools.
func CheckPoolOverlap(key model.Key, p *model.IPPool, others model.Reader) []model.FieldError {
	var errs []model.FieldError
	mine, err := netip.ParsePrefix(p.Spec.CIDR)
	if err != nil {
		return nil
	}
	for k, other := range model.All[model.IPPool](others, model.KindIPPool) {
		if theirs, err := netip.ParsePrefix(other.Spec.CIDR); k != key && err == nil && theirs.Overlaps(mine) {
			errs = append(errs, model.FieldError{Field: "spec.cidr", Value: p.Spec.CIDR,
				Rule: fmt.Sprintf("%s overlaps %s, which is %s", key, k, other.Spec.CIDR)})
		}
	}
	return errs
}
