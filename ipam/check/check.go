package check

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// Kinds are the kinds of objects that a check reads. Services exist in a Kubernetes datastore alone.
var Kinds = []model.Kind{model.KindIPAMBlock, model.KindBlockAffinity, model.KindIPAMHandle, model.KindIPPool,
	model.KindNode, model.KindService, model.KindWorkloadEndpoint}

// Allocation is an assigned address, in the form of calicoctl's report.
type Allocation struct {
	IP             string   `json:"ip"`
	Handle         string   `json:"handle"`
	SequenceNumber *uint64  `json:"sequenceNumber,omitempty"`
	Pod            string   `json:"pod,omitempty"`
	Namespace      string   `json:"namespace,omitempty"`
	Node           string   `json:"node,omitempty"`
	Type           string   `json:"type,omitempty"`
	Created        string   `json:"creationTimestamp,omitempty"`
	InUse          bool     `json:"inUse"`
	Borrowed       bool     `json:"borrowed"`
	CoolingDown    bool     `json:"coolingDown"`
	Owners         []string `json:"owners"` // the objects that use the address
}

// Text describes what the address was assigned for.
func (a Allocation) Text() string {
	text := a.IP + ": handle " + a.Handle
	if a.Pod != "" {
		text += ", pod " + a.Namespace + "/" + a.Pod
	} else if a.Type != "" {
		text += ", " + a.Type
	}
	if a.Node != "" {
		text += ", node " + a.Node
	}
	if a.Created != "" {
		text += ", since " + a.Created
	}
	return text
}

// Handle is a handle without addresses, in the form of calicoctl's report.
type Handle struct {
	ID       string `json:"id"`
	Revision string `json:"revision"`
	UID      string `json:"uid,omitempty"`
}

// Problem is the kind of a contradiction.
type Problem string

// The problems.
const (
	Leaked      Problem = "addresses that are assigned, and that no object uses"
	unassigned  Problem = "addresses that are used and not assigned, in an enabled pool"
	foreign     Problem = "addresses that are used, in no enabled pool"
	idleHandles Problem = "handles without addresses"
	missing     Problem = "handles that blocks name, and that do not exist"
	claims      Problem = "blocks and affinities that contradict each other"
)

// Problems are all problems, in the order of a report.
var Problems = []Problem{Leaked, unassigned, foreign, idleHandles, missing, claims}

// Result is the result of a check.
type Result struct {
	Blocks, Tunnels, Endpoints, Services int
	Pools                                []netip.Prefix // the enabled ones
	Allocations                          map[string][]*Allocation
	Idle                                 []Handle
	// Found has a text for each contradiction.
	Found map[Problem][]string
}

// Count returns the number of contradictions.
func (r Result) Count() (n int) {
	for _, texts := range r.Found {
		n += len(texts)
	}
	return n
}

// Check compares the objects of Kinds. Without services, the addresses of services count as used.
func Check(objects model.Reader, services bool) Result {
	c := &checker{Reader: objects, services: services, users: map[netip.Addr][]string{}, handles: map[string]bool{},
		Result: Result{Allocations: map[string][]*Allocation{}, Found: map[Problem][]string{}}}
	c.readUsers()
	c.readBlocks()
	c.compareUsers()
	c.compareHandles()
	c.compareClaims()
	return c.Result
}

type checker struct {
	model.Reader
	Result
	services bool
	users    map[netip.Addr][]string
	handles  map[string]bool // that blocks name
}

func (c *checker) found(p Problem, format string, args ...any) {
	c.Found[p] = append(c.Found[p], fmt.Sprintf(format, args...))
}

// readUsers reads the objects that use addresses.
func (c *checker) readUsers() {
	for _, p := range model.All[model.IPPool](c, model.KindIPPool) {
		if cidr, err := netip.ParsePrefix(p.Spec.CIDR); err == nil && !p.Spec.Disabled {
			c.Pools = append(c.Pools, cidr)
		}
	}
	for k, n := range model.All[model.Node](c, model.KindNode) {
		for _, t := range n.TunnelAddresses() {
			c.use(t.Address, k)
			c.Tunnels++
		}
	}
	for k, w := range model.AllWorkloads(c) {
		for _, p := range w.Confirmed().Networks {
			c.use(p.Addr(), k)
			c.Endpoints++
		}
	}
	for k, s := range model.All[model.Service](c, model.KindService) {
		for _, i := range s.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(i.IP); err == nil && s.Spec.Type == model.ServiceLoadBalancer {
				c.use(a, k)
				c.Services++
			}
		}
	}
}

