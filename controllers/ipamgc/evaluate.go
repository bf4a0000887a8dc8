package ipamgc

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// Reason is the reason for a release. The rules are those of Calico's kube-controllers.
type Reason string

// The reasons.
const (
	podGone       Reason = "pod-gone"       // its pod does not exist
	podMoved      Reason = "pod-moved"      // its pod runs on another node
	addressUnused Reason = "address-unused" // its pod has other addresses, or has ended
	vmGone        Reason = "vm-gone"        // its virtual machine does not exist
	nodeGone      Reason = "node-gone"      // it is a tunnel address or a block of a node that does not exist
	surplus       Reason = "surplus"        // it is an empty block of a node that has others
	unfinished    Reason = "unfinished"     // a block whose release was begun and not finished
)

// facts are the basis of the decision, from the tables.
type facts interface {
	// node returns the facts about one of Calico's nodes.
	node(name string) nodeFacts
	// has reports whether the pod is on that Kubernetes node with that address, as far as known.
	has(namespace, pod, kubernetesNode string, address netip.Addr) bool
}

// nodeFacts are the facts about a node.
type nodeFacts struct {
	// foreign is set for a node that is not in Kubernetes: its addresses are left alone.
	foreign bool
	// kubernetes is its name in Kubernetes, empty if Calico's Node does not exist.
	kubernetes string
	// exists is set if Kubernetes has the node.
	exists bool
}

// decision lists the releases to make, in a stable order.
type decision struct {
	leaks   [][]*allocation // all addresses of a handle together
	dead    []string        // nodes whose blocks are to be released
	surplus []*block        // blocks that stand empty while their owner has others
	cold    []netip.Prefix  // blocks with addresses whose cooldown has passed
	stale   []*claim        // affinities whose release was begun and not finished
}

// decide evaluates the changed nodes, or all of them. It updates the suspects of the index.
func (x *index) decide(now time.Time, grace, cooldown time.Duration, f facts, full bool) decision {
	var d decision
	nodes := x.dirty
	if full {
		nodes = x.nodes()
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if name != "" && x.evaluateNode(name, now, grace, f) {
			d.dead = append(d.dead, name)
		}
	}
	x.dirty = map[string]bool{}
	d.leaks = x.leaks()
	if full {
		d.surplus = x.surplus(now, grace)
		d.stale = x.stale(now, grace)
	}
	for cidr, b := range x.cooling {
		if !b.coolingFrom.Add(cooldown).After(now) {
			d.cold = append(d.cold, cidr)
		}
	}
	slices.SortFunc(d.cold, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return d
}

// evaluateNode evaluates which of the addresses that a node uses may be in use. dead is set if none may, and the node
// does not exist.
func (x *index) evaluateNode(name string, now time.Time, grace time.Duration, f facts) (dead bool) {
	n := f.node(name)
	if n.foreign {
		return false
	}
	pinned := false
	var tunnels []*allocation
	for _, a := range x.byNode[name] {
		if a.tunnel() {
			tunnels = append(tunnels, a)
			continue
		}
		pinned = a.evaluate(n, now, grace, f) || pinned
	}
	for _, a := range tunnels {
		if a.use(); !n.exists && !pinned {
			a.suspect, a.confirmed, a.reason = now, true, nodeGone
		}
	}
	return !n.exists && !pinned
}

// evaluate evaluates whether an address of a workload may be in use, which keeps its node's blocks.
func (a *allocation) evaluate(n nodeFacts, now time.Time, grace time.Duration, f facts) (mayBeUsed bool) {
	namespace, pod, ok := a.pod()
	if !ok { // without a pod: an old allocation, or not a pod's
		a.use()
		return true
	}
	if a.vm() != "" {
		grace = vmGrace(grace)
	}
	if n.exists && f.has(namespace, pod, n.kubernetes, a.Address) {
		a.use()
		return true
	}
	if a.reason == "" {
		a.reason = podGone // verified before the release
	}
	if a.suspect.IsZero() {
		a.suspect = now
	}
	a.confirmed = !n.exists || grace > 0 && now.Sub(a.suspect) > grace
	return false
}

// leastVMGrace is the minimum time that an address of a virtual machine must look unused: while the machine restarts or
// moves to another node, none of its pods may have the address. The time is Calico's.
const leastVMGrace = 5 * time.Minute

// vmGrace returns the grace period for an address of a virtual machine; 0 is never, as for others.
func vmGrace(grace time.Duration) time.Duration {
	if grace <= 0 {
		return 0
	}
	return max(grace, leastVMGrace)
}

// leaks returns the handles whose addresses are all confirmed leaks, in a stable order.
func (x *index) leaks() [][]*allocation {
	var list [][]*allocation
	for _, group := range x.byHandle {
		all := true
		for _, a := range group {
			all = all && a.confirmed
		}
		if all {
			list = append(list, slices.SortedFunc(maps.Values(group), func(a, b *allocation) int {
				return a.Address.Compare(b.Address)
			}))
		}
	}
	slices.SortFunc(list, func(a, b []*allocation) int { return cmp.Compare(a[0].Handle, b[0].Handle) })
	return list
}

// surplus returns the blocks that were empty for the grace period while their node had others. One block always stays.
func (x *index) surplus(now time.Time, grace time.Duration) []*block {
	var list []*block
	for _, host := range slices.Sorted(maps.Keys(x.byHost)) {
		left := len(x.byHost[host])
		blocks := slices.SortedFunc(maps.Values(x.byHost[host]), func(a, b *block) int {
			return a.cidr.Addr().Compare(b.cidr.Addr())
		})
		for _, b := range blocks {
			switch {
			case !b.empty || left <= 1 || grace <= 0:
				b.emptySince = time.Time{}
			case b.emptySince.IsZero():
				b.emptySince = now
			case now.Sub(b.emptySince) > grace:
				list = append(list, b)
				left--
			}
		}
	}
	return list
}

// stale returns the affinities whose release was not completed within the grace period.
func (x *index) stale(now time.Time, grace time.Duration) []*claim {
	var list []*claim
	for _, c := range x.claims {
		switch {
		case !c.leaving || grace <= 0:
		case c.since.IsZero():
			c.since = now
		case now.Sub(c.since) > grace:
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *claim) int {
		return cmp.Compare(model.AffinityKey(a.Affinity).Name, model.AffinityKey(b.Affinity).Name)
	})
	return list
}
