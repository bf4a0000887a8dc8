package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// The functions of this file only change a Block in memory. The caller that stores the result increments the sequence
// number; allocations carry the number before that.

// windowsReserved is the handle of the addresses that a Windows node reserves in its blocks.
const windowsReserved = "windows-reserved-ipam-handle"

// newBlock returns an empty block of owner ("host:node-1").
func newBlock(cidr netip.Prefix, owner string, now time.Time) *model.Block {
	n := blockSize(cidr)
	b := &model.Block{
		CIDR:                        cidr,
		Affinity:                    &owner,
		AffinityClaimTime:           &metav1.Time{Time: now},
		Allocations:                 make([]*int, n),
		Unallocated:                 make([]int, n),
		SequenceNumber:              uint64(now.UnixNano()),
		SequenceNumberForAllocation: map[string]uint64{},
	}
	for i := range n {
		b.Unallocated[i] = i
	}
	return b
}

// ownerOf returns the owner of a block ("host:node-1"), empty if it has none.
func ownerOf(b *model.Block) string {
	switch {
	case b.Affinity != nil:
		return *b.Affinity
	case b.HostAffinity != nil: // written by very old versions
		return "host:" + *b.HostAffinity
	}
	return ""
}

// disown removes the owner of b.
func disown(b *model.Block) {
	b.Affinity, b.HostAffinity, b.AffinityClaimTime = nil, nil, nil
}

// attribute returns the attributes of an allocation to handle (none if empty).
func attribute(handle string, attrs map[string]string) model.BlockAttribute {
	a := model.BlockAttribute{Secondary: attrs}
	if handle != "" {
		a.HandleID = &handle
	}
	return a
}

// handleOf returns the handle of an attribute. An old migration appended a line end and more text to some handles;
// handleOf removes it.
func handleOf(a model.BlockAttribute) string {
	if a.HandleID == nil {
		return ""
	}
	handle, _, _ := strings.Cut(*a.HandleID, "\r")
	return handle
}

// assignNext assigns up to n free addresses from the head of the queue. Addresses for which skip is true stay in place.
func assignNext(b *model.Block, n int, attr model.BlockAttribute, skip func(netip.Addr) bool) []netip.Addr {
	var taken []netip.Addr
	queue := make([]int, 0, len(b.Unallocated))
	for _, o := range b.Unallocated {
		if addr := addressAt(b.CIDR, o); len(taken) < n && !skip(addr) {
			taken = append(taken, addr)
		} else {
			queue = append(queue, o)
		}
	}
	if len(taken) == 0 {
		return nil
	}
	b.Unallocated = queue
	index := addAttribute(b, attr)
	for _, addr := range taken {
		occupy(b, ordinalOf(b.CIDR, addr), index)
	}
	return taken
}

// errAssigned is wrapped by the error of assignExact for an address that is not free.
var errAssigned = errors.New("is already assigned")

// assignExact assigns one given address of the block.
func assignExact(b *model.Block, addr netip.Addr, attr model.BlockAttribute) error {
	o := ordinalOf(b.CIDR, addr)
	if i := b.Allocations[o]; i != nil {
		return fmt.Errorf("%s %w to %s", addr, errAssigned, describe(b.Attributes[*i]))
	}
	b.Unallocated = slices.DeleteFunc(b.Unallocated, func(free int) bool { return free == o })
	occupy(b, o, addAttribute(b, attr))
	return nil
}

func occupy(b *model.Block, ordinal, index int) {
	b.Allocations[ordinal] = &index
	stamp(b, ordinal)
}

func stamp(b *model.Block, ordinal int) {
	if b.SequenceNumberForAllocation == nil {
		b.SequenceNumberForAllocation = map[string]uint64{}
	}
	b.SequenceNumberForAllocation[strconv.Itoa(ordinal)] = b.SequenceNumber
}

// sequenceOf returns the sequence number of the write that allocated an ordinal.
func sequenceOf(b *model.Block, ordinal int) uint64 {
	return b.SequenceNumberForAllocation[strconv.Itoa(ordinal)]
}

// addAttribute finds or appends an attribute and returns its index.
func addAttribute(b *model.Block, attr model.BlockAttribute) int {
	for i, have := range b.Attributes {
		if sameAttribute(have, attr) {
			return i
		}
	}
	b.Attributes = append(b.Attributes, attr)
	return len(b.Attributes) - 1
}

