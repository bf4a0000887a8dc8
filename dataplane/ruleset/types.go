package ruleset

import (
	"net/netip"
)

// Hook is a place where the kernel passes packets to base chains.
type Hook uint8

// The hooks of the inet family, in the order in which a forwarded packet meets them.
const (
	Prerouting Hook = iota + 1
	Input
	Forward
	Output
	Postrouting
)

// ChainType is the type of a base chain.
type ChainType uint8

// Only the first packet of a connection meets NAT chains.
const (
	Filter ChainType = iota + 1
	NAT
	Route // of Output: a packet whose mark it changes is routed again
)

// Base attaches a chain to a hook. Chains of one hook are evaluated in order of Priority; their policy is accept.
type Base struct {
	Hook     Hook
	Type     ChainType
	Priority int32
}

// Origin is the source of a chain, a rule or a set, as a value of a type of the table's maker. It is for that package
// and its readers alone: the kernel does not get it, no ID depends on it, and equal leaves it out. nil: unknown.
type Origin any

// Chain is a list of rules. An accept ends only the base chain that the packet is in: the base chains that follow, of
// this table or of others, still see it. Thus egress policy of one endpoint and ingress policy of another are both
// evaluated without a mark: each is a base chain of its own.
type Chain struct {
	Name  string
	Base  *Base // nil for a chain that others jump to
	Rules []Rule
	// Origin is the source of the chain.
	Origin Origin
}

// Rule acts on the packets that all of Matches hold for: first it counts, then it logs, then it sets the mark and the
// DSCP, then it gives the verdict. It is plain data: rules are equal if all fields are (see equal).
type Rule struct {
	Matches []Match
	Over    Limit // matches only above this limit
	Counter bool
	// CountedBy names a counter of the table that counts the packets, too. Rules may share one. It keeps its value when
	// they change, unlike that of Counter.
	CountedBy string
	Log       Log
	Mark      Mark
	DSCP      DSCP // needs a Match of Family
	NoTrack   bool
	// ClampMSS lowers the maximum segment size in the first packets of a TCP connection (SYN, RFC 9293) to that of the
	// routes of both directions. It needs a Match of Protocol TCP, and a chain at Forward or Postrouting. Such a rule
	// does nothing else.
	ClampMSS bool
	Verdict  Verdict
	// Comment names the owner of the rule, such as "NetworkPolicy/default/web ingress 1", for people.
	Comment string
	// Origin is the same for programs.
	Origin Origin
}

// Field is the part of a packet that a Match compares.
type Field uint8

// In brackets: the members of Match to compare with.
const (
	Family       Field = iota + 1 // [Low] 4 or 6
	InInterface                   // [Name] a final * matches any ending
	OutInterface                  // [Name]
	Protocol                      // [Low] the transport protocol's number
	Source                        // [Prefix or Set] the address
	Destination                   // [Prefix or Set]
	// [Low to High, or Set] needs a Match of Protocol TCP, UDP or SCTP before it; High 0: Low only
	SourcePort
	DestinationPort     // [Low to High, or Set] the same
	SourceEndpoint      // [Set] address, protocol and port together
	DestinationEndpoint // [Set]
	// [Low, Mask] type<<8|code of ICMP or ICMPv6; needs a Match of Protocol before it
	ICMP
	ConnState  // [Mask] one of the bits (ConnNew, ...)
	ConnStatus // [Mask] one of the bits (ConnDNAT, ...)
	PacketMark // [Low, Mask] the mark's bits under Mask are Low
	// the route back to the source, for the same mark, does not lead through the incoming interface
	NoReturnRoute
	SourceLocal          // the source is an address of this host
	DestinationLocal     // the destination is an address of this host
	SourceOfOutInterface // the source is an address of the outgoing interface
	HopLimit             // [Low] the hop limit of IPv6 or the TTL of IPv4; needs a Match of Family before it
	// [Prefix, a single address] the sender of the connection's first packet, and that of its answer
	ConnSource
	ConnReplySource
	SourceRoute // [Name] packets to the source leave through this interface
	// a part of a larger packet; needs a Match of Family before it. Connection tracking puts the parts together, so
	// that no chain after it (priority -400 at Prerouting and Output) sees any
	Fragment
	VNI // [Low] the network of a VXLAN header (RFC 7348) in a datagram; needs a Match of Protocol UDP before it
)

// Bits of ConnState and ConnStatus, as the kernel has them.
const (
	ConnInvalid     uint32 = 1
	ConnEstablished uint32 = 2
	ConnRelated     uint32 = 4
	ConnNew         uint32 = 8
	ConnUntracked   uint32 = 64

	ConnSNAT uint32 = 1 << 4
	ConnDNAT uint32 = 1 << 5
)

// Match is one condition; Not turns it round. Addresses match only packets of their own family: a rule that matches
// addresses has a Match of Family before.
type Match struct {
	Field     Field
	Not       bool
	Name      string       // of an interface
	Prefix    netip.Prefix // a single address or network
	Set       string       // name of a Set of this table
	Low, High uint32       // inclusive; High 0: Low only
	Mask      uint32
}

