package policy

import (
	"fmt"
	"strings"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// literals are the sets with the networks and ports that rules spell out. All who need the same content share a set.
type literals struct {
	table  *ruleset.Table
	users  map[string]int // policies, by the name of the set
	unused dirty[string]
}

// use makes a set for a policy, and returns its name, which begins with prefix.
func (l *literals) use(
	user *policyState, prefix string, kind ruleset.SetType, elements []ruleset.Element, comment string,
) string {
	var text strings.Builder
	for _, e := range elements {
		fmt.Fprintln(&text, e.Prefix, e.Protocol, e.Low, e.High)
	}
	name := prefix + "/" + shortHash(text.String())
	if !user.literals[name] {
		user.literals[name] = true
		l.users[name]++
	}
	if _, _, ok := l.table.Set(name); ok {
		return name
	}
	l.table.AddSet(ruleset.Set{Name: name, Type: kind, Interval: true, Comment: comment, Origin: LiteralSet})
	for _, e := range elements {
		l.table.AddElement(name, e)
	}
	return name
}

// release ends the use of sets.
func (l *literals) release(names map[string]bool) {
	for name := range names {
		if l.users[name]--; l.users[name] == 0 {
			l.unused.add(name)
		}
	}
}

// collect removes unused sets.
func (l *literals) collect() {
	for name := range l.unused {
		if l.users[name] == 0 {
			delete(l.users, name)
			l.table.DeleteSet(name)
		}
	}
	l.unused = nil
}
