package ipam

import (
	"math/big"
	"net/netip"
)

// blockSize returns the number of addresses in a block.
func blockSize(cidr netip.Prefix) int { return 1 << (cidr.Addr().BitLen() - cidr.Bits()) }

// addressAt returns the address at an offset from the start of a block.
func addressAt(cidr netip.Prefix, ordinal int) netip.Addr {
	return add(cidr.Addr(), big.NewInt(int64(ordinal)))
}

// ordinalOf returns the offset of an address from the start of its block.
func ordinalOf(cidr netip.Prefix, addr netip.Addr) int {
	base, a := cidr.Addr().As16(), addr.As16()
	return int(a[14])<<8 + int(a[15]) - int(base[14])<<8 - int(base[15])
}

// blockOf returns the block of the given prefix length that contains an address.
func blockOf(addr netip.Addr, bits int) netip.Prefix {
	return netip.PrefixFrom(addr, bits).Masked()
}

// last returns the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	size := new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
	return add(p.Masked().Addr(), size.Sub(size, big.NewInt(1)))
}

// within reports whether inner is a subset of outer.
func within(inner, outer netip.Prefix) bool {
	return inner.Bits() >= outer.Bits() && outer.Contains(inner.Addr())
}

// add returns the address a+n, which must be inside the address family.
func add(a netip.Addr, n *big.Int) netip.Addr {
	sum := toInt(a)
	sum.Add(sum, n)
	b := make([]byte, a.BitLen()/8)
	r, _ := netip.AddrFromSlice(sum.FillBytes(b))
	return r
}

func toInt(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }
