package nft

import (
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// Status is the state of the table, with counts of the work on it.
type Status struct {
	InSync    bool      // the kernel has the table as desired, as far as is known
	Since     time.Time // when InSync last changed
	LastError string    // of the last attempt as a whole; empty if that succeeded, with or without refused units
	Refused   []Refused // in order of their objects

	// Sizes of the desired table.
	Chains, Rules, Sets, Elements, Entries int

	Transactions       uint64 // that the kernel accepted
	FailedTransactions uint64 // others, including the tries that search for refused units
	Resyncs            uint64 // comparisons with the whole table in the kernel
	DriftRepairs       uint64 // objects brought back that others had changed
	LastCommit         time.Duration
}

// Refused is something that the kernel does not accept. Until it does, or the content changes, the object is replaced.
type Refused struct {
	Object  string // such as "chain pi/NetworkPolicy/default/web"
	Comment string // the owner, from the comment of the first rule or of the set
	Reason  string
	Since   time.Time
}

// Status returns the state of the table. It visits all chains and sets.
func (g *Target) Status() Status {
	s := g.status
	s.Refused = g.refusals()
	if g.table != nil {
		s.measure(g.table)
	}
	return s
}

// Failing is the number of things that the kernel does not have as desired because something failed, and the reason of
// one.
func (g *Target) Failing() (n int, reason string) {
	if n = len(g.refused); n > 0 {
		r := g.refusals()[0]
		reason = r.Object + ": " + r.Reason
	}
	if g.status.LastError != "" {
		n, reason = n+1, g.status.LastError
	}
	return n, reason
}

func (s *Status) measure(t *ruleset.Table) {
	chains, sets := t.Chains(), t.Sets()
	s.Chains, s.Sets = len(chains), len(sets)
	for _, name := range chains {
		s.Rules += len(t.Chain(name).Rules)
	}
	for _, name := range sets {
		_, n, _ := t.Set(name)
		s.Elements += n
	}
	for _, name := range t.Maps() {
		for range t.Verdicts(name) {
			s.Entries++
		}
	}
}

func (g *Target) refusals() []Refused {
	var list []Refused
	for u, r := range g.refused {
		list = append(list, Refused{u.String(), g.comment(u), r.reason, r.since})
	}
	for name, by := range g.users {
		u, r := unit{chain, name}, g.refused[unit{set, by}]
		if g.refused[u] == nil && r != nil {
			list = append(list, Refused{u.String(), g.comment(u), "it names set " + by + ", which was refused: " +
				r.reason, r.since})
		}
	}
	slices.SortFunc(list, func(a, b Refused) int { return strings.Compare(a.Object, b.Object) })
	return list
}

func (g *Target) comment(u unit) string {
	switch u.kind {
	case chain:
		if c := g.table.Chain(u.name); c != nil && len(c.Rules) > 0 {
			return c.Rules[0].Comment
		}
	case set:
		s, _, _ := g.table.Set(u.name)
		return s.Comment
	}
	return ""
}
