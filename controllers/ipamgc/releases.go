package ipamgc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Release is a released address or block, and the reason.
type Release struct {
	At    time.Time
	Since time.Time // time since which it was known to be unused, zero if not recorded

	Address        netip.Addr   // invalid for a block
	Block          netip.Prefix // invalid for an address
	Handle, Node   string       // Node used the address, or owned the block
	Namespace, Pod string
	VM             string // the virtual machine of the address, empty for another pod
	Reason         Reason
}

// Released returns the address, or the CIDR of the block.
func (r Release) Released() string {
	if r.Block.IsValid() {
		return r.Block.String()
	}
	return r.Address.String()
}

// Text returns the reason as a sentence.
func (r Release) Text() string {
	switch r.Reason {
	case podGone:
		return fmt.Sprintf("pod %s/%s does not exist", r.Namespace, r.Pod)
	case podMoved:
		return fmt.Sprintf("pod %s/%s runs on another node than %s", r.Namespace, r.Pod, r.Node)
	case addressUnused:
		return fmt.Sprintf("pod %s/%s does not have the address", r.Namespace, r.Pod)
	case vmGone:
		return fmt.Sprintf("virtual machine %s/%s does not exist", r.Namespace, r.VM)
	case nodeGone:
		if r.Block.IsValid() {
			return fmt.Sprintf("node %s does not exist, and no address of the block is in use", r.Node)
		}
		return fmt.Sprintf("node %s does not exist, and none of its pods does", r.Node)
	case surplus:
		return fmt.Sprintf("the block was empty for the grace period, and node %s has another one", r.Node)
	case unfinished:
		return fmt.Sprintf("the release of the block by node %s was begun and not finished", r.Node)
	}
	return string(r.Reason)
}

// kept is the number of remembered releases.
const kept = 100

// Releases remembers and counts releases. It is safe for concurrent use.
type Releases struct {
	mu        sync.Mutex
	last      []Release
	addresses map[[2]string]float64 // by pool and node, as Calico counts
	reasons   map[Reason]float64
	blocks    map[Reason]float64
}

// NewReleases returns an empty record.
func NewReleases() *Releases {
	return &Releases{addresses: map[[2]string]float64{}, reasons: map[Reason]float64{}, blocks: map[Reason]float64{}}
}

// add records a release. pool is the name of the IP pool of an address.
func (r *Releases) add(x Release, pool string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last = append(r.last, x); len(r.last) > kept {
		r.last = slices.Delete(r.last, 0, len(r.last)-kept)
	}
	if !x.Block.IsValid() {
		r.addresses[[2]string{pool, cmp.Or(x.Node, unknownNode)}]++
		r.reasons[x.Reason]++
		return
	}
	r.blocks[x.Reason]++
	if x.Reason == nodeGone { // the node's series end
		for k := range r.addresses {
			if k[1] == x.Node {
				delete(r.addresses, k)
			}
		}
	}
}

// Last returns the newest releases, the oldest of them first.
func (r *Releases) Last() []Release {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.last)
}
