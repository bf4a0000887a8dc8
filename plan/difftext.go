package plan

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/table"
)

// WriteText writes the difference for people: "+" is new, "-" is deleted, "~" changes.
func (d Diff) WriteText(w io.Writer) error {
	var b strings.Builder
	// Names and selectors are texts of whoever may write objects.
	line := func(format string, args ...any) { table.Fprintf(&b, format+"\n", args...) }
	changed := func(fields []Field) {
		for _, f := range fields {
			line("      %s: %s -> %s", f.Field, valueText(f.From), valueText(f.To))
		}
	}
	line("Node %s:", d.Node)
	if len(d.Changed.Speaker) > 0 {
		line("  ~ speaker (restarts: all sessions are reset)")
		changed(d.Changed.Speaker)
	}
	for _, s := range d.Removed.Sessions {
		line("  - session %s", s.text())
	}
	for _, s := range d.Added.Sessions {
		line("  + session %s", s.text())
	}
	for _, s := range d.Changed.Sessions {
		line("  ~ session %s (%s)", s.Address, s.Effect)
		changed(s.Fields)
	}
	for _, c := range d.Removed.Conflicts {
		line("  - conflict %s: %s", c.Address, c.Reason)
	}
	for _, c := range d.Added.Conflicts {
		line("  + conflict %s: %s", c.Address, c.Reason)
	}
	for _, c := range d.Changed.Conflicts {
		line("  ~ conflict %s", c.Address)
		changed(c.Fields)
	}
	for _, o := range d.Removed.Originated {
		line("  - originated %s", o.text())
	}
	for _, o := range d.Added.Originated {
		line("  + originated %s", o.text())
	}
	for _, o := range d.Changed.Originated {
		line("  ~ originated %s", o.Prefix)
		changed(o.Fields)
	}
	for _, r := range d.Changed.Rules {
		line("  ~ %s", cmp.Or(ruleWords[r.Rule], r.Rule))
		for _, x := range r.Removed {
			line("      - %s", x)
		}
		for _, x := range r.Added {
			line("      + %s", x)
		}
	}
	for _, r := range d.Changed.Policy {
		line("  ~ policy: %s", r.Rule)
		for _, x := range few(r.Removed) {
			line("      - %s", x)
		}
		for _, x := range few(r.Added) {
			line("      + %s", x)
		}
	}
	for _, peer := range d.exportPeers() {
		line("  ~ exports to %s", peer)
		for _, p := range d.Removed.Exports[peer] {
			line("      - %s", p)
		}
		for _, p := range d.Added.Exports[peer] {
			line("      + %s", p)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ruleWords describe lists of the daemon.
var ruleWords = map[string]string{
	"exportPrefixes":   "learned routes inside these are passed on",
	"noExportPrefixes": "learned routes inside these are not passed on",
	"refusals":         "routes of peers that are refused",
	"noInstall":        "learned routes inside these are not for the kernel",
	"statics":          "kernel routes to peers",
}

func (d Diff) exportPeers() []string {
	peers := maps.Clone(d.Added.Exports)
	maps.Copy(peers, d.Removed.Exports)
	return slices.Sorted(maps.Keys(peers))
}

// text returns a session on one line.
func (s Session) text() string {
	role := "connects"
	if s.Passive {
		role = "waits"
	}
	t := fmt.Sprintf("%s port %d %s AS %d-%d %s", s.Address, s.Port, s.Type, s.LocalAS, s.PeerAS, role)
	if o := s.options(); len(o) > 0 {
		t += ", " + strings.Join(o, ", ")
	}
	return t + " from " + strings.Join(s.From, " ")
}

func (o Origin) text() string {
	return strings.TrimSpace(o.Prefix + " " + strings.Join(o.Communities, " "))
}

// valueText makes an empty value visible.
func valueText(v any) string {
	switch v := v.(type) {
	case string:
		if v == "" {
			return "none"
		}
	case []string:
		if len(v) == 0 {
			return "none"
		}
		return strings.Join(v, ", ")
	}
	return fmt.Sprint(v)
}

// few shortens long lists of addresses; -o json has all.
func few(list []string) []string {
	const most = 20
	if len(list) <= most {
		return list
	}
	return append(slices.Clone(list[:most]), fmt.Sprintf("and %d more", len(list)-most))
}
