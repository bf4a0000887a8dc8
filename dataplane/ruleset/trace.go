package ruleset

import (
	"fmt"
	"strings"
)

// Trace collects the way of a packet through the rules. A nil Trace collects nothing and costs nothing.
type Trace struct{ Steps []Step }

// Step is one rule that was evaluated, or the end of a base chain.
type Step struct {
	Hook      Hook
	Base      string // the base chain
	Chain     string
	Depth     int   // how many jumps deep
	Rule      int   // counts from 1; 0 for the end of the base chain, which accepts
	Evaluated *Rule // nil at the end
	Matched   bool
	Failed    *Match  // the first condition that did not hold; nil if the limit was not exceeded
	Verdict   Verdict // the rule's verdict, of a Lookup that of the map
}

func (tr *Trace) failed(r *run, rule *Rule, m *Match) {
	if tr != nil {
		tr.add(r, Step{Evaluated: rule, Rule: r.rule, Failed: m})
	}
}

func (tr *Trace) matched(r *run, rule *Rule, v Verdict) {
	if tr != nil {
		tr.add(r, Step{Evaluated: rule, Rule: r.rule, Matched: true, Verdict: v})
	}
}

func (tr *Trace) end(r *run) {
	if tr != nil {
		tr.add(r, Step{Matched: true, Verdict: Verdict{Action: Accept}})
	}
}

func (tr *Trace) add(r *run, s Step) {
	s.Hook, s.Base, s.Chain, s.Depth = r.hook, r.first.Name, r.chain.Name, r.depth
	tr.Steps = append(tr.Steps, s)
}

// String renders one line for each step, indented by depth: chain, number of the rule, then its effect if it matched,
// else the condition that did not hold.
func (tr *Trace) String() string {
	if tr == nil {
		return ""
	}
	var b strings.Builder
	base, hook := "", Hook(0)
	for _, s := range tr.Steps {
		if s.Base != base || s.Hook != hook {
			base, hook = s.Base, s.Hook
			fmt.Fprintf(&b, "%s, chain %s:\n", hook, printable(base))
		}
		b.WriteString(strings.Repeat("  ", s.Depth+1))
		b.WriteString(s.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// String renders one step without indentation.
func (s Step) String() string {
	if s.Evaluated == nil {
		return "accept: the end of " + printable(s.Base)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d", printable(s.Chain), s.Rule)
	if c := s.Evaluated.Comment; c != "" {
		fmt.Fprintf(&b, " (%s)", clean(c))
	}
	context := contextOf(s.Evaluated)
	switch {
	case s.Matched:
		effects := s.Evaluated.effects()
		if s.Evaluated.Verdict.Action == Lookup && s.Verdict.Action != Continue {
			effects = append(effects, "which is", s.Verdict.text())
		} else if s.Evaluated.Verdict.Action == Lookup {
			effects = append(effects, "which has none")
		}
		if len(effects) == 0 {
			effects = []string{"continue"}
		}
		b.WriteString(": " + strings.Join(effects, " "))
	case s.Failed == nil:
		b.WriteString(": no, not " + s.Evaluated.Over.text())
	default:
		b.WriteString(": no, not " + s.Failed.text(context))
	}
	return b.String()
}
