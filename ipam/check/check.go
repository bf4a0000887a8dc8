package check

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

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

	addr    netip.Addr
	machine string // the virtual machine of its pods
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

// Result is the result of a check.
type Result struct {
	Blocks, Tunnels, Endpoints, Services int
	Pools                                []netip.Prefix // the enabled ones
	Allocations                          map[string][]*Allocation
	Idle                                 []Handle
	Found                                map[Problem][]Finding
	// Unreadable names objects with a malformed address: it may be any address.
	Unreadable []string

	pinned  []netip.Prefix // all that an endpoint or node may have, confirmed or not
	handles map[string]map[netip.Prefix]int
	node    func(name string) bool // it exists
}

// Count returns the number of contradictions.
func (r Result) Count() (n int) {
	for _, list := range r.Found {
		n += len(list)
	}
	return n
}

// Addresses returns the number of assigned addresses.
func (r Result) Addresses() (n int) {
	for _, list := range r.Allocations {
		n += len(list)
	}
	return n
}

// AddKernel compares an address in the kernel of a node, a host prefix, with the records: text says what has it, since
// when (zero if that is not known). Other prefixes, and addresses in no enabled pool, are none of IPAM's.
func (r *Result) AddKernel(prefix, text string, since time.Time) {
	p, err := netip.ParsePrefix(prefix)
	if err != nil || !p.IsSingleIP() || !r.inPool(p.Addr()) || r.Allocations[p.Addr().String()] != nil ||
		slices.ContainsFunc(r.pinned, func(q netip.Prefix) bool { return q.Contains(p.Addr()) }) {
		return
	}
	r.Found[kernel] = append(r.Found[kernel], Finding{Problem: kernel, Subject: p.Addr().String(),
		Text: p.Addr().String() + ": " + text, Evidence: "it is not assigned, and no object uses it", Since: since})
}

// Options are what a caller knows besides the objects.
type Options struct {
	// Services is set if the objects have the Services. Else their addresses count as used.
	Services bool
	// Pods has the endpoints of pods as Kubernetes knows them; nil if the objects have these, or none are known.
	Pods model.Reader
}

// Check compares the objects of Kinds.
func Check(objects model.Reader, o Options) Result {
	c := &checker{Reader: objects, options: o, users: map[netip.Addr][]user{}, pods: map[string][]netip.Prefix{},
		Result: Result{Allocations: map[string][]*Allocation{}, Found: map[Problem][]Finding{},
			handles: map[string]map[netip.Prefix]int{}, node: func(name string) bool {
				return objects.Get(model.ResourceKey(model.KindNode, name)) != nil
			}}}
	c.readUsers()
	c.readBlocks()
	c.compareUsers()
	c.comparePods()
	c.compareHandles()
	c.compareClaims()
	return c.Result
}

type checker struct {
	model.Reader
	Result
	options Options
	users   map[netip.Addr][]user
	pods    map[string][]netip.Prefix // the addresses of endpoints by "namespace/pod"
}

// user is an object that uses an address.
type user struct {
	model.Key
	pod   string // "namespace/pod", empty for none
	since time.Time
}

func (c *checker) found(f Finding) { c.Found[f.Problem] = append(c.Found[f.Problem], f) }

// readUsers reads the objects that use addresses.
func (c *checker) readUsers() {
	for _, p := range model.All[model.IPPool](c, model.KindIPPool) {
		if cidr, err := netip.ParsePrefix(p.Spec.CIDR); err == nil && !p.Spec.Disabled {
			c.Pools = append(c.Pools, cidr)
		}
	}
	for o := range c.All(model.KindNode) {
		n, _ := o.Value.(*model.Node)
		for _, t := range n.TunnelAddresses() {
			c.use(t.Address, user{o.Key, "", createdAt(o)})
			c.Tunnels++
		}
	}
	for o := range c.All(model.KindWorkloadEndpoint) {
		c.readEndpoint(o)
	}
	for o := range c.All(model.KindService) {
		s, _ := o.Value.(*model.Service)
		if s == nil || s.Spec.Type != model.ServiceLoadBalancer {
			continue
		}
		for _, i := range s.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(i.IP); err == nil {
				c.use(a, user{o.Key, "", createdAt(o)})
				c.Services++
			}
		}
	}
}

func (c *checker) readEndpoint(o *model.Object) {
	w := o.Workload()
	if w == nil {
		return
	}
	u := user{Key: o.Key, since: createdAt(o)}
	if w.Pod != "" {
		u.pod = o.Key.Namespace + "/" + w.Pod
	}
	for _, p := range w.Confirmed().Networks {
		c.use(p.Addr(), u)
		c.Endpoints++
		c.pods[u.pod] = append(c.pods[u.pod], p)
	}
	c.pinned = append(append(c.pinned, w.Networks...), w.Confirmed().Networks...)
	if whole, ok := o.Value.(*model.WorkloadEndpoint); ok && len(w.Networks) < len(whole.Spec.IPNetworks) {
		c.Unreadable = append(c.Unreadable, o.Key.String())
	}
	if w.Node != "" && !c.node(w.Node) {
		c.found(Finding{Problem: lostNodes, Subject: o.Key.String(), Text: o.Key.String(),
			Evidence: "node " + w.Node + " does not exist", Since: u.since})
	}
}

