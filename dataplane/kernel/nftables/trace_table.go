package nftables

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// traceTablePrefix begins the names of tables that trace packets.
const traceTablePrefix = "manx-trace-"

// traceOfFlow is the comment of rules that mark packets; those of the others are states of connections.
const traceOfFlow = "the flow"

var tracedStates = []struct {
	name string
	bits uint32
}{
	{StateNew, ruleset.ConnNew}, {StateEstablished, ruleset.ConnEstablished | ruleset.ConnRelated},
	{StateInvalid, ruleset.ConnInvalid}, {StateUntracked, ruleset.ConnUntracked},
}

// Packets that are traced a second; a packet takes some 50 steps.
const (
	traceRate  = 20
	traceBurst = 10
)

// traceTable is the table that makes the kernel trace a flow.
type traceTable struct {
	name  string
	flow  Flow
	rules map[string]int // of each chain
}

// Kinds of its chains, followed by the hook's name.
const (
	traceEnter = "enter-" // before everything else
	traceState = "state-" // behind connection tracking, at -200
	traceLater = "later-" // behind the translation of destinations, at -100
	traceLeave = "leave-" // behind everything else
)

const netfilterOwner = 2 // NFT_TABLE_F_OWNER, since Linux 5.12

// commit makes the table, for as long as s is open. Packets are marked for tracing where they come to the rules first,
// so that every drop is seen; new connections again behind connection tracking, with a limit of their own that packets
// of known ones do not use up; and then packets that have become part of the flow, such as those for a service.
//
// Chains without rules show how far a packet came where other tables have none and something other than a table drops
// it.
func (t *traceTable) commit(s *netlink.Socket) error {
	if err := t.own(s); err != nil {
		return err
	}
	t.rules = map[string]int{}
	b := &batch{}
	b.begin()
	for h := ruleset.Prerouting; h <= ruleset.Postrouting; h++ {
		if err := t.addHook(b, h); err != nil {
			return err
		}
	}
	return b.commit(s)
}

// own makes the table, alone, so that an old kernel's error names the unsupported part.
func (t *traceTable) own(s *netlink.Socket) error {
	b := &batch{}
	b.begin()
	b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		operation{verb: "add", kind: "table", name: t.name})
	b.AttrText(unix.NFTA_TABLE_NAME, t.name)
	b.AttrBig32(unix.NFTA_TABLE_FLAGS, netfilterOwner)
	b.End()
	return ownerError(b.commit(s))
}

// ownerError: a kernel that does not know owners refuses the flag.
func ownerError(err error) error {
	if errors.Is(err, unix.EINVAL) && !errors.Is(err, ErrMissing) {
		return fmt.Errorf("%w: tables that go with their owner, which take Linux 5.12: %w", ErrMissing, err)
	}
	return err
}

func (t *traceTable) addHook(b *batch, h ruleset.Hook) error {
	chain := func(kind string, priority int32) (string, error) {
		c := &ruleset.Chain{Name: kind + h.String(), Base: &ruleset.Base{Hook: h, Type: ruleset.Filter,
			Priority: priority}}
		return c.Name, b.addChainTo(t.name, c)
	}
	enter, err := chain(traceEnter, math.MinInt32)
	if err != nil {
		return err
	}
	if _, err := chain(traceLeave, math.MaxInt32); err != nil {
		return err
	}
	if h != ruleset.Prerouting && h != ruleset.Output {
		return nil
	}
	state, err := chain(traceState, -199)
	if err != nil {
		return err
	}
	later, err := chain(traceLater, -99)
	if err != nil {
		return err
	}
	if err := t.addMarks(b, enter); err != nil {
		return err
	}
	if err := t.addMarks(b, state, ruleset.Match{Field: ruleset.ConnState, Mask: ruleset.ConnNew}); err != nil {
		return err
	}
	if err := t.addMarks(b, later); err != nil {
		return err
	}
	for _, s := range tracedStates {
		for _, chain := range []string{state, later} { // also for packets that are marked as late as that
			if err := t.addRule(b, chain, s.name, []ruleset.Match{{Field: ruleset.ConnState, Mask: s.bits}},
				false); err != nil {
				return err
			}
		}
	}
	return nil
}

// addMarks adds the rules that mark packets of the flow.
func (t *traceTable) addMarks(b *batch, chain string, also ...ruleset.Match) error {
	for _, from := range t.flow.Sources {
		for _, to := range t.flow.Destinations {
			if err := t.addRule(b, chain, traceOfFlow, append(t.flow.matches(from, to), also...), true); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *traceTable) addRule(b *batch, chain, comment string, matches []ruleset.Match, mark bool) error {
	b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND,
		operation{verb: "add", name: chain, rule: t.rules[chain] + 1})
	t.rules[chain]++
	b.AttrText(unix.NFTA_RULE_TABLE, t.name)
	b.AttrText(unix.NFTA_RULE_CHAIN, chain)
	list := b.NestFlagged(unix.NFTA_RULE_EXPRESSIONS)
	e := encoder{out: &b.Builder}
	for _, m := range matches {
		if err := e.match(m); err != nil {
			return err
		}
	}
	if mark {
		e.add(&expr.Limit{Type: expr.LimitTypePkts, Rate: traceRate, Unit: expr.LimitTimeSecond, Burst: traceBurst},
			&expr.Immediate{Register: reg1, Data: []byte{1}}, &expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true,
				Register: reg1})
	}
	b.EndNest(list)
	b.Attr(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, comment))
	b.End()
	return e.err
}

// matches are the conditions for packets from one address to another.
func (f *Flow) matches(from, to netip.Addr) []ruleset.Match {
	list := []ruleset.Match{
		{Field: ruleset.Source, Prefix: netip.PrefixFrom(from, from.BitLen())},
		{Field: ruleset.Destination, Prefix: netip.PrefixFrom(to, to.BitLen())},
		{Field: ruleset.Protocol, Low: uint32(f.Protocol)},
	}
	switch {
	case f.Port != 0:
		list = append(list, ruleset.Match{Field: ruleset.DestinationPort, Low: uint32(f.Port)})
	case f.HasICMP && f.HasCode:
		list = append(list, ruleset.Match{Field: ruleset.ICMP, Low: uint32(f.ICMPType)<<8 | uint32(f.ICMPCode),
			Mask: 0xffff})
	case f.HasICMP:
		list = append(list, ruleset.Match{Field: ruleset.ICMP, Low: uint32(f.ICMPType) << 8, Mask: 0xff00})
	}
	return list
}
