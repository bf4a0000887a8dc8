package ipam

import (
	"hash/fnv"
	"iter"
	"math/big"
	"math/rand"
	"net/netip"
	"time"
)

// walkStart returns the block at which a host starts its search for a free one in a pool. Calico starts at the same
// block for the same host name, which spreads hosts over the pool; for blocks of a single address the start is random.
func walkStart(pool netip.Prefix, bits int, host string, now time.Time) netip.Prefix {
	seed := now.UnixNano()
	if bits < pool.Addr().BitLen() {
		h := fnv.New32()
		h.Write([]byte(host))
		seed = int64(h.Sum32())
	}
	count := new(big.Int).Lsh(big.NewInt(1), uint(bits-pool.Bits()))
	index := new(big.Int).Rand(rand.New(rand.NewSource(seed)), count)
	index.Lsh(index, uint(pool.Addr().BitLen()-bits))
	return netip.PrefixFrom(add(pool.Masked().Addr(), index), bits)
}

// walk visits the blocks of a pool once, cyclically from start, without those that are wholly reserved. It skips a
// reservation in one step: IPv6 pools have too many blocks to visit.
func walk(pool, start netip.Prefix, reserved reservations) iter.Seq[netip.Prefix] {
	end := last(pool)
	return func(yield func(netip.Prefix) bool) {
		if walkRange(start.Addr(), end, start.Bits(), reserved, yield) && start.Addr() != pool.Addr() {
			walkRange(pool.Addr(), start.Addr().Prev(), start.Bits(), reserved, yield)
		}
	}
}

// walkRange visits the blocks that begin in first..end and reports whether yield returned true for all.
func walkRange(first, end netip.Addr, bits int, reserved reservations, yield func(netip.Prefix) bool) bool {
	for addr := first; addr.IsValid() && !end.Less(addr); {
		block := blockOf(addr, bits)
		if hole, ok := reserved.covering(block); ok {
			// The reservation may end within a block: continue with the block that contains its end, or with the next.
			next := hole.last.Next()
			if !next.IsValid() {
				return true
			}
			addr = blockOf(next, bits).Addr()
			continue
		}
		if !yield(block) {
			return false
		}
		addr = last(block).Next()
	}
	return true
}
