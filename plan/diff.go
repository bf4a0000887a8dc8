package plan

import (
	"maps"
	"reflect"
	"slices"

	"github.com/manxnet/manx/bgp"
)

// Diff is the difference of two plans for one node: objects of the later only, of the earlier only, and changed ones.
// Its JSON form is stable.
type Diff struct {
	Node    string  `json:"node"`
	Added   Part    `json:"added"`
	Removed Part    `json:"removed"`
	Changed Changed `json:"changed"`
}

// Part is a part of a plan.
type Part struct {
	Sessions   []Session           `json:"sessions"`
	Conflicts  []Conflict          `json:"conflicts"`
	Originated []Origin            `json:"originated"`
	Exports    map[string][]string `json:"exports"` // only peers with a difference
}

// Changed has the objects of both plans that differ.
type Changed struct {
	// Speaker are the changes of the speaker itself; any of them restarts all sessions.
	Speaker    []Field          `json:"speaker"`
	Sessions   []SessionChange  `json:"sessions"`
	Conflicts  []ConflictChange `json:"conflicts"`
	Originated []OriginChange   `json:"originated"`
	// Rules are the changes of the rules for learned routes, which are not part of a plan.
	Rules []RuleChange `json:"rules"`
	// Policy are the changes of the node's packet filter: policies of endpoints, rules of policies, members of
	// selectors.
	Policy []RuleChange `json:"policy,omitempty"`
}

// Field is a value that changes.
type Field struct {
	Field string `json:"field"`
	From  any    `json:"from"`
	To    any    `json:"to"`
}

// SessionChange is a session that changes.
type SessionChange struct {
	Address string  `json:"address"`
	Resets  bool    `json:"resets"` // the session goes down and comes back
	Effect  string  `json:"effect"` // as text
	Fields  []Field `json:"fields"`
}

// ConflictChange is a changed outcome of a conflict.
type ConflictChange struct {
	Address string  `json:"address"`
	Fields  []Field `json:"fields"`
}

// OriginChange is a changed prefix of both plans.
type OriginChange struct {
	Prefix string  `json:"prefix"`
	Fields []Field `json:"fields"`
}

// RuleChange is a changed list: a filter, the pools whose learned routes are passed on, static routes.
type RuleChange struct {
	Rule    string   `json:"rule"`
	Added   []string `json:"added"`
	Removed []string `json:"removed"`
}

// Empty reports whether the plans are equal.
func (d Diff) Empty() bool {
	return reflect.DeepEqual(d, newDiff(d.Node))
}

func newDiff(node string) Diff {
	part := func() Part {
		return Part{Sessions: []Session{}, Conflicts: []Conflict{}, Originated: []Origin{},
			Exports: map[string][]string{}}
	}
	return Diff{Node: node, Added: part(), Removed: part(), Changed: Changed{
		Speaker: []Field{}, Sessions: []SessionChange{}, Conflicts: []ConflictChange{}, Originated: []OriginChange{},
		Rules: []RuleChange{},
	}}
}

// Compare returns the difference between two states of a node.
func Compare(node string, from, to bgp.Desired) Diff {
	d := newDiff(node)
	a, b := New(node, from).BGP, New(node, to).BGP
	d.speaker(from.Global, to.Global)
	d.sessions(from, to)
	removedConflicts, addedConflicts := pair(a.Conflicts, b.Conflicts, func(c Conflict) string { return c.Address },
		func(x, y Conflict) {
			if f := fields(x, y); len(f) > 0 {
				d.Changed.Conflicts = append(d.Changed.Conflicts, ConflictChange{x.Address, f})
			}
		})
	d.Removed.Conflicts = append(d.Removed.Conflicts, removedConflicts...)
	d.Added.Conflicts = append(d.Added.Conflicts, addedConflicts...)
	more := map[string][]Field{}
	pair(from.Originated, to.Originated, func(o bgp.Origin) string { return o.Prefix.String() },
		func(x, y bgp.Origin) { more[x.Prefix.String()] = unshown(x, y, shownOfOrigin) })
	removed, added := pair(a.Originated, b.Originated, func(o Origin) string { return o.Prefix },
		func(x, y Origin) {
			if f := append(fields(x, y), more[x.Prefix]...); len(f) > 0 {
				d.Changed.Originated = append(d.Changed.Originated, OriginChange{x.Prefix, f})
			}
		})
	d.Removed.Originated = append(d.Removed.Originated, removed...)
	d.Added.Originated = append(d.Added.Originated, added...)
	exportDiff(a.Exports, b.Exports, d.Removed.Exports)
	exportDiff(b.Exports, a.Exports, d.Added.Exports)
	d.rules(from, to)
	return d
}

