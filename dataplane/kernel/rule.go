package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	vnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/device"
)

// Rule is a rule of policy routing (ip-rule(8)) that looks up a table for packets by their mark, or by a port of TCP.
type Rule struct {
	IPv6     bool
	Priority uint32
	// Mark and Mask are those of the packets that it is for; with Not it is for all others. A Mask of 0: all.
	Mark, Mask uint32
	Not        bool
	TCP        TCP
	Table      Table
	Protocol   Protocol // of its origin
}

// TCP are the packets of TCP with certain ports; the zero value: no port matters.
type TCP struct {
	// Local has them sent by this host itself.
	Local bool
	// To is their destination, invalid for any.
	To netip.Addr
	// From and Ports are the source and destination ports; the zero value: any.
	From, Ports PortRange
}

// PortRange are the ports from First to Last.
type PortRange struct{ First, Last uint16 }

func (p PortRange) String() string {
	if p.First == p.Last {
		return fmt.Sprint(p.First)
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// String writes the rule as ip-rule(8) does.
func (r Rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d: ", r.Priority)
	if r.Not {
		b.WriteString("not ")
	}
	b.WriteString("from all")
	if r.TCP.To.IsValid() {
		fmt.Fprintf(&b, " to %s", r.TCP.To)
	}
	if r.Mask != 0 {
		fmt.Fprintf(&b, " fwmark 0x%x/0x%x", r.Mark, r.Mask)
	}
	if r.TCP.Local {
		b.WriteString(" iif lo")
	}
	if r.TCP != (TCP{}) {
		b.WriteString(" ipproto tcp")
	}
	for _, x := range []struct {
		name  string
		ports PortRange
	}{{"sport", r.TCP.From}, {"dport", r.TCP.Ports}} {
		if x.ports != (PortRange{}) {
			fmt.Fprintf(&b, " %s %s", x.name, x.ports)
		}
	}
	fmt.Fprintf(&b, " lookup %s", r.Table)
	return b.String()
}

// Rules reads and changes rules of policy routing.
type Rules interface {
	// ListRules returns the rules of both families that a Rule can describe.
	ListRules() ([]Rule, error)
	// AddRule succeeds if there is such a rule, DeleteRule if there is none.
	AddRule(Rule) error
	DeleteRule(Rule) error
}

// ListRules implements Rules.
func (c *Conn) ListRules() (list []Rule, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		var rules []vnetlink.Rule
		err = c.onDevice(func(h device.Handle) (err error) {
			rules, err = device.Whole(func() ([]vnetlink.Rule, error) { return h.RuleList(family) })
			return err
		})
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) { // no IPv6
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			if rule, ok := ruleOf(r); ok {
				list = append(list, rule)
			}
		}
	}
	return list, nil
}

// ruleOf returns false for a rule with any other condition or action.
func ruleOf(r vnetlink.Rule) (Rule, bool) {
	plain := *vnetlink.NewRule()
	plain.Priority, plain.Family, plain.Table, plain.Mark = r.Priority, r.Family, r.Table, r.Mark
	plain.Mask, plain.Invert, plain.Protocol, plain.Type = r.Mask, r.Invert, r.Protocol, r.Type
	rule := Rule{IPv6: r.Family == unix.AF_INET6, Priority: uint32(r.Priority), Mark: r.Mark, Not: r.Invert,
		Table: TableOf(uint32(max(r.Table, 0))), Protocol: Protocol(r.Protocol)}
	if r.Mask != nil {
		rule.Mask = *r.Mask
	}
	if r.IPProto == unix.IPPROTO_TCP {
		plain.IPProto, plain.IifName, plain.Dst = r.IPProto, r.IifName, r.Dst
		plain.Sport, plain.Dport = r.Sport, r.Dport
		rule.TCP = TCP{Local: r.IifName == loopback, From: rangeOf(r.Sport), Ports: rangeOf(r.Dport)}
		if r.Dst != nil {
			to := device.Prefix(r.Dst)
			if rule.TCP.To = to.Addr(); !to.IsSingleIP() {
				return Rule{}, false
			}
		}
		if r.IifName != "" && r.IifName != loopback {
			return Rule{}, false
		}
	}
	if rule.Mask == 0 && rule.TCP == (TCP{}) || r != plain || r.Table <= 0 {
		return Rule{}, false
	}
	return rule, true
}

// loopback is the interface by which the kernel names the packets that a host itself sends.
const loopback = "lo"

func rangeOf(r *vnetlink.RulePortRange) PortRange {
	if r == nil {
		return PortRange{}
	}
	return PortRange{r.Start, r.End}
}

// form returns the rule in the library's form, with every field: the kernel deletes the first rule that has those which
// are named, and the first one of all is that of the table local.
func (r Rule) form() *vnetlink.Rule {
	f := vnetlink.NewRule()
	f.Family, f.Priority, f.Table = unix.AF_INET, int(r.Priority), int(r.Table.number())
	if r.IPv6 {
		f.Family = unix.AF_INET6
	}
	f.Mark, f.Invert, f.Protocol = r.Mark, r.Not, uint8(r.Protocol)
	if r.Mask != 0 {
		f.Mask = &r.Mask
	}
	if r.TCP == (TCP{}) {
		return f
	}
	f.IPProto = unix.IPPROTO_TCP
	if r.TCP.Local {
		f.IifName = loopback
	}
	if a := r.TCP.To; a.IsValid() {
		f.Dst = device.IPNet(netip.PrefixFrom(a, a.BitLen()))
	}
	if p := r.TCP.From; p != (PortRange{}) {
		f.Sport = vnetlink.NewRulePortRange(p.First, p.Last)
	}
	if p := r.TCP.Ports; p != (PortRange{}) {
		f.Dport = vnetlink.NewRulePortRange(p.First, p.Last)
	}
	return f
}

// AddRule implements Rules.
func (c *Conn) AddRule(r Rule) error {
	err := c.onDevice(func(h device.Handle) error { return h.RuleAdd(r.form()) })
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add rule %s: %w", r, err)
	}
	return nil
}

// DeleteRule implements Rules.
func (c *Conn) DeleteRule(r Rule) error {
	if r.TCP == (TCP{}) && (r.Mask == 0 || r.Table == MainTable) {
		return fmt.Errorf("delete rule %s: it may be the system's", r)
	}
	err := c.onDevice(func(h device.Handle) error { return h.RuleDel(r.form()) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete rule %s: %w", r, err)
	}
	return nil
}
