package ipam

import (
	"errors"
	"fmt"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// maxBlockBits bounds the size of a block that is worked with: Calico's largest has 12 bits.
const maxBlockBits = 16

// CheckBlock lists every rule of a valid block that b breaks, as Calico's own audit has them. Times are compared with now.
func CheckBlock(b *model.Block, now time.Time) []error {
	broken := checkStructure(b)
	if len(broken) > 0 {
		return broken
	}
	referenced := make([]bool, len(b.Attributes))
	for _, i := range b.Allocations {
		if i != nil {
			referenced[*i] = true
		}
	}
	for i, a := range b.Attributes {
		if !referenced[i] {
			broken = append(broken, fmt.Errorf("attributes[%d] (%s) is not referenced by any allocation", i, describe(a)))
		}
		if a.ReleasedAt != nil && a.ReleasedAt.After(now) {
			broken = append(broken, fmt.Errorf("attributes[%d].releasedAt %s is in the future", i, a.ReleasedAt.UTC().Format(time.RFC3339)))
		}
	}
	return broken
}

// checkStructure lists what makes a block impossible to work with.
func checkStructure(b *model.Block) []error {
	if !b.CIDR.IsValid() || b.CIDR != b.CIDR.Masked() || b.CIDR.Addr().BitLen()-b.CIDR.Bits() > maxBlockBits {
		return []error{fmt.Errorf("cidr %s is not the network of a block: want no host bits, and at most %d of them", b.CIDR, maxBlockBits)}
	}
	size := blockSize(b.CIDR)
	if len(b.Allocations) != size {
		return []error{fmt.Errorf("allocations has %d entries, want one for each of the %d addresses", len(b.Allocations), size)}
	}
	var broken []error
	for o, i := range b.Allocations {
		if i != nil && (*i < 0 || *i >= len(b.Attributes)) {
			broken = append(broken, fmt.Errorf("allocations[%d] refers to attribute %d of %d", o, *i, len(b.Attributes)))
		}
	}
	return append(broken, checkQueue(b, size)...)
}

// checkQueue wants every free ordinal in the queue exactly once and no other.
func checkQueue(b *model.Block, size int) []error {
	var broken []error
	queued := make([]bool, size)
	for _, o := range b.Unallocated {
		switch {
		case o < 0 || o >= size:
			broken = append(broken, fmt.Errorf("unallocated holds %d, want 0 to %d", o, size-1))
		case queued[o]:
			broken = append(broken, fmt.Errorf("unallocated holds %d twice", o))
		case b.Allocations[o] != nil:
			broken = append(broken, fmt.Errorf("unallocated holds %d, which is allocated", o))
		default:
			queued[o] = true
		}
	}
	for o, i := range b.Allocations {
		if i == nil && !queued[o] {
			broken = append(broken, fmt.Errorf("%d is neither allocated nor unallocated", o))
		}
	}
	return broken
}

// usable returns an error for a block that must not be touched because its content contradicts itself.
func usable(b *model.Block) error {
	if broken := checkStructure(b); len(broken) > 0 {
		return fmt.Errorf("block %s is damaged, repair or delete it: %w", b.CIDR, errors.Join(broken...))
	}
	return nil
}
