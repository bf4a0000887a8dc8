package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// readAttempts bounds how often the table is read again because somebody changed rules meanwhile.
const readAttempts = 5

// ReadRules implements Rules.
func (n *NFT) ReadRules() (*ruleset.Actual, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for attempt := 1; ; attempt++ {
		before, err := n.generation()
		if err != nil {
			return nil, err
		}
		actual, err := n.read()
		after, gerr := n.generation()
		if gerr != nil {
			return nil, gerr
		}
		// What others do to their tables counts, too; if they never pause, a reading that may be torn has to do: what is
		// wrong about it shows at the next commit.
		if before == after && err == nil || attempt == readAttempts {
			return actual, err
		}
	}
}

func (n *NFT) read() (*ruleset.Actual, error) {
	c, err := n.conn()
	if err != nil {
		return nil, classify("open nftables", err)
	}
	t, err := n.find(c)
	if err != nil || t == nil {
		return nil, err
	}
	a := &ruleset.Actual{Chains: map[string]ruleset.ActualChain{}, Sets: map[string]ruleset.ActualSet{}, Maps: map[string]map[string]ruleset.Verdict{}}
	if err := readChains(c, a); err != nil {
		return nil, err
	}
	err = n.rules(func(r readRule) {
		chain := a.Chains[r.chain]
		chain.Rules = append(chain.Rules, r.id)
		a.Chains[r.chain] = chain
	})
	if err != nil {
		return nil, err
	}
	return a, readSets(c, t, a)
}

func readChains(c *nftables.Conn, a *ruleset.Actual) error {
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return classify("list chains", err)
	}
	for _, ch := range chains {
		if ch.Table.Name != TableName {
			continue
		}
		chain := ruleset.ActualChain{}
		if ch.Hooknum != nil {
			chain.Base = &ruleset.Base{}
			for h, number := range hooks {
				if *number == *ch.Hooknum {
					chain.Base.Hook = h
				}
			}
			for t, name := range chainTypes {
				if name == ch.Type {
					chain.Base.Type = t
				}
			}
			if ch.Priority != nil {
				chain.Base.Priority = int32(*ch.Priority)
			}
			if ch.Policy != nil && *ch.Policy != nftables.ChainPolicyAccept {
				chain.Base.Hook = 0 // somebody changed what becomes of packets at its end: to be made anew
			}
		}
		a.Chains[ch.Name] = chain
	}
	return nil
}

func readSets(c *nftables.Conn, t *nftables.Table, a *ruleset.Actual) error {
	sets, err := c.GetSets(t)
	if err != nil {
		return classify("list sets", err)
	}
	for _, s := range sets {
		if s.Table == nil || s.Table.Name != TableName || s.Anonymous {
			continue
		}
		list, err := c.GetSetElements(s)
		if err != nil {
			return classify("list the elements of "+s.Name, err)
		}
		if s.IsMap {
			a.Maps[s.Name] = decodeEntries(list)
			continue
		}
		a.Sets[s.Name] = decodeSet(s, list)
	}
	return nil
}

func decodeEntries(list []nftables.SetElement) map[string]ruleset.Verdict {
	entries := map[string]ruleset.Verdict{}
	for _, e := range list {
		entries[string(bytes.TrimRight(e.Key, "\x00"))] = decodeVerdict(e.Val)
	}
	return entries
}

// decodeVerdict translates a verdict of a map, which the library hands on as it came.
func decodeVerdict(data []byte) ruleset.Verdict {
	v := ruleset.Verdict{}
	d, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return v
	}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_VERDICT_CODE:
			switch expr.VerdictKind(int32(be64(d.Bytes()))) {
			case expr.VerdictGoto:
				v.Action = ruleset.Goto
			case expr.VerdictJump:
				v.Action = ruleset.Jump
			case expr.VerdictDrop:
				v.Action = ruleset.Drop
			case expr.VerdictAccept:
				v.Action = ruleset.Accept
			default:
				v.Action = ruleset.Return
			}
		case unix.NFTA_VERDICT_CHAIN:
			v.Chain = d.String()
		}
	}
	return v
}

