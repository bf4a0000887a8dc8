package hostfirewall

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Dropped is a base chain of another program that drops packets.
type Dropped struct {
	Table, Chain string // for people: "ip filter", "FORWARD"
	Hook         string
	By           string // "policy drop", or the rule
	// Certain is false if a rule before it that cannot be read may accept the packets.
	Certain bool
	// Except are the rules before that accept some of the packets, or may do so.
	Except []string
}

// Judge returns the base chains that drop packets on their way through this host, in the order of their hooks: all of
// these packets, or those that no rule before accepts. mayDrop names rules that drop some of the packets, or that may
// do so, since their conditions cannot be read; and chains of which nothing can be said.
func Judge(tables []*Table, p Packet) (dropped []Dropped, mayDrop []string) {
	for _, hook := range hooks(p) {
		for _, b := range basesAt(tables, hook, p) {
			at := p.at(hook, b.chain.Base.Priority)
			o := evaluate(b.table, b.chain, &at)
			where := fmt.Sprintf("table %s, chain %s", b.table.title(), quote(b.chain.Name))
			if o.problem != "" {
				mayDrop = append(mayDrop, where+" cannot be evaluated: "+o.problem)
				continue
			}
			if o.drops {
				dropped = append(dropped, Dropped{Table: b.table.title(), Chain: quote(b.chain.Name), Hook: hook,
					By: o.by.text(), Certain: !o.doubt, Except: texts(o.excepted)})
				continue
			}
			for _, r := range o.mayDrop {
				mayDrop = append(mayDrop, where+" may drop it: "+r.text())
			}
		}
	}
	return dropped, mayDrop
}

// hooks are those that packets pass, in order.
func hooks(p Packet) []string {
	in, out := p.In != Interface{}, p.Out != Interface{}
	switch {
	case in && out:
		return []string{"prerouting", "forward", "postrouting"}
	case in:
		return []string{"prerouting", "input"}
	}
	return []string{"output", "postrouting"}
}

// at returns the packets as they are at a hook.
func (p Packet) at(hook string, priority int32) Packet {
	const tracking = -200 // connection tracking
	switch hook {
	case "prerouting", "input":
		p.Out = Interface{}
	case "output":
		p.In = Interface{}
	}
	if priority < tracking && (hook == "prerouting" || hook == "output") {
		p.State = stateInvalid
	}
	return p
}

type based struct {
	table *Table
	chain *Chain
}

// basesAt are the base chains of a hook for the family of the packets, in the order of their priority.
func basesAt(tables []*Table, hook string, p Packet) (list []based) {
	family := "ip"
	if p.Source.Addr().Is6() {
		family = "ip6"
	}
	for _, t := range tables {
		if t.Family != "inet" && t.Family != family {
			continue
		}
		for _, c := range t.Chains {
			if c.Base != nil && c.Base.Hook == hook {
				list = append(list, based{t, c})
			}
		}
	}
	slices.SortFunc(list, func(a, b based) int {
		return cmp.Or(cmp.Compare(a.chain.Base.Priority, b.chain.Base.Priority),
			strings.Compare(a.table.title(), b.table.title()), strings.Compare(a.chain.Name, b.chain.Name))
	})
	return list
}
