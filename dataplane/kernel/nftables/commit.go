package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// CommitRules implements Rules. Removals go first, from the objects that name others to the named ones: so an object of
// another kind can take a name again in the same transaction.
func (r *Conn) CommitRules(c ruleset.Changes) error {
	err := r.change(c)
	if errors.Is(err, unix.EINVAL) && r.wake() {
		err = r.change(c)
	}
	if err != nil {
		return fmt.Errorf("change table inet %s: %w", TableName, err)
	}
	return nil
}

// CheckRules implements Rules.
func (r *Conn) CheckRules(c ruleset.Changes) error {
	b, err := r.batchOf(c)
	if err == nil {
		b.check = true
		err = r.commit(b)
	}
	if err != nil {
		return fmt.Errorf("check a change of table inet %s: %w", TableName, err)
	}
	return nil
}

func (r *Conn) change(c ruleset.Changes) error {
	b, err := r.batchOf(c)
	if err != nil {
		return err
	}
	return r.commit(b)
}

// wake turns the hooks of the table on again if another program turned them off, which the kernel does not do in a
// transaction that makes base chains too.
func (r *Conn) wake() bool {
	asleep := false
	err := r.reading(func(t *tableReader) error {
		_, err := t.readTable()
		asleep = t.asleep
		return err
	})
	if err != nil || !asleep {
		return false
	}
	b := &batch{}
	b.begin()
	b.table(unix.NFT_MSG_NEWTABLE)
	return r.commit(b) == nil
}

func (r *Conn) batchOf(c ruleset.Changes) (*batch, error) {
	b := &batch{}
	b.begin()
	b.table(unix.NFT_MSG_NEWTABLE)
	kept, err := r.replacedSets(c)
	if err != nil {
		return nil, err
	}
	b.flushChains(c.Chains)
	for _, chain := range kept.chains {
		b.flushChain(chain.name)
	}
	for _, m := range c.Maps {
		b.verdicts(unix.NFT_MSG_DELSETELEM, m.Name, m.Remove)
	}
	for _, m := range c.Maps {
		if m.Deleted {
			b.deleteSet("map", m.Name)
		}
	}
	b.deleteChains(c.Chains)
	for _, s := range c.Sets {
		if s.Deleted && !kept.emptied[s.Name] {
			b.deleteSet("set", s.Name)
		}
	}
	for _, s := range c.Sets {
		if err := b.changeSet(s, kept.emptied[s.Name]); err != nil {
			return nil, err
		}
	}
	for _, m := range c.Maps {
		if m.Created {
			b.addMap(m.Map)
		}
	}
	for _, chain := range kept.chains {
		b.rawRules(chain)
	}
	for _, name := range c.Counters() {
		b.addCounter(name)
	}
	if err := b.addChains(c.Chains); err != nil {
		return nil, err
	}
	for _, m := range c.Maps {
		b.verdicts(unix.NFT_MSG_NEWSETELEM, m.Name, m.Add)
	}
	return b, nil
}

func (b *batch) table(kind uint16) {
	verb := "add"
	if kind == unix.NFT_MSG_DELTABLE {
		verb = "delete"
	}
	b.message(kind, unix.NLM_F_CREATE, operation{verb: verb, kind: "table", name: TableName})
	b.AttrText(unix.NFTA_TABLE_NAME, TableName)
	if kind == unix.NFT_MSG_NEWTABLE {
		b.AttrBig32(unix.NFTA_TABLE_FLAGS, 0) // wakes it if it is dormant
	}
	b.End()
}

func (b *batch) flushChains(changes []ruleset.ChainChange) {
	for _, c := range changes {
		if c.Old != nil {
			b.flushChain(c.Name)
		}
	}
}

func (b *batch) flushChain(name string) {
	b.message(unix.NFT_MSG_DELRULE, 0, operation{verb: "flush", kind: "chain", name: name})
	b.AttrText(unix.NFTA_RULE_TABLE, TableName)
	b.AttrText(unix.NFTA_RULE_CHAIN, name)
	b.End()
}

func (b *batch) deleteChains(changes []ruleset.ChainChange) {
	for _, c := range changes {
		if c.Old == nil || c.New != nil && sameBase(c.Old.Base, c.New.Base) {
			continue
		}
		b.message(unix.NFT_MSG_DELCHAIN, 0, operation{verb: "delete", kind: "chain", name: c.Name})
		b.AttrText(unix.NFTA_CHAIN_TABLE, TableName)
		b.AttrText(unix.NFTA_CHAIN_NAME, c.Name)
		b.End()
	}
}

func sameBase(a, b *ruleset.Base) bool { return a == b || a != nil && b != nil && *a == *b }