// decodeSet translates a set. One that we would never have made gets no type, so that it is made anew.
func decodeSet(s *nftables.Set, list []nftables.SetElement) ruleset.ActualSet {
	out := ruleset.ActualSet{Set: ruleset.Set{Name: s.Name, Interval: s.Interval}}
	for _, t := range []ruleset.SetType{ruleset.Addresses4, ruleset.Addresses6, ruleset.Ports, ruleset.Endpoints4, ruleset.Endpoints6} {
		if want := encodeSet(ruleset.Set{Type: t}); want.KeyType.GetNFTMagic() == s.KeyType.GetNFTMagic() {
			out.Type = t
		}
	}
	var ok bool
	switch {
	case out.Type == ruleset.Endpoints4 || out.Type == ruleset.Endpoints6:
		out.Elements, ok = decodeEndpoints(list, out.Type)
	case s.Interval:
		out.Elements, ok = decodeIntervals(list, out.Type)
	default:
		ok = true
		for _, e := range list {
			if a, valid := netip.AddrFromSlice(e.Key); valid {
				out.Elements = append(out.Elements, ruleset.Element{Prefix: netip.PrefixFrom(a, a.BitLen())})
			}
		}
	}
	if !ok {
		out.Type = 0
	}
	return out
}

func decodeEndpoints(list []nftables.SetElement, t ruleset.SetType) ([]ruleset.Element, bool) {
	length := 4
	if t == ruleset.Endpoints6 {
		length = 16
	}
	var out []ruleset.Element
	for _, e := range list {
		if len(e.Key) < length+8 {
			return nil, false
		}
		a, _ := netip.AddrFromSlice(e.Key[:length])
		out = append(out, ruleset.Element{Prefix: netip.PrefixFrom(a, a.BitLen()), Protocol: e.Key[length],
			Low: uint16(e.Key[length+4])<<8 | uint16(e.Key[length+5])})
	}
	return out, true
}

// decodeIntervals pairs starts with ends: an end is the first value that does not belong to the interval any more.
func decodeIntervals(list []nftables.SetElement, t ruleset.SetType) ([]ruleset.Element, bool) {
	// At the same value one interval ends before the next one begins.
	slices.SortFunc(list, func(a, b nftables.SetElement) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 || a.IntervalEnd == b.IntervalEnd {
			return c
		}
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	var out []ruleset.Element
	for i, e := range list {
		if e.IntervalEnd {
			continue
		}
		var end []byte // nil: the interval goes on to the last value
		if i+1 < len(list) {
			if !list[i+1].IntervalEnd {
				return nil, false
			}
			end = list[i+1].Key
		}
		element, ok := interval(e.Key, end, t)
		if !ok {
			return nil, false
		}
		out = append(out, element)
	}
	return out, true
}

func interval(start, end []byte, t ruleset.SetType) (ruleset.Element, bool) {
	if t == ruleset.Ports {
		if len(start) < 2 {
			return ruleset.Element{}, false
		}
		e := ruleset.Element{Low: uint16(start[0])<<8 | uint16(start[1]), High: 65535}
		if end != nil {
			e.High = uint16(end[0])<<8 | uint16(end[1]) - 1
		}
		return e, true
	}
	first, ok := netip.AddrFromSlice(start)
	if !ok {
		return ruleset.Element{}, false
	}
	// The network is the one that begins there and ends there: its length follows from the last address.
	last := make([]byte, len(start))
	if end == nil {
		for i := range last {
			last[i] = 0xff
		}
	} else {
		before, _ := netip.AddrFromSlice(end)
		copy(last, before.Prev().AsSlice())
	}
	length := 0
	for i := range start {
		if d := start[i] ^ last[i]; d != 0 {
			length += bits.LeadingZeros8(d)
			break
		}
		length += 8
	}
	p := netip.PrefixFrom(first, length)
	next := after(p)
	if p.Masked() != p || next.IsValid() != (end != nil) || end != nil && !bytes.Equal(next.AsSlice(), end) {
		return ruleset.Element{}, false
	}
	return ruleset.Element{Prefix: p}, true
}

// readRule is what is read of a rule.
type readRule struct {
	chain, id string
	counter   *Counter
}

// rules visits all rules of the table in order. (The library would ask for each chain apart.)
func (n *NFT) rules(visit func(readRule)) error {
	c, err := n.socket()
	if err != nil {
		return err
	}
	defer c.Close()
	body, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: []byte(TableName + "\x00")}})
	if err != nil {
		return err
	}
	messages, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: nftMessage(unix.NFT_MSG_GETRULE), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, body...),
	})
	if err != nil {
		return classify("list rules", err)
	}
	for _, m := range messages {
		r, err := parseRule(m.Data)
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		visit(r)
	}
	return nil
}

