package ippool

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// Mode is the condition of encapsulation between nodes: ipipMode and vxlanMode of an IPPool.
type Mode uint8

// The modes. CrossSubnet: only to nodes outside of the own node's subnet.
const (
	Never Mode = iota
	Always
	CrossSubnet
)

// Pool has the properties of an IP pool for the path to its addresses. Pools are comparable.
type Pool struct {
	Name        string
	CIDR        netip.Prefix // without host bits
	IPIP, VXLAN Mode
}

// Parse parses an IPPool. A mode unknown to Calico counts as Never. So does any mode of a pool for load balancers,
// whose addresses no workload has, and ipipMode of an IPv6 pool: IPIP exists for IPv4 only. Whether the pool is
// disabled is ignored: that concerns assignment, and addresses assigned before stay reachable.
func Parse(name string, spec *model.IPPoolSpec) (Pool, error) {
	cidr, err := netip.ParsePrefix(spec.CIDR)
	if err != nil {
		return Pool{}, fmt.Errorf("spec.cidr = %q: want ADDRESS/LENGTH", spec.CIDR)
	}
	p := Pool{Name: name, CIDR: cidr.Masked()}
	if ForLoadBalancers(spec) {
		return p, nil
	}
	if cidr.Addr().Is4() {
		p.IPIP = mode(string(spec.IPIPMode))
	}
	p.VXLAN = mode(string(spec.VXLANMode))
	return p, nil
}

func mode(text string) Mode {
	switch text {
	case "Always":
		return Always
	case "CrossSubnet":
		return CrossSubnet
	}
	return Never
}

// ForLoadBalancers reports whether the pool is only for services.
func ForLoadBalancers(spec *model.IPPoolSpec) bool {
	return len(spec.AllowedUses) == 1 && spec.AllowedUses[0] == v3.IPPoolAllowedUseLoadBalancer
}

// Table is a set of pools with lookup by address: the most specific one first, and of two with the same CIDR, which
// Calico's own programs refuse to write, the first by name. Equal tables have equal elements.
type Table []Pool

// NewTable returns a Table of pools in any order.
func NewTable(pools ...Pool) Table {
	t := slices.Clone(pools)
	slices.SortFunc(t, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(b.CIDR.Bits(), a.CIDR.Bits()), a.CIDR.Addr().Compare(b.CIDR.Addr()),
			cmp.Compare(a.Name, b.Name))
	})
	return t
}

// Read returns a Table of all IP pools that can be parsed.
func Read(r model.Reader) Table {
	var pools []Pool
	for k, v := range model.All[model.IPPool](r, model.KindIPPool) {
		if p, err := Parse(k.Name, &v.Spec); err == nil {
			pools = append(pools, p)
		}
	}
	return NewTable(pools...)
}

// ReadForWorkloads returns a Table of all IP pools whose addresses workloads may have.
func ReadForWorkloads(r model.Reader) Table {
	var pools []Pool
	for k, v := range model.All[model.IPPool](r, model.KindIPPool) {
		uses := v.Spec.AllowedUses
		if len(uses) > 0 && !slices.Contains(uses, v3.IPPoolAllowedUseWorkload) {
			continue
		}
		if p, err := Parse(k.Name, &v.Spec); err == nil {
			pools = append(pools, p)
		}
	}
	return NewTable(pools...)
}

// Of returns the most specific pool that contains p, nil if none does. It does not allocate, and tests each pool at
// most once: pools are few.
func (t Table) Of(p netip.Prefix) *Pool {
	for i := range t {
		if cidr := t[i].CIDR; cidr.Bits() <= p.Bits() && cidr.Contains(p.Addr()) {
			return &t[i]
		}
	}
	return nil
}

// OfAddress returns the most specific pool that contains an address, nil if none does.
func (t Table) OfAddress(a netip.Addr) *Pool { return t.Of(netip.PrefixFrom(a, a.BitLen())) }
