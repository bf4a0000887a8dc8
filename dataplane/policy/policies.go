package policy

import (
	"math"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

// policies are those of the whole cluster, the profiles and the tiers.
type policies struct {
	of       map[ID]*policyState
	profiles map[string]*policyState
	tiers    map[string]tier
	waiting  map[*policyState]bool // for Continue
	dirty    dirty[*policyState]
}

func newPolicies() policies {
	return policies{of: map[ID]*policyState{}, profiles: map[string]*policyState{}, tiers: map[string]tier{},
		waiting: map[*policyState]bool{}}
}

// get returns the state of a policy or profile; nil if there is none.
func (s *policies) get(id ID) *policyState {
	if id.Kind == model.KindProfile {
		return s.profiles[id.Name]
	}
	return s.of[id]
}

// policyState is a policy or profile and its objects in the table. It is active, that is, in the table, while endpoints
// of this node are subject to it. Most policies of a big cluster never are: their rules are not kept.
type policyState struct {
	*Policy                 // nil for a profile that does not exist: nothing passes
	id        ID            // also when Policy is nil
	object    *model.Object // the source of a policy; nil for a profile
	resting   bool          // Policy is without its rules
	endpoints map[*endpoint]bool
	active    bool
	sets      map[setKey]bool // acquired
	literals  map[string]bool // used
	space     *space          // of its namespace, while it is active; nil for one of no namespace
	cost      *cost           // nil for a policy of no namespace, and before it is counted
	closed    string          // why it has to drop all packets, see Budget; empty if it has not
	shown     string          // why its rules in the table drop all packets
	full      bool            // because its sets have too many elements
	computing bool            // it drops all packets until it is complete
}

// join makes an endpoint subject to the policy.
func (s *policyState) join(e *endpoint) {
	if s.endpoints == nil {
		s.endpoints = map[*endpoint]bool{}
	}
	s.endpoints[e] = true
	if s.resting {
		s.Policy, s.resting = s.whole(), false
	}
}

// rest forgets the rules of a policy that no endpoint is subject to.
func (s *policyState) rest() {
	if s.object != nil && len(s.endpoints) == 0 {
		s.Ingress.Rules, s.Egress.Rules, s.resting = nil, nil, true
	}
}

// whole is the policy with its rules.
func (s *policyState) whole() *Policy {
	if !s.resting || s.tooMany > 0 {
		return s.Policy
	}
	p, _ := compileAny(s.object, 0) // that has been done before without an error
	p.ID, p.Selector = s.id, s.Selector
	return p
}

// tier is a group of policies.
type tier struct {
	name   string
	exists bool
	order  float64
	pass   bool // default action
}

func (c *Calculator) takeTier(name string, t *model.Tier) {
	before := c.policies.tier(name)
	if t == nil {
		delete(c.policies.tiers, name)
	} else {
		c.policies.tiers[name] = tier{name: name, exists: true, order: orderOf(t.Spec.Order),
			pass: t.Spec.DefaultAction != nil && *t.Spec.DefaultAction == v3.Pass}
	}
	if c.policies.tier(name) == before {
		return
	}
	for _, p := range c.policies.of {
		if p.Tier == name {
			c.endpoints.touch(p)
		}
	}
}

// builtIn are the tiers that exist in every cluster, stored or not.
var builtIn = map[string]tier{
	"default":       {name: "default", exists: true, order: v3.DefaultTierOrder},
	"kube-admin":    {name: "kube-admin", exists: true, order: v3.AdminNetworkPolicyTierOrder, pass: true},
	"kube-baseline": {name: "kube-baseline", exists: true, order: v3.BaselineAdminNetworkPolicyTierOrder, pass: true},
}

// tier returns a tier. One that is missing comes last and denies, so that a deleted tier opens nothing.
func (s *policies) tier(name string) tier {
	if t, ok := s.tiers[name]; ok {
		return t
	}
	if t, ok := builtIn[name]; ok {
		return t
	}
	return tier{name: name, order: math.Inf(1)}
}

func (c *Calculator) takePolicy(k model.Key, o *model.Object) {
	id := ID(k)
	delete(c.bad, k)
	var p *Policy
	if o != nil {
		var err error
		if p, err = compileAny(o, c.config.Budget.Rules); err != nil {
			c.bad[k] = err.Error()
			if c.policies.of[id] != nil {
				return // the last valid version stays in force
			}
		}
	}
	if p == nil {
		c.dropPolicy(id)
		return
	}
	p.ID = id
	s := c.policies.of[id]
	if s == nil {
		s = &policyState{id: id}
		c.policies.of[id] = s
	} else if s.Policy != nil {
		c.endpoints.touch(s)
	}
	s.Policy, s.object, s.resting, s.cost = p, o, false, nil
	c.policies.dirty.add(s)
	c.subjects.SetSelector(id, p.Selector)
	s.rest()
}

// compileAny compiles Kubernetes' own kinds by way of Calico's.
func compileAny(o *model.Object, maxRules int) (*Policy, error) {
	converted, err := conversion.Policy(o)
	if err != nil || converted == nil {
		return nil, err
	}
	p, err := compile(converted, maxRules)
	if p != nil {
		p.Staged = p.Staged || o.Key.Kind == model.KindStagedKubernetesNetworkPolicy
	}
	return p, err
}

func (c *Calculator) dropPolicy(id ID) {
	s := c.policies.of[id]
	if s == nil {
		return
	}
	c.subjects.DeleteSelector(id) // its endpoints are called back
	delete(c.policies.of, id)
	c.policies.dirty.add(s)
}

// subjectStarted and subjectStopped are the index's callbacks about the policies that select this node's endpoints.
func (c *Calculator) subjectStarted(id ID, e *endpoint) {
	if p := c.policies.of[id]; p != nil {
		p.join(e)
		e.policies[p] = true
		c.policies.dirty.add(p)
		c.endpoints.dirty.add(e)
	}
}

func (c *Calculator) subjectStopped(id ID, e *endpoint) {
	if p := c.policies.of[id]; p != nil {
		delete(p.endpoints, e)
		delete(e.policies, p)
		c.policies.dirty.add(p)
		c.endpoints.dirty.add(e)
	}
}

func (c *Calculator) takeProfile(name string, v *v3.Profile) {
	k := model.ResourceKey(model.KindProfile, name)
	delete(c.bad, k)
	if v == nil {
		c.sets.peers.SetParent(name, nil)
		c.subjects.SetParent(name, nil)
		if s := c.policies.profiles[name]; s != nil {
			s.Policy = builtInProfile(name)
			c.policies.dirty.add(s)
		}
		return
	}
	labels := v.Spec.LabelsToApply
	if labels == nil {
		labels = map[string]string{}
	}
	c.sets.peers.SetParent(name, labels)
	c.subjects.SetParent(name, labels)
	s := c.policies.profile(name)
	c.policies.dirty.add(s)
	p, err := compileProfile(name, v)
	if err != nil {
		c.bad[k] = err.Error()
		return
	}
	s.Policy = p
}

func compileProfile(name string, v *v3.Profile) (*Policy, error) {
	p := &Policy{ID: profileID(name)}
	var err error
	if p.Ingress, err = direction("", "ingress", true, v.Spec.Ingress); err != nil {
		return nil, err
	}
	p.Egress, err = direction("", "egress", true, v.Spec.Egress)
	return p, err
}

func profileID(name string) ID { return ID{Kind: model.KindProfile, Name: name} }

// profile returns the state of a profile, whether it exists or not.
func (s *policies) profile(name string) *policyState {
	p := s.profiles[name]
	if p == nil {
		p = &policyState{id: profileID(name), Policy: builtInProfile(name)}
		s.profiles[name] = p
		s.dirty.add(p)
	}
	return p
}

// builtInProfile is the content of a profile that is not stored: nil except for the one that exists in every cluster.
func builtInProfile(name string) *Policy {
	if name != model.DefaultAllowProfile {
		return nil
	}
	allow := Direction{Applies: true, Rules: []Rule{{Action: Allow}}}
	return &Policy{ID: profileID(name), Ingress: allow, Egress: allow}
}

// settlePolicies writes the chains of the policies that changed and are needed, and removes those of the others.
func (c *Calculator) settlePolicies() {
	if c.settings.changed {
		for _, p := range c.policies.of {
			c.policies.dirty.add(p)
		}
		for _, p := range c.policies.profiles {
			c.policies.dirty.add(p)
		}
	}
	var tenants []*policyState
	for p := range c.policies.dirty {
		switch {
		case len(p.endpoints) == 0:
		case p.cost != nil:
			tenants = append(tenants, p)
		default:
			c.write(p)
		}
	}
	slices.SortFunc(tenants, (*policyState).smaller)
	for _, p := range tenants {
		c.settleTenant(p)
	}
}

// write renders a policy's chains and settles which sets it uses.
func (c *Calculator) write(p *policyState) {
	before, literals := p.sets, p.literals
	p.sets, p.literals = map[setKey]bool{}, map[string]bool{}
	c.writeChains(p)
	for key := range before {
		if !p.sets[key] {
			c.sets.release(key, p)
		}
	}
	c.literals.release(literals)
	p.active = true
}

func (c *Calculator) writeChains(p *policyState) {
	for _, in := range []bool{true, false} {
		chain := c.render(p, in)
		if chain == nil {
			c.table.DeleteChain(ChainName(p.id, in))
			continue
		}
		c.table.SetChain(chain)
	}
}

// unwrite removes a policy from the table.
func (c *Calculator) unwrite(p *policyState) {
	for key := range p.sets {
		c.sets.release(key, p)
	}
	c.literals.release(p.literals)
	p.sets, p.literals, p.space, p.active, p.computing = nil, nil, nil, false, false
	c.table.DeleteChain(ChainName(p.id, true))
	c.table.DeleteChain(ChainName(p.id, false))
}

// collect removes unreferenced objects. It comes last, when all needed objects have been written.
func (c *Calculator) collect() {
	for p := range c.policies.dirty {
		if len(p.endpoints) > 0 {
			continue
		}
		delete(c.policies.waiting, p)
		if p.active {
			c.unwrite(p)
		}
		p.rest()
		if p.Policy == nil && p.id.Kind == model.KindProfile {
			delete(c.policies.profiles, p.id.Name)
		}
	}
	c.policies.dirty = nil
	c.lists.collect()
	c.sets.collect()
	c.spaces.collect()
	c.literals.collect()
}

// ChainName names the chain of a policy or profile for one direction. nftables allows 255 characters.
func ChainName(id ID, ingress bool) string {
	name := "po/" + id.String()
	if ingress {
		name = "pi/" + id.String()
	}
	const longest = 200
	if len(name) > longest {
		return name[:longest-17] + "." + shortHash(name)
	}
	return name
}
