package kernel

import (
	"errors"
	"fmt"

	vnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/device"
)

// Rule is a rule of policy routing (ip-rule(8)) that looks up a table for packets by their mark alone.
type Rule struct {
	IPv6     bool
	Priority uint32
	// Mark and Mask are those of the packets that it is for; with Not it is for all others.
	Mark, Mask uint32
	Not        bool
	Table      Table
	Protocol   Protocol // of its origin
}

// String writes the rule as ip-rule(8) does.
func (r Rule) String() string {
	not := ""
	if r.Not {
		not = "not "
	}
	return fmt.Sprintf("%d: %sfrom all fwmark 0x%x/0x%x lookup %s", r.Priority, not, r.Mark, r.Mask, r.Table)
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
	if r.Mask == nil || r != plain || r.Table <= 0 {
		return Rule{}, false
	}
	return Rule{IPv6: r.Family == unix.AF_INET6, Priority: uint32(r.Priority), Mark: r.Mark, Mask: *r.Mask,
		Not: r.Invert, Table: TableOf(uint32(r.Table)), Protocol: Protocol(r.Protocol)}, true
}

// form returns the rule in the library's form, with every field: the kernel deletes the first rule that has those which
// are named, and the first one of all is that of the table local.
func (r Rule) form() *vnetlink.Rule {
	f := vnetlink.NewRule()
	f.Family, f.Priority, f.Table = unix.AF_INET, int(r.Priority), int(r.Table.number())
	if r.IPv6 {
		f.Family = unix.AF_INET6
	}
	f.Mark, f.Mask, f.Invert, f.Protocol = r.Mark, &r.Mask, r.Not, uint8(r.Protocol)
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
	if r.Mask == 0 || r.Table == MainTable {
		return fmt.Errorf("delete rule %s: it may be the system's", r)
	}
	err := c.onDevice(func(h device.Handle) error { return h.RuleDel(r.form()) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete rule %s: %w", r, err)
	}
	return nil
}
