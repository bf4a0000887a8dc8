package ruleset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

var hookNames = [...]string{Prerouting: "prerouting", Input: "input", Forward: "forward", Output: "output",
	Postrouting: "postrouting"}

// String is the hook's name in nft.
func (h Hook) String() string {
	if int(h) < len(hookNames) && h > 0 {
		return hookNames[h]
	}
	return fmt.Sprintf("hook %d", uint8(h))
}

// protocolNames are those that nft has a port or type of.
var protocolNames = map[uint32]string{protoICMP: "icmp", protoTCP: "tcp", protoUDP: "udp", protoICMPv6: "icmpv6",
	protoSCTP: "sctp", protoUDPLite: "udplite"}

func protocolName(n uint32) string {
	if name := protocolNames[n]; name != "" {
		return name
	}
	return strconv.FormatUint(uint64(n), 10)
}

// context is the information about the packet from other matches of a rule, which decides nft's name of a field. 0 for
// unknown.
type context struct{ family, protocol uint32 }

func contextOf(r *Rule) context {
	var c context
	for _, m := range r.Matches {
		switch {
		case m.Not:
		case m.Field == Family:
			c.family = m.Low
		case m.Field == Protocol:
			c.protocol = m.Low
		}
	}
	return c
}

// String renders the rule as nft would have it.
func (r Rule) String() string {
	words := append(r.conditions(), r.effects()...)
	if len(words) == 0 {
		words = []string{Verdict{}.text()} // nft takes a comment alone as the chain's
	}
	if r.Comment != "" {
		words = append(words, commentText(r.Comment))
	}
	return strings.Join(words, " ")
}

// conditions leaves out those that a later match implies: "tcp dport 80" is about TCP.
func (r *Rule) conditions() []string {
	c := contextOf(r)
	var words []string
	for i, m := range r.Matches {
		implied := slices.ContainsFunc(r.Matches[i+1:], func(later Match) bool {
			return !m.Not && (m.Field == Family && later.impliesFamily() ||
				m.Field == Protocol && later.impliesProtocol(c))
		})
		if !implied {
			words = append(words, m.text(c))
		}
	}
	if r.Over != (Limit{}) {
		words = append(words, r.Over.text())
	}
	return words
}

func (m *Match) impliesFamily() bool {
	return slices.Contains([]Field{Source, Destination, SourceEndpoint, DestinationEndpoint, HopLimit, Fragment},
		m.Field)
}

func (m *Match) impliesProtocol(c context) bool {
	switch m.Field {
	case SourcePort, DestinationPort:
		return c.transport() != "th"
	case ICMP:
		return m.icmpWord(c) != ""
	}
	return false
}

// transport is the word before sport and dport.
func (c context) transport() string {
	switch c.protocol {
	case protoTCP, protoUDP, protoSCTP, protoUDPLite:
		return protocolNames[c.protocol]
	}
	return "th"
}

func (c context) network(m *Match) string {
	family := c.family
	if m.Prefix.IsValid() {
		family = 6
		if m.Prefix.Addr().Is4() {
			family = 4
		}
	}
	switch family {
	case 4:
		return "ip "
	case 6:
		return "ip6 "
	}
	return ""
}

// String renders the condition as nft would have it, as far as that does not depend on the rest of the rule.
func (m Match) String() string {
	var c context
	return m.text(c)
}

