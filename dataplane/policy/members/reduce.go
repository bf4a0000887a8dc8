package members

import (
	"cmp"
	"net/netip"
	"slices"
)

// Reduce returns the same addresses as nets, without networks that are inside others, sorted. Bits beyond a network's length
// are dropped.
func Reduce(nets []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(nets))
	for _, n := range nets {
		sorted = append(sorted, n.Masked())
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var list []netip.Prefix
	for _, n := range sorted {
		if k := len(list); k == 0 || !list[k-1].Overlaps(n) {
			list = append(list, n)
		}
	}
	return list
}

// MergePorts returns the same ports as ranges, in as few ranges as possible, sorted.
func MergePorts(ranges [][2]uint16) [][2]uint16 {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b [2]uint16) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	var list [][2]uint16
	for _, r := range sorted {
		if k := len(list); k > 0 && uint32(r[0]) <= uint32(list[k-1][1])+1 {
			list[k-1][1] = max(list[k-1][1], r[1])
		} else {
			list = append(list, r)
		}
	}
	return list
}
