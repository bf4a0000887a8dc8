package flowtrace

import (
	"fmt"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// Verdict reports whether a packet fared as explained.
type Verdict string

const (
	// Agrees: each stage of this node decided as explained, by the same rule, and the packet went where that leads.
	Agrees Verdict = "agrees"
	// Differs: the packet contradicts the explanation.
	Differs Verdict = "differs"
	// Undecided: the packet gives no evidence about the explanation.
	Undecided Verdict = "undecided"
)

// Compare compares the trace of a packet on a node with the explanation of the same packet, and returns the reasons of
// its verdict.
func Compare(p *Packet, a *explain.Answer, node string) (Verdict, []string) {
	switch {
	case p.Incomplete:
		return Undecided, []string{"the kernel had too much to report: some steps of the packet were lost"}
	case p.Connection == nftables.StateInvalid:
		return Undecided, []string{"connection tracking knows no connection that it belongs to, nor does it begin " +
			"one (it is out of place or damaged), and it was " + p.End.Text}
	case p.known() && p.End.Kind != Dropped:
		return Undecided, []string{"it belongs to a connection that was already known, for which policy is not " +
			"evaluated again; open a new one"}
	case p.known() && a.Allowed:
		return Differs, []string{"it belongs to a connection that was already known, and yet it was " + p.End.Text}
	case p.known():
		return Undecided, []string{"it belongs to a connection that was already known, and was " + p.End.Text}
	}
	c := comparison{packet: p, node: node}
	for _, s := range a.Stages {
		switch {
		case s.Node == node:
			c.stage(s)
		case !s.Allowed && s.Reached && c.before(a, s):
			return Differs, []string{fmt.Sprintf("it should have been dropped at node %s by %s, and came here", s.Node,
				s.By)}
		}
	}
	c.others()
	c.end()
	if len(c.differences) > 0 {
		return Differs, c.differences
	}
	return Agrees, nil
}

type comparison struct {
	packet      *Packet
	node        string
	explained   []string // base chains
	denied      bool     // as explained, at this node
	differences []string
}

func (c *comparison) differ(format string, args ...any) {
	c.differences = append(c.differences, fmt.Sprintf(format, args...))
}

// before reports whether the packet comes to a stage of another node before it comes to this one.
func (c *comparison) before(a *explain.Answer, s explain.Stage) bool {
	at := func(node string) int {
		return slices.IndexFunc(a.Hops, func(h explain.Hop) bool { return h.Node == node })
	}
	return at(s.Node) < at(c.node)
}

// stage compares one stage of this node. The packet may be lost before it comes there: end reports that.
func (c *comparison) stage(s explain.Stage) {
	if !s.Reached || s.Hook == ruleset.Prerouting && c.packet.translated() { // that stage evaluated the address before
		return
	}
	c.explained = append(c.explained, s.Base)
	c.denied = c.denied || !s.Allowed
	i := slices.IndexFunc(c.packet.Chains, func(x Chain) bool { return x.manx() && x.Name == s.Base })
	if i < 0 {
		if c.packet.Late && (s.Hook == ruleset.Prerouting || s.Hook == ruleset.Output) {
			return // the packet may have been there before it was traced
		}
		if c.packet.End.passed() || !s.Allowed && c.packet.End.Kind == Taken {
			c.differ("%s of %s was not evaluated (chain %s), which should have %s it", s.Direction, s.About, s.Base,
				verdictOf(s))
		}
		return
	}
	chain := &c.packet.Chains[i]
	did := "allowed"
	if chain.dropped() {
		did = "denied"
	}
	by := chain.By()
	if by == "" {
		by = "no rule"
	}
	switch {
	case chain.dropped() == s.Allowed:
		c.differ("%s of %s: %s by %s, which should have been %s by %s", s.Direction, s.About, did, by, verdictOf(s),
			orNoRule(s.By))
	case chain.last().Rule.ID != s.Rule:
		c.differ("%s of %s: %s by another rule, %s, not by %s", s.Direction, s.About, did, by, orNoRule(s.By))
	}
}

func verdictOf(s explain.Stage) string {
	if s.Allowed {
		return "allowed"
	}
	return "denied"
}

func orNoRule(by string) string {
	if by == "" {
		return "no rule"
	}
	return by
}

// others checks chains in which nothing should have happened.
func (c *comparison) others() {
	for i := range c.packet.Chains {
		x := &c.packet.Chains[i]
		switch {
		case !x.dropped() || x.manx() && slices.Contains(c.explained, x.Name):
		case x.manx():
			c.differ("dropped by %s (chain %s), which should not have been", x.By(), x.Name)
		case c.denied:
			c.differ("dropped by %s, before policy could deny it", x.By())
		default:
			c.differ("policy allows it, but it was dropped by %s", x.By())
		}
	}
}

// end checks packets that vanished although nothing drops them.
func (c *comparison) end() {
	if k := c.packet.End.Kind; !c.denied && (k == Vanished || k == Taken) {
		c.differ("policy allows it, but it was %s", c.packet.End.Text)
	} else if c.denied && k == Vanished {
		c.differ("it was %s, before policy could deny it", c.packet.End.Text)
	}
}