// pair returns the elements of only one of two lists, and calls both with the elements of both.
func pair[T any](from, to []T, key func(T) string, both func(x, y T)) (removed, added []T) {
	index := func(list []T) map[string]T {
		m := map[string]T{}
		for _, x := range list {
			m[key(x)] = x
		}
		return m
	}
	before, after := index(from), index(to)
	for _, x := range from {
		if y, ok := after[key(x)]; ok {
			both(x, y)
		} else {
			removed = append(removed, x)
		}
	}
	for _, y := range to {
		if _, ok := before[key(y)]; !ok {
			added = append(added, y)
		}
	}
	return removed, added
}

// exportDiff adds the elements of a that are not in b to into.
func exportDiff(a, b, into map[string][]string) {
	for peer, list := range a {
		for _, p := range list {
			if !slices.Contains(b[peer], p) {
				into[peer] = append(into[peer], p)
			}
		}
	}
}

// fields compares two structs by their fields in JSON.
func fields(from, to any) []Field {
	list := []Field{}
	a, b := reflect.ValueOf(from), reflect.ValueOf(to)
	for i := range a.NumField() {
		x, y := a.Field(i).Interface(), b.Field(i).Interface()
		if !reflect.DeepEqual(x, y) {
			list = append(list, Field{a.Type().Field(i).Tag.Get("json"), x, y})
		}
	}
	return list
}

func (d *Diff) speaker(from, to bgp.Global) {
	type speaker struct {
		LocalAS         uint32   `json:"localAS"`
		RouterID        string   `json:"routerID"`
		ListenPort      uint16   `json:"listenPort"`
		ListenAddresses []string `json:"listenAddresses"`
	}
	show := func(g bgp.Global) speaker {
		s := speaker{g.LocalAS, addrText(g.RouterID), g.ListenPort, []string{}}
		for _, a := range g.ListenAddresses {
			s.ListenAddresses = append(s.ListenAddresses, a.String())
		}
		return s
	}
	d.Changed.Speaker = fields(show(from), show(to))
}

func (d *Diff) sessions(from, to bgp.Desired) {
	restart := !from.Global.Equal(to.Global)
	removed, added := pair(from.Sessions, to.Sessions, func(s bgp.Session) string { return s.Address.String() },
		func(x, y bgp.Session) {
			f := append(fields(newSession(x), newSession(y)), unshown(x, y, shownOfSession)...)
			if x.Password != y.Password && x.PasswordFrom == y.PasswordFrom {
				f = append(f, Field{"password", x.PasswordFrom, "another one"})
			}
			if len(f) == 0 {
				return
			}
			change := bgp.CompareSessions(x, y)
			c := SessionChange{Address: x.Address.String(), Resets: change.Resets() || restart, Effect: effect(change),
				Fields: f}
			if restart {
				c.Effect = "resets the session: the speaker restarts"
			}
			d.Changed.Sessions = append(d.Changed.Sessions, c)
		})
	for _, s := range removed {
		d.Removed.Sessions = append(d.Removed.Sessions, newSession(s))
	}
	for _, s := range added {
		d.Added.Sessions = append(d.Added.Sessions, newSession(s))
	}
}

func effect(c bgp.SessionChange) string {
	switch c {
	case bgp.ChangeNone:
		return "no reset"
	case bgp.ChangeDefer:
		return "no reset; timers change when the session next comes up"
	}
	return "resets the session"
}

// rules compares the rules for routes of other speakers.
func (d *Diff) rules(from, to bgp.Desired) {
	d.Changed.Rules = append(d.Changed.Rules, ruleChanges(ruleTexts(from), ruleTexts(to))...)
}

// ruleChanges compares rules as text: lists of lines by name.
func ruleChanges(from, to map[string][]string) (changes []RuleChange) {
	names := maps.Clone(from)
	maps.Copy(names, to)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, b := from[name], to[name]
		c := RuleChange{Rule: name, Added: without(b, a), Removed: without(a, b)}
		if len(c.Added)+len(c.Removed) == 0 && !slices.Equal(a, b) {
			c.Added, c.Removed = b, a // another order
		}
		if len(c.Added)+len(c.Removed) > 0 {
			changes = append(changes, c)
		}
	}
	return changes
}

func without(list, other []string) []string {
	return slices.DeleteFunc(texts(list), func(s string) bool { return slices.Contains(other, s) })
}
