package validation

import (
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// CheckBlock lists all rules for blocks that b breaks. Only some of them make a block unusable: the others are leaks,
// which an audit reports and which must not fail a release or an assignment.
func CheckBlock(b *model.Block) []model.FieldError {
	c := &check{}
	if !checkBlockShape(c, b) {
		return c.errs
	}
	checkFreeQueue(c, b)
	used := make([]bool, len(b.Attributes))
	allocated := 0
	for _, a := range b.Allocations {
		if a != nil {
			used[*a] = true
			allocated++
		}
	}
	for i, u := range used {
		c.failIf(!u, at("attributes", i), "unreferenced", "every attribute must belong to an allocation")
	}
	if n := len(b.Unallocated) + allocated; n != len(b.Allocations) {
		c.fail("unallocated", len(b.Unallocated), "with %d allocated of %d addresses, %d must be free: %d are lost",
			allocated, len(b.Allocations), len(b.Allocations)-allocated, len(b.Allocations)-n)
	}
	return c.errs
}

// checkStoredBlock applies the rules for reading and writing a block.
func checkStoredBlock(c *check, b *model.Block) {
	if cidr, ok := c.key.Block(); ok && cidr != b.CIDR {
		c.broken("cidr", b.CIDR, "must be %s, as in the key", cidr)
	}
	if checkBlockShape(c, b) {
		checkFreeQueue(c, b)
	}
}

// checkBlockShape checks that ordinals and indexes are within bounds.
func checkBlockShape(c *check, b *model.Block) bool {
	if !b.CIDR.IsValid() || b.CIDR != b.CIDR.Masked() {
		c.broken("cidr", b.CIDR, "must be a CIDR without host bits")
		return false
	}
	bits := b.CIDR.Addr().BitLen() - b.CIDR.Bits()
	if bits > maxBlockBits {
		c.broken("cidr", b.CIDR, "a block can have at most %d addresses", 1<<maxBlockBits)
		return false
	}
	if len(b.Allocations) != 1<<bits {
		c.broken("allocations", len(b.Allocations), "must have %d entries, one for each address of %s", 1<<bits, b.CIDR)
		return false
	}
	sound := true
	for i, a := range b.Allocations {
		if a != nil && (*a < 0 || *a >= len(b.Attributes)) {
			c.broken(at("allocations", i), *a, "must be the index of one of the %d attributes", len(b.Attributes))
			sound = false
		}
	}
	return sound
}

// maxBlockBits exceeds the largest block size of a pool (2^12 addresses).
const maxBlockBits = 16

// checkFreeQueue checks that no address can be assigned twice.
func checkFreeQueue(c *check, b *model.Block) {
	seen := make([]bool, len(b.Allocations))
	for i, o := range b.Unallocated {
		switch {
		case o < 0 || o >= len(b.Allocations):
			c.broken(at("unallocated", i), o, "must be from 0 to %d", len(b.Allocations)-1)
			continue
		case seen[o]:
			c.broken(at("unallocated", i), o, "is there twice")
		case b.Allocations[o] != nil:
			c.broken(at("unallocated", i), o, "is allocated")
		}
		seen[o] = true
	}
}

func checkAffinity(c *check, a *model.BlockAffinity) {
	brokenEnum(c, "state", a.State, model.StatePending, model.StateConfirmed, model.StatePendingDeletion)
}

func checkHandle(c *check, h *model.Handle) {
	for cidr, n := range h.Block {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			c.broken("block", cidr, "the key must be the CIDR of a block")
		}
		c.failIf(n < 0, "block."+cidr, n, "cannot be negative")
	}
}
