package hostlocal

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// File is a file of host-local: an assigned address.
type File struct {
	Address     netip.Addr
	ContainerID string
	Interface   string // of the container; empty in files of old releases
}

// Refused is an entry of the folder that is no file of an address, and why.
type Refused struct{ Name, Why string }

// Content is what the folder of a network holds.
type Content struct {
	Files   []File
	Refused []Refused
}

// Step is one step of an upgrade. Steps are comparable: a plan that is made again has equal steps if nothing changed.
type Step struct {
	Do     string
	Reason string

	claim          netip.Prefix // a block, or
	file           File         // whose file is removed in the end
	assign         bool
	namespace, pod string // of the container, where they are known
}

// Kept is an address or an entry that stays as it is.
type Kept struct {
	Name, Why string
	// Unprotected is set for an address that IPAM may give to another container one day, as soon as a pool has it.
	Unprotected bool
}

// Plan has the steps that move the addresses of a node, in order.
type Plan struct {
	Steps []Step
	Kept  []Kept
}

// Text returns the plan for people.
func (p Plan) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Found %d steps to do, and %d entries that stay.\n", len(p.Steps), len(p.Kept))
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "  %s\n    because: %s\n", s.Do, s.Reason)
	}
	for _, k := range p.Kept {
		fmt.Fprintf(&b, "  keep %q: %s\n", k.Name, k.Why)
	}
	return b.String()
}

// maxClaimedBits limits the blocks of one pod CIDR that are claimed to 16. An IPv6 pod CIDR may have more than a node
// may own.
const maxClaimedBits = 4

// facts are what a plan depends on beside the files.
type facts struct {
	node, network string
	podCIDRs      []string
	pools         []*model.IPPool
	blocks        map[netip.Prefix]*model.Block
	pods          map[netip.Addr]*model.WorkloadEndpoint // of the node, by address
	// allPods: pods has each running container, so that an address of none of them is a leftover.
	allPods bool
}

// decide returns the plan for the content of a folder.
func decide(c Content, f facts) Plan {
	var p Plan
	if len(c.Files) > 0 {
		p.Steps = f.claims()
	}
	for _, file := range c.Files {
		step, why := f.step(file)
		if why.Why != "" {
			p.Kept = append(p.Kept, why)
		} else {
			p.Steps = append(p.Steps, step)
		}
	}
	for _, r := range c.Refused {
		p.Kept = append(p.Kept, Kept{Name: r.Name, Why: r.Why + ": remove it if it is not needed"})
	}
	return p
}

// step returns what to do about an address, or why it stays.
func (f *facts) step(file File) (Step, Kept) {
	addr := file.Address.String()
	s := Step{file: file, Do: "remove the file of " + addr}
	pool := f.poolOf(file.Address)
	if pool == nil {
		return s, Kept{Name: addr, Unprotected: true, Why: fmt.Sprintf("container %s has it, and it lies in no "+
			"enabled pool: create or enable an IPPool that contains it, and run this again", file.ContainerID)}
	}
	handle := f.handle(file)
	block := netip.PrefixFrom(file.Address, pool.Spec.BlockSize).Masked()
	if b := f.blocks[block]; b != nil {
		if a, _, ok := ipam.Find(b, file.Address); ok && a.Handle == handle {
			s.Reason = "it is assigned to its container already"
			return s, Kept{}
		} else if ok {
			return s, Kept{Name: addr, Why: fmt.Sprintf("container %s has it, and IPAM has assigned it to handle %q: "+
				"delete one of the two pods, and run this again", file.ContainerID, a.Handle)}
		}
	}
	w := f.pods[file.Address]
	if w == nil && f.allPods {
		s.Reason = "no pod that runs on this node has the address"
		return s, Kept{}
	}
	s.assign, s.Do = true, fmt.Sprintf("assign %s to handle %s", addr, handle)
	s.Reason = "container " + file.ContainerID + " has it"
	if w != nil && w.Spec.Pod != "" {
		s.namespace, s.pod = w.Namespace, w.Spec.Pod
		s.Reason = fmt.Sprintf("pod %s/%s has it", w.Namespace, w.Spec.Pod)
	}
	return s, Kept{}
}

// handle is the handle by which the CNI plugin releases the addresses of a container.
func (f *facts) handle(file File) string { return f.network + "." + file.ContainerID }

// poolOf returns the enabled pool that contains an address, nil if none does.
func (f *facts) poolOf(addr netip.Addr) *model.IPPool {
	for _, p := range f.pools {
		if cidr, err := netip.ParsePrefix(p.Spec.CIDR); err == nil && cidr.Contains(addr) {
			return p
		}
	}
	return nil
}

// claims returns the steps that claim the blocks of the node's pod CIDRs: a node that is upgraded earlier than its
// neighbour must not take blocks in which the neighbour's host-local still assigns.
func (f *facts) claims() (steps []Step) {
	for _, text := range f.podCIDRs {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			continue
		}
		pool := f.poolOf(cidr.Masked().Addr())
		if pool == nil || pool.Spec.BlockSize < cidr.Bits() || pool.Spec.BlockSize > cidr.Bits()+maxClaimedBits {
			continue
		}
		addr, size := cidr.Masked().Addr(), 1<<(cidr.Addr().BitLen()-pool.Spec.BlockSize)
		for range 1 << (pool.Spec.BlockSize - cidr.Bits()) {
			block := netip.PrefixFrom(addr, pool.Spec.BlockSize)
			for range size {
				addr = addr.Next()
			}
			if f.blocks[block] == nil {
				steps = append(steps, Step{claim: block, Do: fmt.Sprintf("claim block %s for node %s", block, f.node),
					Reason: "it is in the pod CIDR " + text + " of the node"})
			}
		}
	}
	return steps
}

// enabled returns the pools from which IPAM assigns a given address, with their defaults.
func enabled(objects []*model.Object) (pools []*model.IPPool) {
	for _, o := range objects {
		if p, ok := o.Value.(*model.IPPool); ok && o.Err == nil && p.Allocatable() {
			pools = append(pools, p.WithDefaults())
		}
	}
	return pools
}
