package model

import (
	"net/netip"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

// WithDefaults returns a copy of the pool with the default of every empty field. It never changes the stored pool; use
// it to evaluate a pool.
func (p *IPPool) WithDefaults() *IPPool {
	c := *p
	s := &c.Spec
	if prefix, err := netip.ParsePrefix(s.CIDR); err == nil && s.BlockSize == 0 {
		s.BlockSize = 122
		if prefix.Addr().Is4() {
			s.BlockSize = 26
		}
	}
	if s.IPIPMode == "" {
		s.IPIPMode = v3.IPIPModeNever
	}
	if s.VXLANMode == "" {
		s.VXLANMode = v3.VXLANModeNever
	}
	if s.NodeSelector == "" {
		s.NodeSelector = "all()"
	}
	if len(s.AllowedUses) == 0 {
		s.AllowedUses = []v3.IPPoolAllowedUse{v3.IPPoolAllowedUseWorkload, v3.IPPoolAllowedUseTunnel}
	}
	if s.AssignmentMode == nil || *s.AssignmentMode == "" {
		s.AssignmentMode = new(v3.Automatic)
	}
	return &c
}

// ConditionAllocatable is the type of the condition that forbids, by the status False, to assign addresses of a pool.
const ConditionAllocatable = "Allocatable"

// Allocatable reports whether addresses may be assigned from the pool: it is neither disabled nor being deleted, and
// its status does not forbid it.
func (p *IPPool) Allocatable() bool {
	if p.Spec.Disabled || p.DeletionTimestamp != nil {
		return false
	}
	if p.Status != nil {
		for _, c := range p.Status.Conditions {
			if c.Type == ConditionAllocatable && c.Status == "False" {
				return false
			}
		}
	}
	return true
}
