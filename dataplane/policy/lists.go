package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// DirectionName is the name of a direction in a spec: "ingress" or "egress".
func DirectionName(ingress bool) string {
	if ingress {
		return "ingress"
	}
	return "egress"
}

// purpose is the place on a packet's way where policies are evaluated, and their kind.
type purpose uint8

const (
	normalIn    purpose = iota // to a workload, or to the host itself
	normalOut                  // from
	forwardIn                  // through a host endpoint
	forwardOut                 //
	untrackedIn                // before connections are tracked
	untrackedOut
	preDNAT
)

func (p purpose) in() bool {
	return p == normalIn || p == forwardIn || p == untrackedIn || p == preDNAT
}

func (p purpose) untracked() bool { return p == untrackedIn || p == untrackedOut }
func (p purpose) forward() bool   { return p == forwardIn || p == forwardOut }
func (p purpose) normal() bool    { return p == normalIn || p == normalOut }

// evaluates reports whether a policy is evaluated at that place of a host endpoint, or of a workload.
func (p purpose) evaluates(x *Policy, host bool) bool {
	if d := x.Direction(p.in()); !d.Applies {
		return false
	}
	switch {
	case !host:
		return p.normal() && !x.DoNotTrack && !x.PreDNAT
	case x.DoNotTrack:
		return p.untracked()
	case x.PreDNAT:
		return p == preDNAT
	case p.forward():
		return x.ApplyOnForward
	}
	return p.normal()
}

// Direction is the half of the policy about packets to an endpoint (ingress) or from it.
func (p *Policy) Direction(ingress bool) *Direction {
	if ingress {
		return &p.Ingress
	}
	return &p.Egress
}

// list is tiers of policies, then profiles, in the order of evaluation. Endpoints with the same list share it.
type list struct {
	key      string
	name     string // of its first chain
	purpose  purpose
	host     bool
	tiers    []tierList
	profiles []*policyState
	users    map[*endpoint]int
	chains   []string
}

type tierList struct {
	tier
	policies []*policyState
}

// lists are those in the table.
type lists struct {
	table  *ruleset.Table
	of     map[string]*list
	unused dirty[*list]
}

// listFor returns the list of an endpoint, which exists once however many have it.
func (c *Calculator) listFor(e *endpoint, p purpose) *list {
	host := e.host != nil
	l := &list{purpose: p, host: host, tiers: c.tiersOf(e, p), users: map[*endpoint]int{}}
	if p.normal() {
		for _, name := range e.profiles {
			l.profiles = append(l.profiles, c.policies.profile(name))
		}
	}
	l.key = l.text()
	if have := c.lists.of[l.key]; have != nil {
		if c.settings.changed {
			c.writeList(have)
		}
		return have
	}
	names := [...]string{"in", "out", "forward-in", "forward-out", "untracked-in", "untracked-out", "pre-dnat"}
	l.name = names[p] + "/" + shortHash(l.key)
	if host {
		l.name = "host-" + l.name
	}
	c.lists.of[l.key] = l
	c.writeList(l)
	return l
}

// text identifies a list: all inputs of its chains.
func (l *list) text() string {
	var b strings.Builder
	fmt.Fprintln(&b, l.purpose, l.host)
	for _, t := range l.tiers {
		fmt.Fprintln(&b, "tier", t.name, t.pass)
		for _, p := range t.policies {
			fmt.Fprintln(&b, p.id, p.Staged, p.hasPass(l.purpose.in()))
		}
	}
	for _, p := range l.profiles {
		fmt.Fprintln(&b, p.id)
	}
	return b.String()
}

// tiersOf sorts the policies that select an endpoint.
func (c *Calculator) tiersOf(e *endpoint, p purpose) []tierList {
	byTier := map[string][]*policyState{}
	for s := range e.policies {
		if p.evaluates(s.Policy, e.host != nil) {
			byTier[s.Tier] = append(byTier[s.Tier], s)
		}
	}
	var tiers []tierList
	for name, policies := range byTier {
		slices.SortFunc(policies, func(a, b *policyState) int { return a.Compare(b.Policy) })
		t := tierList{tier: c.policies.tier(name), policies: policies}
		if p.untracked() || p == preDNAT {
			t.pass = true // these only ever add exceptions
		}
		tiers = append(tiers, t)
	}
	slices.SortFunc(tiers, func(a, b tierList) int { return a.less(b.tier) })
	return tiers
}

// less orders tiers: those that exist, then by order, then by name.
func (t tier) less(o tier) int {
	switch {
	case t.exists && !o.exists:
		return -1
	case !t.exists && o.exists:
		return 1
	}
	return cmp.Or(cmp.Compare(t.order, o.order), strings.Compare(t.name, o.name))
}

// use makes these the lists of an endpoint.
func (s *lists) use(e *endpoint, now []*list) {
	for _, l := range now {
		l.users[e]++
	}
	for _, l := range e.lists {
		if l.users[e]--; l.users[e] == 0 {
			delete(l.users, e)
			s.unused.add(l)
		}
	}
	e.lists = now
}

// collect removes the lists that no endpoint has any more.
func (s *lists) collect() {
	for l := range s.unused {
		if len(l.users) == 0 {
			delete(s.of, l.key)
			for _, name := range l.chains {
				s.table.DeleteChain(name)
			}
		}
	}
	s.unused = nil
}