// addChains makes all new chains before the first rule, which may jump to any of them.
func (b *batch) addChains(changes []ruleset.ChainChange) error {
	for _, c := range changes {
		if c.New != nil && (c.Old == nil || !sameBase(c.Old.Base, c.New.Base)) {
			if err := b.addChain(c.New); err != nil {
				return err
			}
		}
	}
	for _, c := range changes {
		if c.New == nil {
			continue
		}
		for i, rule := range c.New.Rules {
			if err := b.addRule(c.Name, i+1, rule); err != nil {
				return fmt.Errorf("rule %d of chain %s: %w", i+1, c.Name, err)
			}
		}
	}
	return nil
}

// addCounter makes a counter unless there is one of that name, which goes on.
func (b *batch) addCounter(name string) {
	b.message(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, operation{verb: "add", kind: "counter", name: name})
	b.AttrText(unix.NFTA_OBJ_TABLE, TableName)
	b.AttrText(unix.NFTA_OBJ_NAME, name)
	b.AttrBig32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	b.EndNest(b.NestFlagged(unix.NFTA_OBJ_DATA))
	b.End()
}

func (b *batch) addChain(c *ruleset.Chain) error { return b.addChainTo(TableName, c) }

func (b *batch) addChainTo(table string, c *ruleset.Chain) error {
	kind := "chain"
	if c.Base != nil {
		kind = "base chain"
	}
	b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, operation{verb: "add", kind: kind, name: c.Name})
	b.AttrText(unix.NFTA_CHAIN_TABLE, table)
	b.AttrText(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Base != nil {
		if c.Base.Hook < ruleset.Prerouting || c.Base.Hook > ruleset.Postrouting || chainTypes[c.Base.Type] == "" {
			return fmt.Errorf("base chain %s: hook %d or type %d is unknown", c.Name, c.Base.Hook, c.Base.Type)
		}
		hook := b.NestFlagged(unix.NFTA_CHAIN_HOOK)
		b.AttrBig32(unix.NFTA_HOOK_HOOKNUM, uint32(c.Base.Hook-ruleset.Prerouting))
		b.AttrBig32(unix.NFTA_HOOK_PRIORITY, uint32(c.Base.Priority))
		b.EndNest(hook)
		b.AttrBig32(unix.NFTA_CHAIN_POLICY, netfilterAccept)
		b.AttrText(unix.NFTA_CHAIN_TYPE, chainTypes[c.Base.Type])
	}
	b.End()
	return nil
}

var chainTypes = map[ruleset.ChainType]string{ruleset.Filter: "filter", ruleset.NAT: "nat",
	ruleset.Route: "route"}

func (b *batch) addRule(chain string, number int, r ruleset.Rule) error {
	b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND,
		operation{verb: "add", name: chain, rule: number})
	b.AttrText(unix.NFTA_RULE_TABLE, TableName)
	b.AttrText(unix.NFTA_RULE_CHAIN, chain)
	list := b.NestFlagged(unix.NFTA_RULE_EXPRESSIONS)
	if err := encodeRule(&b.Builder, r); err != nil {
		return err
	}
	if len(b.Buf)-list > 0xffff {
		return fmt.Errorf("its %d matches do not fit into a message", len(r.Matches))
	}
	b.EndNest(list)
	b.Attr(unix.NFTA_RULE_USERDATA, ruleUserdata(r))
	b.End()
	return nil
}

// verdicts adds or removes entries of a map.
func (b *batch) verdicts(kind uint16, name string, entries map[string]ruleset.Verdict) {
	list := elementList{b: b, kind: kind, of: "map", name: name}
	for _, iface := range slices.Sorted(maps.Keys(entries)) {
		list.room()
		list.next()
		b.elementKey(ifname(iface))
		if kind == unix.NFT_MSG_NEWSETELEM {
			b.elementVerdict(entries[iface])
		}
		list.done()
	}
	list.close()
}

func (b *batch) elementVerdict(v ruleset.Verdict) {
	data := b.NestFlagged(unix.NFTA_SET_ELEM_DATA)
	verdict := b.NestFlagged(unix.NFTA_DATA_VERDICT)
	code := int32(unix.NFT_GOTO)
	if v.Action == ruleset.Jump {
		code = unix.NFT_JUMP
	}
	b.AttrBig32(unix.NFTA_VERDICT_CODE, uint32(code))
	b.AttrText(unix.NFTA_VERDICT_CHAIN, v.Chain)
	b.EndNest(verdict)
	b.EndNest(data)
}

// ifname is an interface name as the kernel compares it.
func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b[:unix.IFNAMSIZ-1], name)
	return b
}

func (b *batch) rawRules(c rawChain) {
	for i, rule := range c.rules {
		b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND,
			operation{verb: "put back", name: c.name, rule: i + 1})
		b.AttrText(unix.NFTA_RULE_TABLE, TableName)
		b.AttrText(unix.NFTA_RULE_CHAIN, c.name)
		b.Attr(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, rule.expressions)
		if len(rule.userdata) > 0 {
			b.Attr(unix.NFTA_RULE_USERDATA, rule.userdata)
		}
		b.End()
	}
}

func bigEndian(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

const netfilterAccept = 1 // NF_ACCEPT