func (c *checker) use(a netip.Addr, by user) {
	c.users[a] = append(c.users[a], by)
	c.pinned = append(c.pinned, netip.PrefixFrom(a, a.BitLen()))
}

// readBlocks reads the assigned addresses.
func (c *checker) readBlocks() {
	for _, b := range model.All[model.Block](c, model.KindIPAMBlock) {
		c.Blocks++
		owner, owned := ipam.OwnerOf(b)
		for a := range ipam.Allocations(b) {
			if !a.Windows {
				if c.handles[a.Handle] == nil {
					c.handles[a.Handle] = map[netip.Prefix]int{}
				}
				c.handles[a.Handle][b.CIDR]++
			}
			x := &Allocation{IP: a.Address.String(), Handle: a.Handle, SequenceNumber: &a.Sequence, Pod: a.Attrs["pod"],
				Namespace: a.Attrs["namespace"], Node: a.Attrs["node"], Type: a.Attrs["type"],
				Created: a.Attrs["timestamp"], Owners: names(c.users[a.Address]), addr: a.Address,
				machine: a.Attrs["vmi-name"]}
			x.Borrowed = x.Node != "" && (!owned || owner.Type == model.AffinityHost && owner.Name != x.Node)
			x.InUse = len(x.Owners) > 0 || a.Windows || a.Attrs["service"] != "" && !c.options.Services
			c.Allocations[x.IP] = append(c.Allocations[x.IP], x)
			c.compareAllocation(x)
		}
	}
}

func names(users []user) (list []string) {
	for _, u := range users {
		list = append(list, u.Key.String())
	}
	return list
}

// compareAllocation compares an assignment with the users of the address.
func (c *checker) compareAllocation(x *Allocation) {
	since := parseTime(x.Created)
	if others := c.Allocations[x.IP]; len(others) == 2 {
		c.found(Finding{Problem: twice, Subject: x.IP, Text: x.IP + ": two blocks have it",
			Evidence: "handles " + others[0].Handle + " and " + x.Handle, Since: since})
	}
	if !x.InUse && x.machine != "" {
		return // it may be stopped: the garbage collector finds out whether it is gone
	}
	if !x.InUse {
		c.found(Finding{Problem: Leaked, Subject: x.IP, Text: x.Text(), Evidence: c.whyUnused(x), Since: since,
			fix: fix{leak: x}})
		return
	}
	pod, users := x.Namespace+"/"+x.Pod, c.users[x.addr]
	if x.Pod == "" || x.machine != "" || slices.ContainsFunc(users, func(u user) bool {
		return u.pod == "" || u.pod == pod
	}) {
		return // a virtual machine keeps its address while its pods change
	}
	if len(users) > 0 {
		c.found(Finding{Problem: otherUser, Subject: x.IP, Text: x.Text(), Evidence: "used by " + users[0].Key.String(),
			Since: since})
	}
}

// whyUnused names the object that would use an assigned address.
func (c *checker) whyUnused(x *Allocation) string {
	var why []string
	if x.Pod != "" {
		switch has := c.pods[x.Namespace+"/"+x.Pod]; {
		case len(has) == 0:
			why = append(why, "no endpoint of the pod has an address")
		default:
			why = append(why, "the pod has "+joined(has))
		}
	}
	switch {
	case x.Node != "" && !c.node(x.Node):
		why = append(why, "the node does not exist")
	case x.Pod == "" && x.Node != "":
		n := model.Get[model.Node](c, model.ResourceKey(model.KindNode, x.Node))
		var has []string
		for _, t := range n.TunnelAddresses() {
			has = append(has, t.Address.String())
		}
		why = append(why, "the tunnels of the node have "+cmp.Or(strings.Join(has, " and "), "no address"))
	}
	return strings.Join(why, ", ")
}

func joined(list []netip.Prefix) string {
	var texts []string
	for _, p := range list {
		texts = append(texts, p.Addr().String())
	}
	return strings.Join(texts, " and ")
}

// compareUsers finds addresses that are used and not assigned, or used twice. Those of services may be another
// program's.
func (c *checker) compareUsers() {
	for _, a := range slices.SortedFunc(maps.Keys(c.users), netip.Addr.Compare) {
		users := c.users[a]
		has := c.Allocations[a.String()]
		machine := len(has) > 0 && has[0].machine != ""
		f := Finding{Subject: a.String(), Text: fmt.Sprintf("%s: %s", a, users[0].Key), Since: users[0].since}
		if len(users) > 1 && !machine {
			both := f
			both.Problem, both.Evidence = twice, "also "+strings.Join(names(users[1:]), ", ")
			c.found(both)
		}
		switch {
		case has != nil:
			continue
		case c.inPool(a):
			f.Problem = unassigned
		case users[0].Kind != model.KindService:
			f.Problem = foreign
		default:
			continue
		}
		c.found(f)
	}
}