// Limit holds while a rate, or the number of connections, exceeds it. The zero value is no limit. Eval takes limits
// as not exceeded.
type Limit struct {
	Packets     uint64 // a second
	Burst       uint32 // packets
	Connections uint32 // at the same time
	Bytes       uint32 // a second, and at once; 0: any. Of packets from the IP header on
}

// Log writes the packet to the kernel's own log, to user space (NFLOG), or both. The zero value writes nothing.
type Log struct {
	Kernel string // the prefix in the kernel's log, at most 127 bytes; empty: not logged there
	Group  uint16 // of NFLOG, which gets the packet's headers; 0: not logged there
	Prefix string // in NFLOG, at most 127 bytes
	// Rate and Burst bound how many packets are logged in the time of Per; 0 for all. A packet that is not logged goes
	// on to the verdict all the same, so a rule with a Rate must have no Mark, DSCP, NoTrack or Verdict.
	Rate  uint64
	Burst uint32
	Per   RateUnit
}

// Enabled reports whether the packet is logged anywhere.
func (l Log) Enabled() bool { return l.Kernel != "" || l.Group != 0 }

// RateUnit is the time that a rate is about, in seconds; 0 is one second.
type RateUnit uint32

// The verdicts of nftables.
const (
	PerSecond RateUnit = 0
	PerMinute RateUnit = 60
	PerHour   RateUnit = 60 * 60
	PerDay    RateUnit = 24 * 60 * 60
)

// Mark sets the bits under Mask to Value.
type Mark struct{ Value, Mask uint32 }

// DSCP sets the field of the IP header (RFC 2474) to Value, at most 63; the bits of ECN stay. The zero value sets none.
type DSCP struct {
	Set   bool
	Value uint8
}

// Action is the action of a verdict.
type Action uint8

// The zero Action goes on with the next rule.
const (
	Continue   Action = iota
	Accept            // ends this base chain
	Drop              // ends everything
	Reject            // drops and notifies the sender (ICMP port unreachable)
	RejectTCP         // drops and resets the TCP connection
	Return            // to the chain that jumped here
	Jump              // to Chain, and back on Return or at its end
	Goto              // to Chain, for good
	Lookup            // the verdict that Map has for the interface; goes on with the next rule if it has none
	Masquerade        // source becomes the outgoing interface's address
	SNAT              // source becomes Address
	KeepSource        // source stays: no later chain of type NAT translates it; for the family of Address
	DNAT              // destination becomes Address
)

// Verdict ends a rule.
type Verdict struct {
	Action  Action
	Chain   string     // of Jump and Goto
	Map     string     // of Lookup
	Out     bool       // Lookup by the outgoing interface rather than the incoming one
	Address netip.Addr // of SNAT and DNAT
	// Low and High bound the source ports of Masquerade and SNAT; 0 for any. Random makes the choice of port random.
	Low, High uint16
	Random    bool
}

// SetType is the type of a Set's elements.
type SetType uint8

// Families are separate types in the kernel.
const (
	Addresses4 SetType = iota + 1
	Addresses6
	Ports      // ranges of ports; always an interval set
	Endpoints4 // address, protocol, port
	Endpoints6
)

// Set is a named set. Its elements are kept apart, since there may be very many.
type Set struct {
	Name string
	Type SetType
	// Interval sets hold networks and ranges, none of which overlap; others hold single addresses and are quicker.
	Interval bool
	// Comment describes the content, such as the selector. It is not programmed, and differences in it do not count.
	Comment string
	// Origin is the source of its elements.
	Origin Origin
}

// Element is a member of a Set. Which fields are used depends on the set's type; the others are zero.
type Element struct {
	Prefix   netip.Prefix // Addresses, Endpoints
	Protocol uint8        // Endpoints
	Low      uint16       // Ports, Endpoints: the port
	High     uint16       // Ports: the last one
}

// Map is a named verdict map from interface names to verdicts (Goto and Jump only).
type Map struct {
	Name    string
	Comment string
}

// equal reports whether two rules do the same under the same name.
func (r Rule) equal(o Rule) bool {
	if len(r.Matches) != len(o.Matches) {
		return false
	}
	for i := range r.Matches {
		if r.Matches[i] != o.Matches[i] {
			return false
		}
	}
	return r.Over == o.Over && r.Counter == o.Counter && r.CountedBy == o.CountedBy && r.Log == o.Log &&
		r.Mark == o.Mark && r.DSCP == o.DSCP && r.NoTrack == o.NoTrack && r.ClampMSS == o.ClampMSS &&
		r.Verdict == o.Verdict && r.Comment == o.Comment
}

// Equal reports whether two chains are the same.
func (c *Chain) Equal(o *Chain) bool {
	if c == nil || o == nil || c.Name != o.Name || (c.Base == nil) != (o.Base == nil) || len(c.Rules) != len(o.Rules) {
		return c == o
	}
	if c.Base != nil && *c.Base != *o.Base {
		return false
	}
	for i := range c.Rules {
		if !c.Rules[i].equal(o.Rules[i]) {
			return false
		}
	}
	return true
}