func sameAttribute(a, b model.BlockAttribute) bool {
	sameHandle := (a.HandleID == nil) == (b.HandleID == nil) && (a.HandleID == nil || *a.HandleID == *b.HandleID)
	return sameHandle && sameSecond(a.ReleasedAt, b.ReleasedAt) && maps.Equal(a.Secondary, b.Secondary) &&
		maps.Equal(a.Alternate, b.Alternate)
}

// sameSecond compares times in whole seconds, the stored precision.
func sameSecond(a, b *metav1.Time) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Unix() == b.Unix()
}

// release releases ordinals. They are free after the cooldown, immediately if it is zero.
func release(b *model.Block, ordinals []int, now time.Time, cooldown time.Duration) {
	index := addAttribute(b, model.BlockAttribute{ReleasedAt: &metav1.Time{Time: now}})
	for _, o := range ordinals {
		i := index
		b.Allocations[o] = &i
	}
	collect(b, now, cooldown)
}

// collect frees the addresses whose cooldown has passed, in ascending order, and drops unreferenced attributes.
func collect(b *model.Block, now time.Time, cooldown time.Duration) {
	for o, i := range b.Allocations {
		if i == nil {
			continue
		}
		released := b.Attributes[*i].ReleasedAt
		if released == nil || cooldown > 0 && !released.Add(cooldown).Before(now) {
			continue
		}
		b.Allocations[o] = nil
		b.Unallocated = append(b.Unallocated, o)
		delete(b.SequenceNumberForAllocation, strconv.Itoa(o))
	}
	compact(b)
}

// compact removes unreferenced attributes and renumbers the others, keeping their order.
func compact(b *model.Block) {
	used := make([]bool, len(b.Attributes))
	for _, i := range b.Allocations {
		if i != nil {
			used[*i] = true
		}
	}
	if !slices.Contains(used, false) {
		return
	}
	kept := []model.BlockAttribute{}
	index := make([]int, len(used))
	for i, attr := range b.Attributes {
		if used[i] {
			index[i] = len(kept)
			kept = append(kept, attr)
		}
	}
	b.Attributes = kept
	for o, i := range b.Allocations {
		if i != nil {
			moved := index[*i]
			b.Allocations[o] = &moved
		}
	}
}

// isEmpty reports whether the block may be released: no address is assigned or cooling down, except those that Windows
// reserves.
func isEmpty(b *model.Block) bool {
	for _, i := range b.Allocations {
		if i != nil && !strings.EqualFold(handleOf(b.Attributes[*i]), windowsReserved) {
			return false
		}
	}
	return true
}

// hasFree reports whether a block has a free address for which skip is false.
func hasFree(b *model.Block, skip func(netip.Addr) bool) bool {
	return slices.ContainsFunc(b.Unallocated, func(o int) bool { return !skip(addressAt(b.CIDR, o)) })
}

// freeIn counts the free addresses for which skip is false.
func freeIn(b *model.Block, skip func(netip.Addr) bool) int {
	n := 0
	for _, o := range b.Unallocated {
		if !skip(addressAt(b.CIDR, o)) {
			n++
		}
	}
	return n
}

// ordinalsOf lists the ordinals of a handle in the block, in ascending order.
func ordinalsOf(b *model.Block, handle string) []int {
	var ordinals []int
	for o, i := range b.Allocations {
		if i != nil && b.Attributes[*i].ReleasedAt == nil && handleOf(b.Attributes[*i]) == handle {
			ordinals = append(ordinals, o)
		}
	}
	return ordinals
}

// describe names the owner of an allocation, for messages.
func describe(a model.BlockAttribute) string {
	switch {
	case a.ReleasedAt != nil:
		return "nobody: it was released at " + a.ReleasedAt.UTC().Format(time.RFC3339) + " and cools down"
	case a.Secondary["pod"] != "":
		return fmt.Sprintf("pod %s/%s on node %s (handle %s)", a.Secondary["namespace"], a.Secondary["pod"],
			a.Secondary["node"], handleOf(a))
	case handleOf(a) != "":
		return "handle " + handleOf(a)
	}
	return "an unknown owner"
}
