package kernel

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// CommitRules implements Rules.
func (n *NFT) CommitRules(c ruleset.Changes) error {
	if c.Empty() {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	conn, err := n.conn()
	if err != nil {
		return classify("open nftables", err)
	}
	b := batch{conn: conn, table: conn.AddTable(table())}
	if err := b.fill(c); err != nil {
		return err
	}
	return classify("commit rules", conn.Flush())
}

// batch puts changes in the order in which the kernel takes them: it looks at one after the other, as if each had been made
// already, so that what is named must be there and what goes must not be named any more.
type batch struct {
	conn  *nftables.Conn
	table *nftables.Table
}

func (b *batch) fill(c ruleset.Changes) error {
	b.empty(c)
	if err := b.removeElements(c); err != nil {
		return err
	}
	for _, ch := range c.Chains {
		if ch.Old != nil && (ch.New == nil || moved(ch)) {
			b.conn.DelChain(&nftables.Chain{Table: b.table, Name: ch.Name})
		}
	}
	if err := b.addSets(c); err != nil {
		return err
	}
	for _, ch := range c.Chains {
		if ch.New != nil && (ch.Old == nil || moved(ch)) {
			b.conn.AddChain(b.chain(ch.New))
		}
	}
	for _, ch := range c.Chains {
		if err := b.addRules(ch.New); err != nil {
			return err
		}
	}
	return b.addEntries(c)
}

// moved: a chain's hook cannot be changed, so it has to be made anew.
func moved(ch ruleset.ChainChange) bool {
	if (ch.Old.Base == nil) != (ch.New.Base == nil) {
		return true
	}
	return ch.Old.Base != nil && *ch.Old.Base != *ch.New.Base
}

// empty takes the rules out of all chains that change or go, and with them what they name.
func (b *batch) empty(c ruleset.Changes) {
	for _, ch := range c.Chains {
		if ch.Old != nil {
			b.conn.FlushChain(&nftables.Chain{Table: b.table, Name: ch.Name})
		}
	}
}

func (b *batch) removeElements(c ruleset.Changes) error {
	for _, m := range c.Maps {
		if m.Deleted {
			b.conn.DelSet(&nftables.Set{Table: b.table, Name: m.Name})
			continue
		}
		if err := b.each(encodeMap(m.Name), entries(m.Remove), b.conn.SetDeleteElements); err != nil {
			return err
		}
	}
	for _, s := range c.Sets {
		if s.Deleted {
			b.conn.DelSet(&nftables.Set{Table: b.table, Name: s.Name})
			continue
		}
		if err := b.each(encodeSet(s.Set), elements(s.Set, s.Remove), b.conn.SetDeleteElements); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) addSets(c ruleset.Changes) error {
	for _, s := range c.Sets {
		if s.Deleted && !s.Created {
			continue
		}
		set := encodeSet(s.Set)
		if s.Created {
			if err := b.conn.AddSet(set, nil); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
		if err := b.each(set, elements(s.Set, s.Add), b.conn.SetAddElements); err != nil {
			return err
		}
	}
	for _, m := range c.Maps {
		if m.Created {
			if err := b.conn.AddSet(encodeMap(m.Name), nil); err != nil {
				return fmt.Errorf("map %s: %w", m.Name, err)
			}
		}
	}
	return nil
}

func (b *batch) addEntries(c ruleset.Changes) error {
	for _, m := range c.Maps {
		if err := b.each(encodeMap(m.Name), entries(m.Add), b.conn.SetAddElements); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) chain(c *ruleset.Chain) *nftables.Chain {
	chain := &nftables.Chain{Table: b.table, Name: c.Name}
	if c.Base != nil {
		accept := nftables.ChainPolicyAccept
		chain.Type, chain.Hooknum, chain.Policy = chainTypes[c.Base.Type], hooks[c.Base.Hook], &accept
		chain.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(c.Base.Priority))
	}
	return chain
}

func (b *batch) addRules(c *ruleset.Chain) error {
	if c == nil {
		return nil
	}
	chain := &nftables.Chain{Table: b.table, Name: c.Name}
	for i := range c.Rules {
		exprs, err := encodeRule(&c.Rules[i])
		if err != nil {
			return fmt.Errorf("chain %s, rule %d: %w", c.Name, i+1, err)
		}
		b.conn.AddRule(&nftables.Rule{Table: b.table, Chain: chain, Exprs: exprs, UserData: comment(&c.Rules[i])})
	}
	return nil
}

func entries(m map[string]ruleset.Verdict) [][]nftables.SetElement {
	var list [][]nftables.SetElement
	for _, iface := range slices.Sorted(maps.Keys(m)) {
		list = append(list, []nftables.SetElement{encodeEntry(iface, m[iface])})
	}
	return list
}

func elements(s ruleset.Set, list []ruleset.Element) [][]nftables.SetElement {
	encoded := make([][]nftables.SetElement, len(list))
	for i, e := range list {
		encoded[i] = encodeElement(s, e)
	}
	return encoded
}

// messageBytes and messageElements bound one message: the length of its list is a 16-bit number, which the library would
// let overflow without a word.
const messageBytes, messageElements = 60000, 8000

// each passes elements on in messages that are not too long.
func (b *batch) each(set *nftables.Set, list [][]nftables.SetElement, send func(*nftables.Set, []nftables.SetElement) error) error {
	var chunk []nftables.SetElement
	size := 0
	flush := func() error {
		if len(chunk) == 0 {
			return nil
		}
		err := send(set, chunk)
		chunk, size = nil, 0
		if err != nil {
			return fmt.Errorf("elements of %s: %w", set.Name, err)
		}
		return nil
	}
	for _, group := range list {
		length := 0
		for _, e := range group {
			length += encodedLength(e)
		}
		if size+length > messageBytes || len(chunk)+len(group) > messageElements {
			if err := flush(); err != nil {
				return err
			}
		}
		chunk, size = append(chunk, group...), size+length
	}
	return flush()
}

// encodedLength is what an element takes in a message, at most.
func encodedLength(e nftables.SetElement) int {
	const header = 4
	n := header + 2*header + aligned(len(e.Key)) + 2*header
	if e.VerdictData != nil {
		n += 4*header + 4 + aligned(len(e.VerdictData.Chain)+1)
	}
	return n
}

func aligned(n int) int { return (n + 3) &^ 3 }
