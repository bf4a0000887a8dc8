package hostfirewall

import "fmt"

// Bounds of an evaluation, so that no table of another program costs much. The kernel allows 16 jumps.
const (
	mostSteps = 20_000
	mostJumps = 16
	mostNamed = 3 // rules in one outcome
)

// place is a rule of a chain; without a rule it is the policy of the base chain.
type place struct {
	chain string
	rule  *Rule
	// unread: it is not known whether the rule is about the packets.
	unread bool
}

// outcome is the result of a base chain for packets that are alike.
type outcome struct {
	// drops: the base chain drops the packets that no rule in excepted accepts.
	drops    bool
	by       place
	excepted []place // rules before that accept some of them, or may do so
	doubt    bool    // one of those may accept all of them
	mayDrop  []place // rules that drop some of them, or may do so
	problem  string  // why nothing can be said; empty if something can
}

// walk evaluates one base chain.
type walk struct {
	table  *Table
	packet *Packet
	steps  int
	outcome
}

// evaluate returns what a base chain does with packets. Rules that are about some of the packets, and those with
// conditions that cannot be read, do not decide: they are named in the outcome.
func evaluate(t *Table, base *Chain, p *Packet) outcome {
	w := walk{table: t, packet: p}
	switch w.chain(base, all, 0) {
	case Drop:
		w.drops = true
	case Accept:
	default:
		w.drops, w.by = base.Base.Drop, place{chain: base.Name}
	}
	if w.problem != "" {
		return outcome{problem: w.problem}
	}
	return w.outcome
}

// chain evaluates the rules of a chain for packets that come there, of which reach tells how many. It returns Accept or
// Drop if that is what becomes of all that came, and Return at the end.
func (w *walk) chain(c *Chain, reach fit, jumps int) Verdict {
	switch {
	case c == nil:
		w.problem = "a chain is missing"
	case c.Unread != "":
		w.problem = fmt.Sprintf("chain %s was %s", quote(c.Name), c.Unread)
	case jumps > mostJumps:
		w.problem = fmt.Sprintf("more than %d jumps", mostJumps)
	}
	if w.problem != "" {
		return Accept
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		if w.steps++; w.steps > mostSteps {
			w.problem = fmt.Sprintf("a packet meets more than %d rules", mostSteps)
		}
		if w.problem != "" {
			return Accept
		}
		about := r.of(w.packet)
		if about == none || r.Verdict == Continue {
			continue
		}
		if v := w.rule(place{chain: c.Name, rule: r}, about, min(reach, about), jumps); v != Continue {
			return v
		}
	}
	return Return
}

// rule applies a rule that is about packets of the chain; of those that came to the hook, reach tells how many it gets.
func (w *walk) rule(at place, about, reach fit, jumps int) Verdict {
	r := at.rule
	at.unread = reach == unknown || r.Verdict == Unreadable
	switch r.Verdict {
	case Accept, Return, Unreadable:
		if about == all && r.Verdict != Unreadable {
			if reach != all && r.Verdict == Accept {
				w.except(at)
			}
			return r.Verdict
		}
		w.except(at)
	case Drop:
		if reach == all {
			w.by = at
			return Drop
		}
		name(&w.mayDrop, at)
		if about == all {
			return Drop
		}
	case Jump, Goto:
		v := w.chain(w.table.Chains[r.Target], reach, jumps+1)
		if about == all && (v == Accept || v == Drop || r.Verdict == Goto) {
			return v
		}
	}
	return Continue
}

// except records a rule that accepts some packets, or may do so.
func (w *walk) except(p place) {
	w.doubt = w.doubt || p.unread
	name(&w.excepted, p)
}

// name adds a rule to those that an outcome names.
func name(list *[]place, p place) {
	if len(*list) < mostNamed {
		*list = append(*list, p)
	}
}
