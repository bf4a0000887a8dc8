package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// readAttempts bounds how often the table is read again because parts of it went away meanwhile.
const readAttempts = 5

// ReadRules implements Rules.
func (r *Conn) ReadRules() (*ruleset.Actual, error) {
	var a *ruleset.Actual
	err := r.reading(func(t *tableReader) (err error) {
		a, err = t.read()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read table inet %s: %w", TableName, err)
	}
	return a, nil
}

// RequireTable returns an error unless the table exists and is in use: a host has none after its start until policy is
// programmed for the first time.
func (r *Conn) RequireTable() error {
	return r.reading(func(t *tableReader) error {
		there, err := t.readTable()
		switch {
		case err != nil:
			return err
		case !there:
			return fmt.Errorf("the kernel has no table inet %s: manxd has not programmed it since the host started",
				TableName)
		case t.asleep:
			return fmt.Errorf("table inet %s is dormant: another program has turned it off", TableName)
		}
		return nil
	})
}

// reading runs f with a socket of its own, again if the objects vanish while it reads them.
func (r *Conn) reading(f func(*tableReader) error) error {
	s, err := r.open(netlink.RequestQueue)
	if err != nil {
		return err
	}
	defer s.Close()
	for range readAttempts {
		err = f(&tableReader{sock: s})
		if !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if errors.Is(err, netlink.ErrTransport) {
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	}
	return err
}

// tableReader reads the table, part by part.
type tableReader struct {
	sock   *netlink.Socket
	asleep bool // the table is dormant: another program turned all its hooks off
}

// dump requests all objects of a kind; about appends the parts that narrow the request. parse gets the attributes of
// each.
func (t *tableReader) dump(kind uint16, begin func(), about func(*netlink.Builder), parse func(attrs []byte)) error {
	body := func(b *netlink.Builder) {
		b.Buf = append(b.Buf, unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0)
		about(b)
	}
	each := func(m netlink.Message) {
		if len(m.Data) >= 4 {
			parse(m.Data[4:])
		}
	}
	return t.sock.Dump(nftKind(kind), begin, body, each)
}

func ofTable(b *netlink.Builder) { b.AttrText(unix.NFTA_TABLE_NAME, TableName) } // attribute 1 of all objects

func (t *tableReader) read() (*ruleset.Actual, error) {
	there, err := t.readTable()
	if err != nil || !there {
		return nil, err
	}
	a := ruleset.NewActual()
	if err := t.readChains(a); err != nil {
		return nil, fmt.Errorf("chains: %w", err)
	}
	if err := t.readRules(a); err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	if err := t.readSets(a); err != nil {
		return nil, fmt.Errorf("sets: %w", err)
	}
	return a, nil
}

func (t *tableReader) readTable() (there bool, err error) {
	err = t.dump(unix.NFT_MSG_GETTABLE, func() { there = false }, func(*netlink.Builder) {}, func(attrs []byte) {
		if l := attrList(attrs); text(l[unix.NFTA_TABLE_NAME]) == TableName {
			there = true
			t.asleep = l.number(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		}
	})
	switch {
	case errors.Is(err, unix.EPERM):
		return false, fmt.Errorf("reading nftables needs CAP_NET_ADMIN in the network namespace: %w", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP): // nfnetlink has no such subsystem
		return false, fmt.Errorf("%w: %w", ErrMissing, err)
	case err != nil:
		return false, fmt.Errorf("tables: %w", err)
	}
	return there, nil
}

// attributes of one object, by kind.
type attributes map[uint16][]byte

func attrList(b []byte) attributes {
	l := attributes{}
	for kind, value := range netlink.Attrs(b) {
		l[kind] = value
	}
	return l
}

// number of an attribute, 0 if it is not there.
func (l attributes) number(kind uint16) uint32 {
	if v := l[kind]; len(v) == 4 {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

// readChains: the kernel returns the chains of all tables of the family.
func (t *tableReader) readChains(a *ruleset.Actual) error {
	return t.dump(unix.NFT_MSG_GETCHAIN, func() { clear(a.Chains) }, ofTable, func(attrs []byte) {
		if _, table, _, ok := netlink.NextAttr(attrs); !ok || text(table) != TableName {
			return
		}
		l := attrList(attrs)
		chain := ruleset.ActualChain{}
		if hook, ok := l[unix.NFTA_CHAIN_HOOK]; ok {
			chain.Base = t.base(attrList(hook), l)
		}
		a.Chains[text(l[unix.NFTA_CHAIN_NAME])] = chain
	})
}

// base returns where a chain is attached. One that Manx would never make has no type: another kind of chain, another
// policy, a table that sleeps.
func (t *tableReader) base(hook, chain attributes) *ruleset.Base {
	b := &ruleset.Base{
		Hook:     ruleset.Hook(hook.number(unix.NFTA_HOOK_HOOKNUM)) + ruleset.Prerouting,
		Priority: int32(hook.number(unix.NFTA_HOOK_PRIORITY)),
	}
	if t.asleep || chain.number(unix.NFTA_CHAIN_POLICY) != netfilterAccept {
		return b
	}
	for kind, name := range chainTypes {
		if name == text(chain[unix.NFTA_CHAIN_TYPE]) {
			b.Type = kind
		}
	}
	return b
}

// readRules reads the rules of all chains at once, which come chain by chain and in order.
func (t *tableReader) readRules(a *ruleset.Actual) error {
	begin := func() {
		for name, c := range a.Chains {
			c.Rules = nil
			a.Chains[name] = c
		}
	}
	var chain string
	var ids []string
	keep := func() {
		if c, ok := a.Chains[chain]; ok {
			c.Rules = append(c.Rules, ids...)
			a.Chains[chain] = c
		}
		ids = nil
	}
	err := t.dumpRules(func() { begin(); chain, ids = "", nil }, func(r kernelRule) {
		if string(r.chain) != chain {
			keep()
			chain = string(r.chain)
		}
		ids = append(ids, ruleID(r.userdata))
	})
	keep()
	return err
}

// kernelRule is a rule in the kernel's form. The fields point into the receive buffer.
type kernelRule struct{ chain, expressions, userdata []byte }

func (t *tableReader) dumpRules(begin func(), each func(kernelRule)) error {
	return t.dumpSomeRules(begin, ofTable, each)
}

func (t *tableReader) dumpSomeRules(begin func(), about func(*netlink.Builder), each func(kernelRule)) error {
	return t.dump(unix.NFT_MSG_GETRULE, begin, about, func(attrs []byte) {
		var r kernelRule
		var table []byte
		for kind, value := range netlink.Attrs(attrs) {
			switch kind {
			case unix.NFTA_RULE_TABLE:
				table = value
			case unix.NFTA_RULE_CHAIN:
				r.chain = value[:max(len(value)-1, 0)]
			case unix.NFTA_RULE_EXPRESSIONS:
				r.expressions = value
			case unix.NFTA_RULE_USERDATA:
				r.userdata = value
			}
		}
		if text(table) == TableName {
			each(r)
		}
	})
}

// RuleCounters implements Rules.
func (r *Conn) RuleCounters() (map[string][]Counter, error) {
	counters := map[string][]Counter{}
	err := r.reading(func(t *tableReader) error {
		there, err := t.readTable()
		if err != nil || !there {
			return err
		}
		return t.dumpRules(func() { clear(counters) }, func(rule kernelRule) { addCounter(counters, rule) })
	})
	if err != nil {
		return nil, fmt.Errorf("read the counters of table inet %s: %w", TableName, err)
	}
	return counters, nil
}

// ChainCounters implements Rules.
func (r *Conn) ChainCounters(chains []string) (map[string][]Counter, error) {
	counters := map[string][]Counter{}
	err := r.reading(func(t *tableReader) error {
		for _, chain := range chains {
			about := func(b *netlink.Builder) {
				ofTable(b)
				b.AttrText(unix.NFTA_RULE_CHAIN, chain)
			}
			err := t.dumpSomeRules(func() { delete(counters, chain) }, about, func(rule kernelRule) {
				if string(rule.chain) == chain {
					addCounter(counters, rule)
				}
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read counters of table inet %s: %w", TableName, err)
	}
	return counters, nil
}

// NamedCounters implements Rules.
func (r *Conn) NamedCounters() (map[string]Counter, error) {
	counters := map[string]Counter{}
	about := func(b *netlink.Builder) {
		b.AttrText(unix.NFTA_OBJ_TABLE, TableName)
		b.AttrBig32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	}
	err := r.reading(func(t *tableReader) error {
		return t.dump(unix.NFT_MSG_GETOBJ, func() { clear(counters) }, about, func(attrs []byte) {
			l := attrList(attrs)
			c, ok := counterValue(l[unix.NFTA_OBJ_DATA])
			if ok && text(l[unix.NFTA_OBJ_TABLE]) == TableName {
				counters[text(l[unix.NFTA_OBJ_NAME])] = c
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the named counters of table inet %s: %w", TableName, err)
	}
	return counters, nil
}

func addCounter(counters map[string][]Counter, rule kernelRule) {
	if c, ok := counterOf(rule.expressions); ok {
		c.ID = ruleID(rule.userdata)
		counters[string(rule.chain)] = append(counters[string(rule.chain)], c)
	}
}

// counterOf returns the value of the first counter among a rule's expressions.
func counterOf(expressions []byte) (Counter, bool) {
	for _, element := range netlink.Attrs(expressions) {
		_, name, data, ok := netlink.NextAttr(element)
		if !ok || text(name) != "counter" {
			continue
		}
		_, data, _, _ = netlink.NextAttr(data)
		if c, ok := counterValue(data); ok {
			return c, true
		}
	}
	return Counter{}, false
}

func counterValue(attrs []byte) (Counter, bool) {
	l := attrList(attrs)
	bytes, packets := l[unix.NFTA_COUNTER_BYTES], l[unix.NFTA_COUNTER_PACKETS]
	if len(bytes) != 8 || len(packets) != 8 {
		return Counter{}, false
	}
	return Counter{Packets: binary.BigEndian.Uint64(packets), Bytes: binary.BigEndian.Uint64(bytes)}, true
}
