package ruleset

import (
	"cmp"
	"slices"
	"strings"
)

// order is the kernel's place of a base chain. The kernel's address translation has a place of its own at each hook, at
// which it evaluates all NAT chains, of whatever priority: that only orders them among each other.
func (b Base) order() int32 {
	switch {
	case b.Type != NAT:
		return b.Priority
	case b.Hook == Prerouting || b.Hook == Output:
		return -100
	}
	return 100
}

// compareBases orders the base chains of one hook. The kernel leaves open which of two with the same priority comes
// first.
func compareBases(a, b *Chain) int {
	return cmp.Or(cmp.Compare(a.Base.order(), b.Base.order()), cmp.Compare(a.Base.Type, b.Base.Type),
		cmp.Compare(a.Base.Priority, b.Base.Priority), strings.Compare(a.Name, b.Name))
}

func (t *Table) hook(c *Chain) {
	if c.Base != nil {
		list := &t.hooked[c.Base.Hook]
		i, _ := slices.BinarySearchFunc(*list, c, compareBases)
		*list = slices.Insert(*list, i, c)
	}
}

func (t *Table) unhook(c *Chain) {
	if c != nil && c.Base != nil {
		list := &t.hooked[c.Base.Hook]
		*list = slices.DeleteFunc(*list, func(o *Chain) bool { return o == c })
	}
}
