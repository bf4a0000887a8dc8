package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/table"
)

// WriteText writes a line for each node that changes, how pools change their mode, and the totals.
func (s Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, n := range s.Nodes {
		table.Fprintf(&b, "%s: %s\n", n.Node, strings.Join(n.effects(), "; "))
	}
	for _, c := range s.Modes {
		for line := range strings.Lines(c.text()) {
			table.Fprintf(&b, "%s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	t := s.Totals
	fmt.Fprintf(&b, "%s, %d changed: %s reset, %d new, %d removed; %s changed, on %s; %s withdrawn, %d announced\n",
		counted(t.Nodes, "node", "nodes"), t.NodesChanged, counted(t.SessionsReset, "session", "sessions"),
		t.SessionsAdded, t.SessionsRemoved, counted(t.PoliciesChanged, "policy", "policies"),
		counted(t.PolicyNodes, "node", "nodes"),
		counted(t.RoutesWithdrawn, "route", "routes"), t.RoutesAnnounced)
	_, err := io.WriteString(w, b.String())
	return err
}

// effects returns the effects on a node, the worst first.
func (n NodeSummary) effects() (list []string) {
	switch {
	case n.New:
		list = append(list, "new node")
	case n.Gone:
		list = append(list, "no node any more")
	case n.SpeakerRestarts:
		list = append(list, "the speaker restarts")
	}
	add := func(names []string, one, many, what string) {
		if len(names) > 0 {
			list = append(list, fmt.Sprintf("%s %s (%s)", counted(len(names), one, many), what, named(names)))
		}
	}
	add(n.SessionsReset, "session", "sessions", "reset")
	add(n.SessionsRemoved, "session", "sessions", "removed")
	add(n.RoutesWithdrawn, "route", "routes", "withdrawn")
	add(n.PoliciesChanged, "policy", "policies", "changed")
	add(n.SelectorsChanged, "selector", "selectors", "with other members")
	add(n.SessionsAdded, "session", "sessions", "new")
	add(n.SessionsChanged, "session", "sessions", "changed without a reset")
	add(n.RoutesAnnounced, "route", "routes", "announced")
	if n.OtherChanges > 0 {
		list = append(list, counted(n.OtherChanges, "other change", "other changes"))
	}
	return list
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// named joins the first names of a list; -o json has all.
func named(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
