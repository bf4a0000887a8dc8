package nftables

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/hostfirewall"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Bounds of what is read of other programs' tables: a chain beyond them stays unread.
const (
	mostOtherChains   = 2000
	mostOtherRules    = 20_000
	mostOtherElements = 1000 // of one anonymous set
)

// Generation returns the number of the last change of nftables in the network namespace, by any program.
func (r *Conn) Generation() (number uint32, err error) {
	s, err := r.open(netlink.RequestQueue)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	err = s.Query(nftKind(unix.NFT_MSG_GETGEN), 0,
		func(b *netlink.Builder) { b.Buf = append(b.Buf, unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0) },
		func(m netlink.Message) {
			if len(m.Data) >= 4 {
				number = attrList(m.Data[4:]).number(unix.NFTA_GEN_ID)
			}
		})
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	return number, nil
}

// ReadOthers returns the tables of other programs that filter packets of IPv4 and IPv6: their base chains, and the
// chains that these jump to. Chains that translate addresses alone are not read, nor named sets. Tables of the families
// bridge, netdev and arp are left out. interfaceName returns the name of an interface, empty if there is none.
func (r *Conn) ReadOthers(interfaceName func(index uint32) string) (tables []*hostfirewall.Table, err error) {
	s, err := r.open(netlink.RequestQueue)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for range readAttempts {
		o := othersReader{conn: r, sock: s, interfaceName: interfaceName}
		tables, err = o.read()
		if !errors.Is(err, unix.ENOENT) { // a chain went away meanwhile
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the tables of other programs: %w", err)
	}
	return tables, nil
}

// othersReader reads the tables of other programs.
type othersReader struct {
	conn          *Conn
	sock          *netlink.Socket
	interfaceName func(uint32) string

	tables        map[otherTable]*hostfirewall.Table
	chains, rules int // read so far
}

type otherTable struct {
	family uint8
	name   string
}

func (o *othersReader) read() (list []*hostfirewall.Table, err error) {
	if err := o.readTables(); err != nil {
		return nil, fmt.Errorf("tables: %w", err)
	}
	if err := o.readBases(); err != nil {
		return nil, fmt.Errorf("base chains: %w", err)
	}
	for key, t := range o.tables {
		if len(t.Chains) == 0 {
			continue
		}
		var open []*hostfirewall.Chain
		for _, c := range t.Chains {
			open = append(open, c)
		}
		for len(open) > 0 {
			c := open[0]
			open = open[1:]
			if err := o.readChain(key, t, c); err != nil {
				return nil, fmt.Errorf("chain %q of table %q: %w", c.Name, t.Name, err)
			}
			for _, r := range c.Rules {
				if r.Verdict != hostfirewall.Jump && r.Verdict != hostfirewall.Goto || t.Chains[r.Target] != nil {
					continue
				}
				next := &hostfirewall.Chain{Name: r.Target}
				t.Chains[r.Target] = next
				open = append(open, next)
			}
		}
		list = append(list, t)
	}
	return list, nil
}

// dump requests all objects of a kind, of a family or of all of them. each gets the family and the attributes.
func (o *othersReader) dump(kind uint16, family uint8, begin func(), about func(*netlink.Builder),
	each func(family uint8, l attributes)) error {
	return o.sock.Dump(nftKind(kind), begin, func(b *netlink.Builder) {
		b.Buf = append(b.Buf, family, unix.NFNETLINK_V0, 0, 0)
		about(b)
	}, func(m netlink.Message) {
		if len(m.Data) >= 4 {
			each(m.Data[0], attrList(m.Data[4:]))
		}
	})
}

func (o *othersReader) readTables() error {
	return o.dump(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC,
		func() { o.tables = map[otherTable]*hostfirewall.Table{} }, func(*netlink.Builder) {},
		func(family uint8, l attributes) {
			name := text(l[unix.NFTA_TABLE_NAME])
			switch {
			case family != unix.NFPROTO_INET && family != unix.NFPROTO_IPV4 && family != unix.NFPROTO_IPV6,
				family == unix.NFPROTO_INET && name == TableName, strings.HasPrefix(name, traceTablePrefix),
				l.number(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0:
				return
			}
			o.tables[otherTable{family, name}] = &hostfirewall.Table{Family: familyNames[family], Name: name}
		})
}

// readBases reads the base chains that filter. The kernel returns all chains, of which the others are skipped.
func (o *othersReader) readBases() error {
	begin := func() {
		for _, t := range o.tables {
			t.Chains = map[string]*hostfirewall.Chain{}
		}
	}
	return o.sock.Dump(nftKind(unix.NFT_MSG_GETCHAIN), begin, func(b *netlink.Builder) {
		b.Buf = append(b.Buf, unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0)
	}, func(m netlink.Message) {
		if len(m.Data) < 4 {
			return
		}
		base := false
		for kind := range netlink.Attrs(m.Data[4:]) {
			base = base || kind == unix.NFTA_CHAIN_HOOK
		}
		if !base { // kube-proxy has ten thousands
			return
		}
		l := attrList(m.Data[4:])
		t := o.tables[otherTable{m.Data[0], text(l[unix.NFTA_CHAIN_TABLE])}]
		if t == nil || text(l[unix.NFTA_CHAIN_TYPE]) == "nat" {
			return
		}
		hook := attrList(l[unix.NFTA_CHAIN_HOOK])
		name := text(l[unix.NFTA_CHAIN_NAME])
		t.Chains[name] = &hostfirewall.Chain{Name: name, Base: &hostfirewall.Base{
			Hook:     hookName(m.Data[0], hook.number(unix.NFTA_HOOK_HOOKNUM)),
			Priority: int32(hook.number(unix.NFTA_HOOK_PRIORITY)),
			Drop:     l.number(unix.NFTA_CHAIN_POLICY) != netfilterAccept}}
	})
}

// readChain reads the rules of one chain.
func (o *othersReader) readChain(key otherTable, t *hostfirewall.Table, c *hostfirewall.Chain) error {
	if o.chains++; o.chains > mostOtherChains || o.rules > mostOtherRules {
		c.Unread = fmt.Sprintf("not read, because there are more than %d chains or %d rules", mostOtherChains,
			mostOtherRules)
		return nil
	}
	var raw []attributes
	err := o.dump(unix.NFT_MSG_GETRULE, key.family, func() { raw = nil }, func(b *netlink.Builder) {
		chainKey{key.family, key.name, c.Name}.attributes(b, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
	}, func(family uint8, l attributes) {
		if family != key.family || text(l[unix.NFTA_RULE_TABLE]) != key.name ||
			text(l[unix.NFTA_RULE_CHAIN]) != c.Name {
			return
		}
		for k, v := range l { // the receive buffer is used again
			l[k] = append([]byte(nil), v...)
		}
		raw = append(raw, l)
	})
	if err != nil {
		return err
	}
	o.rules += len(raw)
	for i, l := range raw {
		d := ruleDecoder{reader: o, table: key}
		rules, err := d.rules(l)
		if err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
		for _, r := range rules {
			r.Number = i + 1
			c.Rules = append(c.Rules, r)
		}
	}
	return nil
}
