package policy

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// Budget bounds the cost of the policies of one namespace that select endpoints of this node; 0 is no limit. Policies
// above it are closed, the largest first: they drop all packets in their directions. Cluster-wide policies, which only
// administrators write, have no budget.
type Budget struct {
	// Rules counts the policies and their rules.
	Rules int
	// Sets counts the different selectors, named ports and services of the rules. A selector counts once more for each
	// 100 conditions.
	Sets int
	// Elements counts the networks and ports that rules list, and the endpoints and network sets that each of the sets
	// has, those of other namespaces once and those of the namespace once for each network.
	Elements int
}

// DefaultBudget is above the needs of any real namespace: Rules is twice the rules that Calico's resource definitions
// allow one policy in both directions, Sets the number of selectors of such a policy in one direction, and Elements ten
// selectors that each match all of 50,000 pods.
var DefaultBudget = Budget{Rules: 4096, Sets: 1024, Elements: 500_000}

// need is a set that the rules of a policy name.
type need struct {
	key      setKey
	selector *selector.Selector // nil for a service
	sets     int                // how often it counts
}

// cost is what a policy costs, as far as its text tells.
type cost struct {
	rules, sets, literals int
	needs                 []need // each once
}

// smaller orders policies of a namespace: the first ones get the budget.
func (s *policyState) smaller(o *policyState) int {
	return cmp.Or(cmp.Compare(s.cost.rules, o.cost.rules), cmp.Compare(s.cost.sets, o.cost.sets),
		cmp.Compare(s.cost.literals, o.cost.literals), strings.Compare(s.id.String(), o.id.String()))
}

func costOf(p *Policy) *cost {
	c := &cost{rules: 1 + extraSets(p.Selector) + p.tooMany}
	seen := map[setKey]bool{}
	add := func(key setKey, s *selector.Selector) {
		if !seen[key] {
			seen[key] = true
			n := need{key, s, 1 + extraSets(s)}
			c.needs, c.sets = append(c.needs, n), c.sets+n.sets
		}
	}
	for _, d := range []*Direction{&p.Ingress, &p.Egress} {
		for i := range d.Rules {
			r := &d.Rules[i]
			c.rules++
			if r.Never != "" || p.Staged && r.Action == Log {
				continue
			}
			r.addNeeds(add)
			for _, e := range []*Entity{&r.Source, &r.Destination} {
				c.literals += len(e.Nets) + len(e.NotNets) + len(e.Ports.Ranges) + len(e.NotPorts.Ranges)
			}
		}
	}
	return c
}

// addNeeds calls add for each set that the rule names in the table, some more than once.
func (r *Rule) addNeeds(add func(setKey, *selector.Selector)) {
	for i, e := range []*Entity{&r.Source, &r.Destination} {
		for _, s := range []*selector.Selector{e.Selector, e.NotSelector} {
			if s != nil {
				add(selectorKey(s), s)
			}
		}
		for _, names := range [][]string{e.Ports.Names, e.NotPorts.Names} {
			if len(names) > 0 {
				add(portKey(names, e.Selector, r.Protocol))
			}
		}
		if e.Service != (Service{}) {
			add(serviceKey(e.Service, i == 1), nil)
		}
	}
}

func selectorKey(s *selector.Selector) setKey { return setKey{kind: bySelector, selector: s.String()} }

// portKey is the set of the endpoints with a port of one of these names, of those that sel matches or of all.
func portKey(names []string, sel *selector.Selector, protocol uint8) (setKey, *selector.Selector) {
	if sel == nil {
		sel = selector.New(selector.All{})
	}
	return setKey{kind: byPort, selector: sel.String(), ports: portNames(names), protocol: protocol}, sel
}

// serviceKey is the set of a service's endpoints, with their ports if it is the destination.
func serviceKey(s Service, destination bool) setKey {
	if destination {
		return setKey{kind: byServicePorts, service: s}
	}
	return setKey{kind: byService, service: s}
}

// extraSets is how often a selector counts beyond the first time.
func extraSets(s *selector.Selector) int {
	const conditionsOfOne = 100
	if s == nil {
		return 0
	}
	sum := 0
	for n := range s.Conditions() {
		in, _ := n.(selector.In)
		sum += max(1, len(in.Values))
	}
	return sum / conditionsOfOne
}

// space is the policies of one namespace that select endpoints of this node.
type space struct {
	name     string
	policies map[*policyState]bool
	literals int // of the policies that are not closed
	elements int // members of the sets in use
	again    bool
}

// share is the use of a set by the policies of a namespace.
type share struct {
	users   int
	counted int // elements of the set in space.elements
}

// spaces are the namespaces with policies in force on this node.
type spaces struct {
	of    map[string]*space
	dirty dirty[*space]
}

// again has the budget of a namespace shared out anew.
func (s *spaces) again(sp *space) {
	sp.again = true
	s.dirty.add(sp)
}

// collect forgets the namespaces without policies.
func (s *spaces) collect() {
	for sp := range s.dirty {
		if len(sp.policies) == 0 {
			delete(s.of, sp.name)
		}
	}
	s.dirty = nil
}