var established = ruleset.Match{Field: ruleset.ConnState, Mask: ruleset.ConnEstablished | ruleset.ConnRelated}

// marked matches packets with a bit of the mark.
func marked(bit uint32) ruleset.Match {
	return ruleset.Match{Field: ruleset.PacketMark, Low: bit, Mask: bit}
}

// writeList renders the chains of a list: one, and one more after each tier that can be left by Pass.
func (c *Calculator) writeList(l *list) {
	w := listWriter{list: l, settings: &c.settings.settings}
	w.start()
	w.prologue()
	for _, t := range l.tiers {
		w.tier(t)
	}
	w.end()
	for i, chain := range w.done {
		c.table.SetChain(chain)
		if i >= len(l.chains) {
			l.chains = append(l.chains, chain.Name)
		}
	}
	for _, name := range l.chains[len(w.done):] {
		c.table.DeleteChain(name)
	}
	l.chains = l.chains[:len(w.done)]
}

type listWriter struct {
	*list
	settings *settings
	done     []*ruleset.Chain
}

func (w *listWriter) start() {
	name := w.name
	if n := len(w.done); n > 0 {
		name = fmt.Sprintf("%s/%d", w.name, n+1)
	}
	w.done = append(w.done, &ruleset.Chain{Name: name, Origin: EndpointChain{}})
}

func (w *listWriter) add(rules ...ruleset.Rule) {
	chain := w.done[len(w.done)-1]
	chain.Rules = append(chain.Rules, rules...)
}

// prologue writes the rules before policy.
func (w *listWriter) prologue() {
	if !w.purpose.untracked() {
		known := established
		if !w.host && w.purpose == normalOut {
			known.Mask = ruleset.ConnEstablished
		}
		w.add(ruleset.Rule{Matches: []ruleset.Match{known}, Verdict: accept})
		if known != established {
			w.add(ruleset.Rule{Matches: []ruleset.Match{{Field: ruleset.ConnState, Mask: ruleset.ConnRelated}},
				Verdict: goTo(relatedChain)})
		}
		if !w.settings.keepInvalid {
			w.add(ruleset.Rule{Matches: []ruleset.Match{{Field: ruleset.ConnState, Mask: ruleset.ConnInvalid}},
				Verdict: ruleset.Verdict{Action: ruleset.Drop}, Comment: "a packet of no connection",
				CountedBy: droppedInvalid.Counter()})
		}
	}
	if w.host && !w.purpose.forward() {
		w.add(w.settings.failsafes(w.purpose)...)
	}
	if !w.host && w.purpose == normalOut {
		w.add(w.settings.tunnelsFromWorkloads()...)
	}
	if slices.ContainsFunc(w.tiers, func(t tierList) bool { return t.canPass(w.purpose.in()) }) {
		w.add(ruleset.Rule{Mark: ruleset.Mark{Mask: w.settings.marks.Pass}})
	}
}

func (t tierList) canPass(in bool) bool {
	return slices.ContainsFunc(t.policies, func(p *policyState) bool { return !p.Staged && p.hasPass(in) })
}

func (w *listWriter) tier(t tierList) {
	in := w.purpose.in()
	enforced, next := false, fmt.Sprintf("%s/%d", w.name, len(w.done)+1)
	for _, p := range t.policies {
		w.add(ruleset.Rule{Verdict: ruleset.Verdict{Action: ruleset.Jump, Chain: ChainName(p.id, in)}})
		if p.Staged {
			continue
		}
		enforced = true
		if p.hasPass(in) {
			pass := w.settings.marks.Pass
			w.add(ruleset.Rule{Matches: []ruleset.Match{marked(pass)}, Mark: ruleset.Mark{Mask: pass},
				Verdict: goTo(next), Comment: "passed by " + p.id.String()})
		}
	}
	if enforced && !t.pass {
		w.deny("end of tier "+t.name, droppedAtTierEnd, TierEnd(t.name))
	}
	if t.canPass(in) {
		if !enforced || t.pass {
			w.add(ruleset.Rule{Verdict: goTo(next)})
		}
		w.start()
	}
}

// end writes the rules for packets that no policy decided about.
func (w *listWriter) end() {
	if !w.purpose.normal() {
		// Untracked and pre-DNAT policy only adds exceptions; forwarded packets are allowed unless a tier forbids them.
		w.add(ruleset.Rule{Verdict: accept, Comment: "no policy decides"})
		return
	}
	for _, p := range w.profiles {
		w.add(ruleset.Rule{Verdict: ruleset.Verdict{Action: ruleset.Jump, Chain: ChainName(p.id, w.purpose.in())}})
	}
	w.deny("no policy and no profile allows it", droppedByDefault, nil)
}

// deny drops packets that reach it. Packets from host endpoints are evaluated at postrouting, too, where the kernel
// cannot answer.
func (w *listWriter) deny(comment string, why Reason, origin ruleset.Origin) {
	r := w.settings.deny(comment, why, w.purpose)
	r.Origin = origin
	if w.host && w.purpose == normalOut {
		r.Verdict.Action = ruleset.Drop
	}
	w.add(r)
}
