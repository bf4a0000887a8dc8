package policy

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// Config returns the Config that New was given.
func (c *Calculator) Config() Config { return c.config }

// HasHosts reports whether this node has host endpoints.
func (c *Calculator) HasHosts() bool {
	for range c.endpoints.hosts() {
		return true
	}
	return false
}

// Interfaces returns the interfaces of the last SetInterfaces, with their addresses. Callers must not change them.
func (c *Calculator) Interfaces() map[string][]netip.Addr { return c.hosts.links }

// Policies visits all policies of the cluster that can be used, with the number of this node's endpoints that each
// selects; those that select none come without their rules, which Policy has.
func (c *Calculator) Policies() iter.Seq2[*Policy, int] {
	return func(yield func(*Policy, int) bool) {
		for _, s := range c.policies.of {
			if s.Policy != nil && !yield(s.Policy, len(s.endpoints)) {
				return
			}
		}
	}
}

// Active returns how many policies select endpoints of this node, and how many selectors their rules and those of
// profiles use.
func (c *Calculator) Active() (policies, selectors int) {
	for _, endpoints := range c.Policies() {
		if endpoints > 0 {
			policies++
		}
	}
	for key := range c.sets.of {
		if key.kind == bySelector || key.kind == byPort {
			selectors++
		}
	}
	return policies, selectors
}

// Policy returns a policy or profile, nil if there is none that can be used, and the number of this node's endpoints
// that it is about.
func (c *Calculator) Policy(id ID) (p *Policy, endpoints int) {
	s := c.policies.get(id)
	if s == nil {
		return nil, 0
	}
	return s.whole(), len(s.endpoints)
}

// Subjects visits the endpoints of this node that a policy or profile is about.
func (c *Calculator) Subjects(id ID) iter.Seq[model.Key] {
	return func(yield func(model.Key) bool) {
		s := c.policies.get(id)
		if s == nil {
			return
		}
		for e := range s.endpoints {
			if !yield(e.key) {
				return
			}
		}
	}
}

// Profiles visits the profiles that this node's endpoints have, whether they exist or not.
func (c *Calculator) Profiles() iter.Seq[ID] {
	return func(yield func(ID) bool) {
		for _, s := range c.policies.profiles {
			if s.active && !yield(s.id) {
				return
			}
		}
	}
}

// TierInfo is the order of a tier and its action on packets that its policies select but do not decide about.
type TierInfo struct {
	Order  float64 // infinite for none
	Pass   bool    // the default action is Pass rather than Deny
	Exists bool    // a tier that is missing comes last and denies
}

// Tier describes a tier, also one that does not exist.
func (c *Calculator) Tier(name string) TierInfo {
	t := c.policies.tier(name)
	return TierInfo{Order: t.order, Pass: t.pass, Exists: t.exists}
}

// IsWorkload reports whether an interface of that name is a workload's.
func (c *Calculator) IsWorkload(iface string) bool { return c.settings.isWorkload(iface) }

// Endpoints visits this node's endpoints: of workloads and of the host.
func (c *Calculator) Endpoints() iter.Seq[model.Key] { return maps.Keys(c.endpoints.of) }

// whyIgnored is why a policy has no effect at an endpoint that it selects, as in Calico; empty if it has.
func (e *endpoint) whyIgnored(p *Policy) string {
	if e.host != nil && e.host.Spec.InterfaceName == model.AllInterfaces && p.DoNotTrack {
		return `doNotTrack has no effect at a host endpoint with interfaceName "*"`
	}
	return ""
}

// WhyIgnored returns why a policy has no effect at an endpoint of this node that it selects, empty if it has.
func (c *Calculator) WhyIgnored(k model.Key, id ID) string {
	e, s := c.endpoints.of[k], c.policies.of[id]
	if e == nil || s == nil || !e.policies[s] {
		return ""
	}
	return e.whyIgnored(s.Policy)
}

// Ignored visits the endpoints of this node at which policies that select them have no effect, with these and the
// reason.
func (c *Calculator) Ignored() iter.Seq2[model.Key, string] {
	return func(yield func(model.Key, string) bool) {
		for k, e := range c.endpoints.of {
			var names []string
			why := ""
			for s := range e.policies {
				if reason := e.whyIgnored(s.Policy); reason != "" {
					names, why = append(names, s.id.String()), reason
				}
			}
			slices.Sort(names)
			if len(names) > 0 && !yield(k, "ignored: "+strings.Join(names, ", ")+": "+why) {
				return
			}
		}
	}
}

// PoliciesOf returns the policies that select an endpoint of this node, for one direction, then its profiles, in the
// order of evaluation. A host's policies about untracked or translated packets come first. WhyIgnored knows those
// without effect.
func (c *Calculator) PoliciesOf(k model.Key, ingress bool) []ID {
	e := c.endpoints.of[k]
	if e == nil {
		return nil
	}
	purposes := []purpose{untrackedOut, normalOut}
	if ingress {
		purposes = []purpose{untrackedIn, preDNAT, normalIn}
	}
	var list []ID
	for _, p := range purposes {
		if !p.normal() && e.host == nil {
			continue
		}
		for _, t := range c.tiersOf(e, p) {
			for _, s := range t.policies {
				list = append(list, s.id)
			}
		}
	}
	for _, name := range e.profiles {
		list = append(list, profileID(name))
	}
	return list
}