func (m *Match) text(c context) string {
	switch m.Field {
	case Family:
		return "meta nfproto " + m.not() + map[uint32]string{4: "ipv4", 6: "ipv6"}[m.Low]
	case InInterface:
		return "iifname " + m.not() + quoted(m.Name)
	case OutInterface:
		return "oifname " + m.not() + quoted(m.Name)
	case Protocol:
		return "meta l4proto " + m.not() + protocolName(m.Low)
	case Source:
		return c.network(m) + "saddr " + m.not() + m.value()
	case Destination:
		return c.network(m) + "daddr " + m.not() + m.value()
	case SourcePort:
		return c.transport() + " sport " + m.not() + m.value()
	case DestinationPort:
		return c.transport() + " dport " + m.not() + m.value()
	case SourceEndpoint:
		return c.network(m) + "saddr . meta l4proto . th sport " + m.not() + m.value()
	case DestinationEndpoint:
		return c.network(m) + "daddr . meta l4proto . th dport " + m.not() + m.value()
	case ICMP:
		return m.icmpText(c)
	case ConnState:
		return "ct state " + m.bits(connStates)
	case ConnStatus:
		return "ct status " + m.bits(connStatuses)
	case PacketMark:
		return fmt.Sprintf("meta mark & 0x%x %s 0x%x", m.Mask, map[bool]string{false: "==", true: "!="}[m.Not], m.Low)
	case NoReturnRoute:
		return "fib saddr . mark . iif oif " + map[bool]string{false: "missing", true: "exists"}[m.Not]
	case SourceLocal:
		return "fib saddr type " + m.not() + "local"
	case DestinationLocal:
		return "fib daddr type " + m.not() + "local"
	case SourceOfOutInterface:
		return "fib saddr . oif type " + m.not() + "local"
	case ConnSource:
		return "ct original " + c.network(m) + "saddr " + m.not() + m.value()
	case ConnReplySource:
		return "ct reply " + c.network(m) + "saddr " + m.not() + m.value()
	case SourceRoute:
		return "fib saddr oifname " + m.not() + quoted(m.Name)
	case HopLimit:
		return fmt.Sprintf("%s %s%d", map[uint32]string{4: "ip ttl", 6: "ip6 hoplimit"}[c.family], m.not(), m.Low)
	case Fragment:
		return m.fragmentText(c)
	case VNI:
		return fmt.Sprintf("@th,96,24 %s0x%x", m.not(), m.Low)
	}
	return fmt.Sprintf("field %d", m.Field)
}

// fragmentText: more fragments follow, or it has an offset.
func (m *Match) fragmentText(c context) string {
	if c.family == 6 {
		return "exthdr frag " + map[bool]string{false: "exists", true: "missing"}[m.Not]
	}
	return "ip frag-off & 0x3fff " + map[bool]string{false: "!=", true: "=="}[m.Not] + " 0x0"
}

func (m *Match) not() string {
	if m.Not {
		return "!= "
	}
	return ""
}

// value is the address, the ports or the set to compare with.
func (m *Match) value() string {
	switch {
	case m.Set != "":
		return "@" + printable(m.Set)
	case m.Field == SourcePort || m.Field == DestinationPort:
		return rangeText(m.Low, m.High)
	}
	return prefixText(m.Prefix)
}

// icmpWord is nft's name of the protocol if nft can express the condition in words. Type and code together cannot be
// negated.
func (m *Match) icmpWord(c context) string {
	if name := protocolNames[c.protocol]; (name == "icmp" || name == "icmpv6") &&
		(m.Mask == 0xff00 || m.Mask == 0xffff && !m.Not) {
		return name
	}
	return ""
}

func (m *Match) icmpText(c context) string {
	word := m.icmpWord(c)
	switch {
	case word != "" && m.Mask == 0xff00:
		return fmt.Sprintf("%s type %s%d", word, m.not(), m.Low>>8)
	case word != "":
		return fmt.Sprintf("%s type %d %s code %d", word, m.Low>>8, word, m.Low&0xff)
	case m.Mask == 0xffff:
		return fmt.Sprintf("@th,0,16 %s0x%x", m.not(), m.Low)
	}
	return fmt.Sprintf("@th,0,16 & 0x%x %s 0x%x", m.Mask, map[bool]string{false: "==", true: "!="}[m.Not], m.Low)
}

type bitName struct {
	bit  uint32
	name string
}

var (
	connStates = []bitName{{ConnInvalid, "invalid"}, {ConnEstablished, "established"}, {ConnRelated, "related"},
		{ConnNew, "new"},
		{ConnUntracked, "untracked"}}
	connStatuses = []bitName{{ConnSNAT, "snat"}, {ConnDNAT, "dnat"}}
)

// bits: nft takes a list as "one of".
func (m *Match) bits(names []bitName) string {
	var list []string
	rest := m.Mask
	for _, n := range names {
		if rest&n.bit != 0 {
			list = append(list, n.name)
			rest &^= n.bit
		}
	}
	if rest != 0 || len(list) == 0 {
		list = append(list, fmt.Sprintf("0x%x", rest))
	}
	if m.Not {
		return "! " + strings.Join(list, ",")
	}
	return strings.Join(list, ",")
}

func (l Limit) text() string {
	switch {
	case l.Packets > 0 && l.Connections > 0:
		return Limit{Packets: l.Packets, Burst: l.Burst}.text() + " " + Limit{Connections: l.Connections}.text()
	case l.Connections > 0:
		return fmt.Sprintf("ct count over %d", l.Connections)
	case l.Bytes > 0:
		return fmt.Sprintf("limit rate over %d bytes/second burst %d bytes", l.Bytes, l.Bytes)
	}
	return "limit rate over " + rateText(l.Packets, l.Burst, PerSecond)
}