func nftMessage(kind int) netlink.HeaderType {
	return netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)
}

var errShort = errors.New("the kernel sent a message that is too short")

func parseRule(data []byte) (readRule, error) {
	var r readRule
	if len(data) < 4 {
		return r, errShort
	}
	d, err := netlink.NewAttributeDecoder(data[4:])
	if err != nil {
		return r, err
	}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.chain = d.String()
		case unix.NFTA_RULE_USERDATA:
			r.id = commentID(d.Bytes())
		case unix.NFTA_RULE_EXPRESSIONS:
			d.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(r.parseExpression)
				}
				return nil
			})
		}
	}
	if r.counter != nil {
		r.counter.ID = r.id
	}
	return r, d.Err()
}

// parseExpression looks for the counter.
func (r *readRule) parseExpression(d *netlink.AttributeDecoder) error {
	name := ""
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_EXPR_NAME:
			name = d.String()
		case unix.NFTA_EXPR_DATA:
			if name != "counter" {
				continue
			}
			r.counter = &Counter{}
			d.Nested(func(c *netlink.AttributeDecoder) error {
				for c.Next() {
					switch v := c.Bytes(); c.Type() {
					case unix.NFTA_COUNTER_BYTES:
						r.counter.Bytes = be64(v)
					case unix.NFTA_COUNTER_PACKETS:
						r.counter.Packets = be64(v)
					}
				}
				return nil
			})
		}
	}
	return nil
}

func be64(b []byte) (v uint64) {
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

// RuleCounters implements Rules.
func (n *NFT) RuleCounters() (map[string][]Counter, error) {
	counters := map[string][]Counter{}
	err := n.rules(func(r readRule) {
		if r.counter != nil {
			counters[r.chain] = append(counters[r.chain], *r.counter)
		}
	})
	return counters, err
}

// generation is a number that grows with each transaction of anybody.
func (n *NFT) generation() (uint32, error) {
	c, err := n.socket()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	messages, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: nftMessage(unix.NFT_MSG_GETGEN), Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, classify("ask for the generation of the rules", err)
	}
	for _, m := range messages {
		g, err := parseGeneration(m.Data)
		if err == nil {
			return g.id, nil
		}
	}
	return 0, errShort
}

// generation is the end of a transaction.
type generation struct {
	id      uint32
	process string // the name of who made it
}

func parseGeneration(data []byte) (generation, error) {
	var g generation
	if len(data) < 4 {
		return g, errShort
	}
	d, err := netlink.NewAttributeDecoder(data[4:])
	if err != nil {
		return g, err
	}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_GEN_ID:
			g.id = uint32(be64(d.Bytes()))
		case unix.NFTA_GEN_PROC_NAME:
			g.process = d.String()
		}
	}
	return g, d.Err()
}