func (r Result) inPool(a netip.Addr) bool {
	return slices.ContainsFunc(r.Pools, func(p netip.Prefix) bool { return p.Contains(a) })
}

// comparePods compares the addresses of pods in Kubernetes with those of their endpoints.
func (c *checker) comparePods() {
	if c.options.Pods == nil {
		return
	}
	for k, w := range model.AllWorkloads(c.options.Pods) {
		pod := k.Namespace + "/" + w.Pod
		has := c.pods[pod]
		for _, p := range w.Confirmed().Networks {
			if len(has) > 0 && !slices.ContainsFunc(has, func(h netip.Prefix) bool { return h.Addr() == p.Addr() }) {
				c.found(Finding{Problem: podDiffers, Subject: pod, Text: fmt.Sprintf("%s: %s", p.Addr(), pod),
					Evidence: "its endpoint has " + joined(has)})
			}
		}
	}
}

func (c *checker) compareHandles() {
	exist := map[string]bool{"": true}
	for o := range c.All(model.KindIPAMHandle) {
		id, since := o.Key.Name, createdAt(o)
		exist[id] = true
		h, _ := o.Value.(*model.Handle)
		if len(c.handles[id]) == 0 {
			c.Idle = append(c.Idle, Handle{ID: id, Revision: fmt.Sprint(o.Revision)})
			c.found(Finding{Problem: idleHandles, Subject: id, Text: id, Since: since, fix: fix{handle: id}})
			continue
		}
		if why := miscounts(h, c.handles[id]); why != "" {
			c.found(Finding{Problem: miscounted, Subject: id, Text: id, Evidence: why, Since: since,
				fix: fix{handle: id, blocks: slices.Collect(maps.Keys(c.handles[id]))}})
		}
	}
	for _, h := range slices.Sorted(maps.Keys(c.handles)) {
		if !exist[h] {
			c.found(Finding{Problem: missing, Subject: h, Text: h, Evidence: "addresses in " +
				strings.Join(texts(c.handles[h]), " and "),
				fix: fix{handle: h, blocks: slices.Collect(maps.Keys(c.handles[h]))}})
		}
	}
}

func texts[V any](blocks map[netip.Prefix]V) (list []string) {
	for b := range blocks {
		list = append(list, b.String())
	}
	slices.Sort(list)
	return list
}

// miscounts compares the counts of a handle with its addresses.
func miscounts(h *model.Handle, has map[netip.Prefix]int) string {
	if h == nil {
		return ""
	}
	var why []string
	for _, cidr := range slices.Sorted(maps.Keys(h.Block)) {
		p, err := netip.ParsePrefix(cidr)
		if n := has[p]; err != nil || n != h.Block[cidr] {
			why = append(why, fmt.Sprintf("it counts %d in %s, which has %d", h.Block[cidr], cidr, n))
		}
	}
	for _, cidr := range texts(has) {
		if _, ok := h.Block[cidr]; !ok {
			why = append(why, "it does not count its addresses in "+cidr)
		}
	}
	return strings.Join(why, ", ")
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
		f := Finding{Problem: claims, Subject: aff.CIDR.String(), Since: createdAt(o), fix: fix{affinity: aff}}
		b := model.Get[model.Block](c, model.BlockKey(aff.CIDR))
		if b == nil {
			f.Text = fmt.Sprintf("%s: %s claims it, and there is no such block", aff.CIDR, aff)
			c.found(f)
		} else if owner, _ := ipam.OwnerOf(b); owner.String() != aff.String() {
			f.Text = fmt.Sprintf("%s: %s claims it, and its owner is %s", aff.CIDR, aff, ownerText(b))
			c.found(f)
		}
	}
	for _, b := range model.All[model.Block](c, model.KindIPAMBlock) {
		owner, ok := ipam.OwnerOf(b)
		aff := model.Affinity{Type: owner.Type, Host: owner.Name, CIDR: b.CIDR}
		f := Finding{Subject: b.CIDR.String(), fix: fix{affinity: aff}}
		if b.AffinityClaimTime != nil {
			f.Since = b.AffinityClaimTime.Time
		}
		switch {
		case !ok && (b.Affinity == nil || *b.Affinity == "") && ipam.Empty(b):
			f.Problem, f.fix.affinity, f.fix.useless = claims, model.Affinity{}, b.CIDR
			f.Text = fmt.Sprintf("%s: it has neither an owner nor addresses", b.CIDR)
			c.found(f)
		case !ok:
		case claimed[b.CIDR] == "" && c.Get(model.AffinityKey(aff)) == nil:
			f.Problem = claims
			f.Text = fmt.Sprintf("%s: its owner is %s, which has no affinity to it", b.CIDR, owner)
			c.found(f)
		case owner.Type == model.AffinityHost && !c.node(owner.Name):
			f.Problem, f.fix.vacate = lostNodes, true
			f.Text = fmt.Sprintf("%s: its owner is %s", b.CIDR, owner)
			f.Evidence = "node " + owner.Name + " does not exist"
			c.found(f)
		}
	}
}

func ownerText(b *model.Block) string {
	if owner, ok := ipam.OwnerOf(b); ok {
		return owner.String()
	}
	return "nobody"
}
