package wireguard

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// arpTable is the name of the table of the family arp that has the rule.
const arpTable = "manx"

// arpInput is NF_ARP_IN of the kernel: the hooks of ARP have numbers of their own.
var arpInput = nftables.ChainHookRef(0)

// MarkARP implements Devices.
func (c *Conn) MarkARP(mark uint32) error {
	err := c.namespace.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		t := conn.AddTable(&nftables.Table{Name: arpTable, Family: nftables.TableFamilyARP}) // so that there is one
		conn.DelTable(t)
		if mark != 0 {
			t = conn.AddTable(t)
			chain := conn.AddChain(&nftables.Chain{Name: "input", Table: t, Type: nftables.ChainTypeFilter,
				Hooknum: arpInput, Priority: nftables.ChainPriorityFilter})
			conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
				&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(mark)},
				&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}}})
		}
		return conn.Flush()
	})
	if err != nil {
		return fmt.Errorf("mark ARP packets (table arp %s): %w", arpTable, err)
	}
	return nil
}

// ARPMark implements Devices.
func (c *Conn) ARPMark() (mark uint32, err error) {
	err = c.namespace.Do(func() error {
		mark, err = readARPMark()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the mark of ARP packets (table arp %s): %w", arpTable, err)
	}
	return mark, nil
}

func readARPMark() (uint32, error) {
	conn, err := nftables.New()
	if err != nil {
		return 0, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyARP)
	if err != nil {
		return 0, err
	}
	for _, chain := range chains {
		if chain.Table.Name != arpTable {
			continue
		}
		rules, err := conn.GetRules(chain.Table, chain)
		if err != nil || len(rules) != 1 || len(rules[0].Exprs) != 2 {
			return 0, err
		}
		value, ok := rules[0].Exprs[0].(*expr.Immediate)
		set, ok2 := rules[0].Exprs[1].(*expr.Meta)
		if ok && ok2 && set.Key == expr.MetaKeyMARK && set.SourceRegister && len(value.Data) == 4 {
			return binaryutil.NativeEndian.Uint32(value.Data), nil
		}
	}
	return 0, nil
}