// settleSpaces decides which policies of the namespaces that changed are closed.
func (c *Calculator) settleSpaces() {
	for p := range c.policies.dirty {
		c.spaces.enroll(p)
	}
	for s := range c.sets.dirty {
		for sp := range s.spaces {
			if s.recount(sp); over(sp.literals+sp.elements, c.config.Budget.Elements) {
				c.spaces.dirty.add(sp)
			}
		}
	}
	for sp := range c.spaces.dirty {
		c.plan(sp)
	}
}

// enroll counts a policy in its namespace while it selects an endpoint of this node.
func (s *spaces) enroll(p *policyState) {
	if p.id.Namespace == "" {
		return
	}
	sp := s.of[p.id.Namespace]
	if p.Policy == nil || len(p.endpoints) == 0 {
		if sp != nil && sp.policies[p] {
			delete(sp.policies, p)
			s.again(sp)
		}
		p.cost, p.closed, p.shown, p.full = nil, "", "", false
		return
	}
	if sp == nil {
		sp = &space{name: p.id.Namespace, policies: map[*policyState]bool{}}
		s.of[sp.name] = sp
	}
	if p.space = sp; !sp.policies[p] || p.cost == nil {
		p.cost = costOf(p.Policy)
		sp.policies[p] = true
		s.again(sp)
	}
}

// recount takes over the present number of a set's elements.
func (s *memberSet) recount(sp *space) {
	sh := s.spaces[sp]
	now := s.weight(sp.name)
	sp.elements += now - sh.counted
	sh.counted = now
}

// plan closes the policies of a namespace beyond the budget. The smallest policies get it first, so that a large one
// costs the small ones nothing.
func (c *Calculator) plan(sp *space) {
	b := c.config.Budget
	rules, sets, elements, literals := 0, 0, 0, 0
	seen := map[setKey]bool{}
	for _, p := range slices.SortedFunc(maps.Keys(sp.policies), (*policyState).smaller) {
		if p.full && !sp.again {
			continue
		}
		if over(rules+p.cost.rules, b.Rules) { // and so are all that follow: their sets are not counted
			p.full = false
			c.policies.close(p, overText(sp.name, "rules", rules+p.cost.rules, b.Rules))
			continue
		}
		var fresh []setKey
		nowSets, nowElements := sets, elements+p.cost.literals
		for _, n := range p.cost.needs {
			if seen[n.key] {
				continue
			}
			fresh = append(fresh, n.key)
			nowSets += n.sets
			if s := c.sets.of[n.key]; s != nil {
				nowElements += s.weight(sp.name)
			}
		}
		closed := ""
		switch {
		case over(nowSets, b.Sets):
			closed = overText(sp.name, "sets", nowSets, b.Sets)
		case over(nowElements, b.Elements):
			closed = overText(sp.name, "elements", nowElements, b.Elements)
		}
		p.full = closed != "" && over(nowElements, b.Elements)
		c.policies.close(p, closed)
		if closed == "" {
			rules, sets, elements, literals = rules+p.cost.rules, nowSets, nowElements, literals+p.cost.literals
			for _, key := range fresh {
				seen[key] = true
			}
		}
	}
	sp.literals, sp.again = literals, false
}

func over(n, limit int) bool { return limit > 0 && n > limit }

func overText(namespace, what string, n, limit int) string {
	return fmt.Sprintf("with it the policies of namespace %s have at least %d %s on this node, and --policy-max-%s is "+
		"%d: reduce the policies, or raise the limit", namespace, n, what, what, limit)
}

// close closes a policy for a reason, or opens it.
func (s *policies) close(p *policyState, why string) {
	if p.closed != why {
		p.closed = why
		s.dirty.add(p)
	}
}

// Closed visits the policies that are above the budget of their namespace, with the reason.
func (c *Calculator) Closed() iter.Seq2[model.Key, string] {
	return func(yield func(model.Key, string) bool) {
		for _, sp := range c.spaces.of {
			for p := range sp.policies {
				if p.shown != "" && !p.computing && !yield(model.Key(p.id), p.effect()) {
					return
				}
			}
		}
	}
}

// WhyClosed returns why a policy drops all packets in its directions, or is not evaluated if it is staged; empty if its
// rules are in force.
func (c *Calculator) WhyClosed(id ID) string {
	if s := c.policies.of[id]; s != nil && s.Policy != nil && s.shown != "" {
		return s.effect()
	}
	return ""
}

func (s *policyState) effect() string {
	if s.Staged {
		return "it is not evaluated: " + s.shown
	}
	return "it drops all packets in its directions: " + s.shown
}

const computingText = "its rules are being computed"

// Complete reports whether no policy of the workload at an interface waits to be computed for the first time.
func (c *Calculator) Complete(iface string) bool {
	e := c.endpoints.owner(iface)
	if e == nil {
		return true
	}
	for p := range e.policies {
		if p.computing {
			return false
		}
	}
	return true
}