func rateText(packets uint64, burst uint32, per RateUnit) string {
	text := fmt.Sprintf("%d/%s", packets, map[RateUnit]string{PerSecond: "second", PerMinute: "minute", PerHour: "hour",
		PerDay: "day"}[per])
	if burst > 0 {
		text += fmt.Sprintf(" burst %d packets", burst)
	}
	return text
}

// effects lists the effects of the rule, in the order of execution.
func (r *Rule) effects() []string {
	var words []string
	if r.Counter {
		words = append(words, "counter")
	}
	if r.CountedBy != "" {
		words = append(words, "counter name "+quoted(r.CountedBy))
	}
	if r.Log.Enabled() {
		words = append(words, r.Log.text())
	}
	if r.Mark.Mask != 0 {
		words = append(words, r.Mark.text())
	}
	if r.DSCP.Set {
		words = append(words, fmt.Sprintf("%s dscp set %d", map[uint32]string{4: "ip", 6: "ip6"}[contextOf(r).family],
			r.DSCP.Value))
	}
	if r.NoTrack {
		words = append(words, "notrack")
	}
	if r.ClampMSS {
		words = append(words, "tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu")
	}
	if r.Verdict.Action != Continue {
		words = append(words, r.Verdict.text())
	}
	return words
}

func (l Log) text() string {
	var words []string
	if l.Rate > 0 {
		words = append(words, "limit rate "+rateText(l.Rate, l.Burst, l.Per))
	}
	if l.Kernel != "" {
		words = append(words, "log prefix "+quoted(l.Kernel))
	}
	if l.Group > 0 {
		words = append(words, "log")
		if l.Prefix != "" {
			words = append(words, "prefix "+quoted(l.Prefix))
		}
		words = append(words, fmt.Sprintf("group %d snaplen 128", l.Group)) // enough for the headers
	}
	return strings.Join(words, " ")
}

func (m Mark) text() string {
	value := m.Value & m.Mask
	switch {
	case m.Mask == 0xffffffff:
		return fmt.Sprintf("meta mark set 0x%x", value)
	case value == 0:
		return fmt.Sprintf("meta mark set meta mark & 0x%08x", ^m.Mask)
	case value == m.Mask:
		return fmt.Sprintf("meta mark set meta mark | 0x%x", value)
	}
	return fmt.Sprintf("meta mark set meta mark & 0x%08x | 0x%x", ^m.Mask, value)
}

func (v Verdict) text() string {
	switch v.Action {
	case Continue:
		return "continue"
	case Accept:
		return "accept"
	case Drop:
		return "drop"
	case Reject:
		return "reject with icmpx port-unreachable"
	case RejectTCP:
		return "reject with tcp reset"
	case Return:
		return "return"
	case Jump:
		return "jump " + printable(v.Chain)
	case Goto:
		return "goto " + printable(v.Chain)
	case Lookup:
		if v.Out {
			return "oifname vmap @" + printable(v.Map)
		}
		return "iifname vmap @" + printable(v.Map)
	case Masquerade:
		return "masquerade" + v.ports(" to :") + v.random()
	case SNAT:
		return v.translation("snat") + v.ports(":") + v.random()
	case KeepSource:
		if v.Address.Is4() {
			return "snat ip to ip saddr"
		}
		return "snat ip6 to ip6 saddr"
	case DNAT:
		return v.translation("dnat")
	}
	return fmt.Sprintf("action %d", v.Action)
}

// String renders the verdict as nft would have it.
func (v Verdict) String() string { return v.text() }

func (v Verdict) translation(word string) string {
	if v.Address.Is4() {
		return word + " ip to " + v.Address.String()
	}
	if v.Low > 0 {
		return word + " ip6 to [" + v.Address.String() + "]"
	}
	return word + " ip6 to " + v.Address.String()
}

func (v Verdict) ports(before string) string {
	if v.Low == 0 {
		return ""
	}
	return before + rangeText(uint32(v.Low), uint32(v.High))
}

func (v Verdict) random() string {
	if v.Random {
		return " fully-random"
	}
	return ""
}

// String names the action as its verdict is rendered, without a target.
func (a Action) String() string {
	switch a {
	case Jump, Goto, Lookup, SNAT, KeepSource, DNAT:
		return [...]string{Jump: "jump", Goto: "goto", Lookup: "vmap", SNAT: "snat", KeepSource: "snat to saddr",
			DNAT: "dnat"}[a]
	}
	return Verdict{Action: a}.text()
}
