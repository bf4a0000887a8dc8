package table

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

var blockColumns = []column{
	{"CIDR", both, func(r row) string { return r.object.Key.Name }},
	{"AFFINITY", both, of(func(v *model.Block) string { return orDash(v.Affinity) })},
	{"ALLOCATED", both, of(func(v *model.Block) string { return strconv.Itoa(allocated(v)) })},
	{"COOLING", onlyWide, of(func(v *model.Block) string { return strconv.Itoa(cooling(v)) })},
	{"FREE", both, of(func(v *model.Block) string { return strconv.Itoa(len(v.Unallocated)) })},
	{"SEQUENCE", onlyWide, of(func(v *model.Block) string { return strconv.FormatUint(v.SequenceNumber, 10) })},
}

// allocated counts the addresses that are in use; cooling those that were released but are not free yet.
func allocated(b *model.Block) int { return len(b.Allocations) - free(b) - cooling(b) }

func free(b *model.Block) int {
	n := 0
	for _, a := range b.Allocations {
		if a == nil {
			n++
		}
	}
	return n
}

func cooling(b *model.Block) int {
	n := 0
	for _, a := range b.Allocations {
		if a != nil && *a >= 0 && *a < len(b.Attributes) && b.Attributes[*a].ReleasedAt != nil {
			n++
		}
	}
	return n
}

var affinityColumns = []column{
	{"CIDR", both, func(r row) string { a, _ := r.object.Key.Affinity(); return a.CIDR.String() }},
	{"TYPE", both, func(r row) string { a, _ := r.object.Key.Affinity(); return string(a.Type) }},
	{"OWNER", both, func(r row) string { a, _ := r.object.Key.Affinity(); return a.Host }},
	{"STATE", both, of(func(v *model.BlockAffinity) string {
		if v.State == "" {
			return string(model.StateConfirmed)
		}
		return string(v.State)
	})},
}

var handleColumns = []column{
	nameColumn,
	{"ADDRESSES", both, of(func(v *model.Handle) string {
		n := 0
		for _, count := range v.Block {
			n += count
		}
		return strconv.Itoa(n)
	})},
	{"BLOCKS", onlyWide, of(func(v *model.Handle) string {
		return strings.Join(slices.Sorted(maps.Keys(v.Block)), ",")
	})},
}

var ipamConfigurationColumns = []column{
	nameColumn,
	{"STRICTAFFINITY", both, of(func(v *model.IPAMConfiguration) string {
		return strconv.FormatBool(v.Spec.StrictAffinity)
	})},
	{"AUTOALLOCATEBLOCKS", both, of(func(v *model.IPAMConfiguration) string {
		return orDash(v.Spec.AutoAllocateBlocks)
	})},
	{"MAXBLOCKSPERHOST", onlyWide, of(func(v *model.IPAMConfiguration) string {
		return strconv.Itoa(int(v.Spec.MaxBlocksPerHost))
	})},
}

var ipamConfigColumns = []column{
	{"STRICTAFFINITY", both, of(func(v *model.IPAMConfig) string { return strconv.FormatBool(v.StrictAffinity) })},
	{"AUTOALLOCATEBLOCKS", both, of(func(v *model.IPAMConfig) string {
		return strconv.FormatBool(v.AutoAllocateBlocks)
	})},
	{"MAXBLOCKSPERHOST", both, of(func(v *model.IPAMConfig) string { return strconv.Itoa(v.MaxBlocksPerHost) })},
	{"COOLDOWN", onlyWide, of(func(v *model.IPAMConfig) string { return orDash(v.IPCooldownSeconds) })},
}