// HasFull reports whether policies are closed because their sets have too many elements. Reconsider finds out whether
// they have fewer now.
func (c *Calculator) HasFull() bool {
	for _, sp := range c.spaces.of {
		for p := range sp.policies {
			if p.full {
				return true
			}
		}
	}
	return false
}

// Reconsider lets the policies that HasFull is about be computed again, step by step. Their sets are not kept, so
// nothing reports that they have become smaller.
func (c *Calculator) Reconsider() {
	for _, sp := range c.spaces.of {
		for p := range sp.policies {
			if p.full {
				c.spaces.again(sp)
			}
		}
	}
	c.sets.allowance = slice
	c.settle()
}

// Units of work. One is the evaluation of a selector for the labels of a pod, about 0.4 microseconds; the others
// include the kernel's work.
const (
	unitsOfElement = 5
	unitsOfSet     = 150
	unitsOfRule    = 50
	// light is the work for policies of namespaces within one Update, slice that of one Continue.
	light     = 10_000
	slice     = 25_000
	unlimited = math.MaxInt
)

// Waiting reports whether policies wait for Continue.
func (c *Calculator) Waiting() bool { return len(c.policies.waiting) > 0 }

// Continue computes a part of the policies that have waited since an Update because they are too large for it: not more
// than one set, or one policy whose sets are complete, above some milliseconds of work. A new policy drops all packets
// in its directions until it is complete, and a changed one stays as it was.
func (c *Calculator) Continue() {
	for p := range c.policies.waiting {
		c.policies.dirty.add(p)
	}
	c.sets.allowance = slice
	c.settle()
}

// settleTenant writes a policy of a namespace if the work that is left for this step suffices.
func (c *Calculator) settleTenant(p *policyState) {
	complete := p.closed != "" || c.prepare(p)
	homeless := c.sets.homeless[p] // the table must not go on to name its former sets
	if !complete || p.closed == "" && !homeless && c.tooMuch(p) {
		c.policies.waiting[p] = true
		if !p.active || homeless {
			c.writeComputing(p)
		}
		return
	}
	delete(c.policies.waiting, p)
	p.computing, p.shown = false, p.closed
	c.write(p)
	if p.closed == "" {
		c.sets.allowance -= p.cost.rules * unitsOfRule
	}
}

// tooMuch leaves a policy to a later step, unless nothing else has been done in this one.
func (c *Calculator) tooMuch(p *policyState) bool {
	return c.sets.allowance < slice && p.cost.rules*unitsOfRule > c.sets.allowance
}

// prepare makes the sets of a policy. It returns false if the work for this step is used up. The policy is closed if
// they have too many elements.
func (c *Calculator) prepare(p *policyState) bool {
	sp := p.space
	for _, n := range p.cost.needs {
		if p.sets[n.key] {
			continue
		}
		if c.sets.of[n.key] == nil && c.sets.allowance <= 0 {
			return false
		}
		left := math.MaxInt
		if b := c.config.Budget.Elements; b > 0 {
			left = b - sp.literals - sp.elements
		}
		before := c.sets.peers.Tried()
		within := c.acquireWithin(n, p, left)
		c.sets.allowance -= int(c.sets.peers.Tried() - before)
		if within {
			continue
		}
		c.sets.allowance -= unitsOfSet
		if c.dropObsolete(p) {
			return false // its former sets are gone at the end of this step
		}
		p.full = true
		p.closed = overText(sp.name, "elements", c.config.Budget.Elements+1, c.config.Budget.Elements)
		return true
	}
	return true
}

// acquireWithin acquires a set unless it has more elements than limit.
func (c *Calculator) acquireWithin(n need, p *policyState, limit int) bool {
	s := c.sets.of[n.key]
	if s == nil {
		if s = c.sets.newSet(n.key, n.selector, limit, p.id.Namespace); s == nil {
			return false
		}
		c.sets.allowance -= unitsOfSet + s.matched
		if !c.sets.twins.follow(s) {
			s.settleKind()
			c.sets.twins.list(s)
			c.sets.allowance -= unitsOfElement * s.weight(p.id.Namespace)
		}
	}
	if sp := p.space; s.spaces[sp] == nil && s.weight(sp.name) > limit {
		c.sets.released.add(n.key)
		return false
	}
	s.join(p)
	return true
}

// dropObsolete closes a policy that waits and has sets of its former version, which then count no more.
func (c *Calculator) dropObsolete(p *policyState) bool {
	needed := map[setKey]bool{}
	for _, n := range p.cost.needs {
		needed[n.key] = true
	}
	obsolete := false
	for key := range p.sets {
		if !needed[key] {
			obsolete = true
			c.sets.release(key, p)
		}
	}
	if obsolete {
		c.writeComputing(p)
	}
	return obsolete
}

// writeComputing drops all packets in the directions of a policy that is not complete. Its sets stay.
func (c *Calculator) writeComputing(p *policyState) {
	p.computing, p.shown = true, computingText
	c.writeChains(p)
	p.active = true
}
