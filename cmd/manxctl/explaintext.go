package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// writeExplanation writes an explanation for people: the ends, the decision of each stage, the path, and last the
// verdict.
func writeExplanation(w io.Writer, x *manxv1.Explanation) error {
	var b strings.Builder
	table.Fprintf(&b, "From %s\n  to %s\n  by %s\n", explainedEnd(x.GetSource()), explainedEnd(x.GetDestination()),
		x.GetFlow())
	for _, n := range x.GetNotes() {
		table.Fprintf(&b, "Note: %s\n", n)
	}
	for _, s := range x.GetStages() {
		explainStage(&b, s)
	}
	if len(x.GetRoutes()) > 0 {
		b.WriteString("\nRoute\n")
	}
	for _, r := range x.GetRoutes() {
		how := ""
		if r.GetInstalled() {
			how = " (in the kernel)"
		}
		if r.GetNote() != "" {
			how += ": " + r.GetNote()
		}
		table.Fprintf(&b, "  node %s: %s %s%s\n", orNone(r.GetNode()), r.GetPrefix(),
			withoutPrefix(r.GetNext(), r.GetPrefix()), how)
	}
	verdict := "DENIED"
	if x.GetAllowed() {
		verdict = "ALLOWED"
	}
	if x.GetBy() == "" {
		table.Fprintf(&b, "\n%s: no policy is about it\n", verdict)
	} else {
		table.Fprintf(&b, "\n%s by %s\n", verdict, x.GetBy())
	}
	for _, o := range x.GetOthers() {
		explainOther(&b, o)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// explainOther writes a line about a base chain of another program that drops the packet.
func explainOther(b *strings.Builder, o *manxv1.OtherDrop) {
	verdict := "BUT DROPPED"
	if !o.GetCertain() {
		verdict = "BUT PERHAPS DROPPED"
	}
	table.Fprintf(b, "%s at node %s by table %s, chain %s (hook %s, %s), which is another program's\n", verdict,
		o.GetNode(), o.GetTable(), o.GetChain(), o.GetHook(), o.GetBy())
	for _, e := range o.GetExcept() {
		table.Fprintf(b, "  unless this rule before it accepts the packet: %s\n", e)
	}
}

func explainedEnd(e *manxv1.ExplainedEnd) string {
	switch e.GetKind() {
	case "outside":
		return e.GetAddress() + " (outside the cluster)"
	case "host":
		return fmt.Sprintf("node %s (%s)", e.GetName(), e.GetAddress())
	}
	return fmt.Sprintf("%s %s (%s, node %s, interface %s)", e.GetKind(), e.GetName(), e.GetAddress(),
		orNone(e.GetNode()), e.GetInterface())
}

func explainStage(b *strings.Builder, s *manxv1.ExplainedStage) {
	how := "computed"
	if s.GetProgrammed() {
		how = "as programmed"
	}
	direction := strings.ToUpper(s.GetDirection()[:1]) + s.GetDirection()[1:]
	table.Fprintf(b, "\n%s of %s at node %s (%s)", direction, s.GetAbout(), orNone(s.GetNode()), how)
	if !s.GetReached() {
		b.WriteString(", which the packet does not reach")
	}
	b.WriteByte('\n')
	for _, line := range s.GetBefore() {
		table.Fprintf(b, "  %s\n", line)
	}
	for _, t := range s.GetTiers() {
		if t.GetName() == "" {
			b.WriteString("  profiles\n")
		} else {
			table.Fprintf(b, "  tier %s (order %s, default action %s)\n", t.GetName(), t.GetOrder(),
				t.GetDefaultAction())
		}
		for _, p := range t.GetPolicies() {
			explainPolicy(b, p)
		}
		if t.GetEnd() != "" {
			table.Fprintf(b, "    end: %s\n", t.GetEnd())
		}
	}
	verdict := "denied"
	if s.GetAllowed() {
		verdict = "allowed"
	}
	if s.GetBy() == "" {
		table.Fprintf(b, "  => %s\n", verdict)
		return
	}
	table.Fprintf(b, "  => %s by %s\n", verdict, s.GetBy())
}

func explainPolicy(b *strings.Builder, p *manxv1.ExplainedPolicy) {
	table.Fprintf(b, "    %s", p.GetName())
	if p.GetOrder() != "" {
		table.Fprintf(b, " (order %s)", p.GetOrder())
	}
	if p.GetStaged() {
		b.WriteString(" [staged]")
	}
	decision := p.GetDecision()
	if decision == "" {
		decision = "decides nothing"
	}
	table.Fprintf(b, ": %s\n", decision)
	for _, r := range p.GetRules() {
		if r.GetMatches() {
			table.Fprintf(b, "      %d. %s: matches\n", r.GetNumber(), r.GetText())
		} else {
			table.Fprintf(b, "      %d. %s: no, %s\n", r.GetNumber(), r.GetText(), r.GetWhy())
		}
	}
	if len(p.GetRules()) == 0 && p.GetDecision() == "" {
		b.WriteString("      (no rules in this direction)\n")
	}
}