func (c *checker) use(a netip.Addr, by model.Key) { c.users[a] = append(c.users[a], by.String()) }

// readBlocks reads the assigned addresses.
func (c *checker) readBlocks() {
	for _, b := range model.All[model.Block](c, model.KindIPAMBlock) {
		c.Blocks++
		owner, owned := ipam.OwnerOf(b)
		for a := range ipam.Allocations(b) {
			c.handles[a.Handle] = true
			x := &Allocation{IP: a.Address.String(), Handle: a.Handle, SequenceNumber: &a.Sequence, Pod: a.Attrs["pod"],
				Namespace: a.Attrs["namespace"], Node: a.Attrs["node"], Type: a.Attrs["type"],
				Created: a.Attrs["timestamp"], Owners: c.users[a.Address]}
			x.Borrowed = x.Node != "" && (!owned || owner.Type == model.AffinityHost && owner.Name != x.Node)
			x.InUse = len(x.Owners) > 0 || a.Windows || a.Attrs["service"] != "" && !c.services
			c.Allocations[x.IP] = append(c.Allocations[x.IP], x)
			if !x.InUse {
				c.found(Leaked, "%s", x.Text())
			}
		}
	}
}

// compareUsers finds addresses that are used and not assigned. Those of services may be another program's.
func (c *checker) compareUsers() {
	for _, a := range slices.SortedFunc(maps.Keys(c.users), netip.Addr.Compare) {
		inPool := slices.ContainsFunc(c.Pools, func(p netip.Prefix) bool { return p.Contains(a) })
		switch by := c.users[a]; {
		case c.Allocations[a.String()] != nil:
		case inPool:
			c.found(unassigned, "%s: %s", a, by[0])
		case !isService(by[0]):
			c.found(foreign, "%s: %s", a, by[0])
		}
	}
}

func isService(user string) bool { return strings.HasPrefix(user, string(model.KindService)+" ") }

func (c *checker) compareHandles() {
	exist := map[string]bool{"": true}
	for o := range c.All(model.KindIPAMHandle) {
		exist[o.Key.Name] = true
		if !c.handles[o.Key.Name] {
			c.Idle = append(c.Idle, Handle{ID: o.Key.Name, Revision: fmt.Sprint(o.Revision)})
			c.found(idleHandles, "%s", o.Key.Name)
		}
	}
	for _, h := range slices.Sorted(maps.Keys(c.handles)) {
		if !exist[h] {
			c.found(missing, "%s", h)
		}
	}
}

// compareClaims compares the owners of blocks with the confirmed affinities.
func (c *checker) compareClaims() {
	claimed := map[netip.Prefix]string{}
	for o := range c.All(model.KindBlockAffinity) {
		aff, ok := o.Key.Affinity()
		state := o.Value.(*model.BlockAffinity).State
		if !ok || state != model.StateConfirmed && state != "" {
			continue // a claim or a release is under way
		}
		claimed[aff.CIDR] = aff.String()
		b := model.Get[model.Block](c, model.BlockKey(aff.CIDR))
		if b == nil {
			c.found(claims, "%s: %s claims it, and there is no such block", aff.CIDR, aff)
		} else if owner, _ := ipam.OwnerOf(b); owner.String() != aff.String() {
			c.found(claims, "%s: %s claims it, and its owner is %s", aff.CIDR, aff, ownerText(b))
		}
	}
	for _, b := range model.All[model.Block](c, model.KindIPAMBlock) {
		owner, ok := ipam.OwnerOf(b)
		key := model.AffinityKey(model.Affinity{Type: owner.Type, Host: owner.Name, CIDR: b.CIDR})
		if ok && claimed[b.CIDR] == "" && c.Get(key) == nil {
			c.found(claims, "%s: its owner is %s, which has no affinity to it", b.CIDR, owner)
		}
	}
}

func ownerText(b *model.Block) string {
	if owner, ok := ipam.OwnerOf(b); ok {
		return owner.String()
	}
	return "nobody"
}
