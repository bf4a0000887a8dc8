package members

import (
	"net/netip"
	"slices"
)

// Reduce returns the same addresses as nets in as few networks as possible, sorted. Bits beyond a network's length are
// dropped, and so are invalid networks.
func Reduce(nets []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(nets))
	for _, n := range nets {
		if n.IsValid() {
			sorted = append(sorted, n.Masked())
		}
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	list := sorted[:0]
	for _, n := range sorted {
		if k := len(list); k > 0 && list[k-1].Overlaps(n) {
			continue
		}
		list = append(list, n)
		for k := len(list); k > 1; k = len(list) {
			whole, ok := siblings(list[k-2], list[k-1])
			if !ok {
				break
			}
			list = append(list[:k-2], whole)
		}
	}
	return list
}

// siblings reports whether two networks that do not overlap are the halves of a third one, and of which.
func siblings(a, b netip.Prefix) (netip.Prefix, bool) {
	whole := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked() // contains nothing if a is everything
	return whole, a.Bits() == b.Bits() && whole.Contains(b.Addr())
}

// MergePorts returns the same ports as ranges (first and last), in as few ranges as possible, sorted. Ranges whose last
// port is below the first have no ports.
func MergePorts(ranges [][2]uint16) [][2]uint16 {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b [2]uint16) int { return slices.Compare(a[:], b[:]) })
	var list [][2]uint16
	for _, r := range sorted {
		switch k := len(list); {
		case r[1] < r[0]:
		case k > 0 && uint32(r[0]) <= uint32(list[k-1][1])+1:
			list[k-1][1] = max(list[k-1][1], r[1])
		default:
			list = append(list, r)
		}
	}
	return list
}
