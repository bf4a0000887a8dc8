package hostfirewall

import "net/netip"

// Table is one table of nftables of another program.
type Table struct {
	Family string // "ip", "ip6" or "inet"
	Name   string
	Chains map[string]*Chain
}

// Chain is one chain, with the rules that were read.
type Chain struct {
	Name  string
	Base  *Base // nil: packets come by jumps alone
	Rules []Rule
	// Unread is why its rules are not known; empty if they are.
	Unread string
}

// Base is the place of a base chain that filters.
type Base struct {
	Hook     string // "prerouting", "input", "forward", "output" or "postrouting"
	Priority int32
	Drop     bool // its policy
}

// Rule is one rule. An entry of a verdict map is a rule, too, with the number of the rule that looks it up.
type Rule struct {
	Number  int // counts from 1
	Handle  uint64
	Comment string
	Matches []Match
	// Unread names the conditions that cannot be read, such as "match set".
	Unread  []string
	Verdict Verdict
	Target  string // of a jump or goto; with Unreadable the name of the statement
}

// Verdict is the action of a rule.
type Verdict uint8

const (
	Continue Verdict = iota
	Accept
	Drop // or reject
	Jump
	Goto
	Return
	Unreadable // the packet may end here in either way
)

// Field is a property of a packet.
type Field uint8

const (
	InName Field = iota + 1
	OutName
	Source
	Destination
	Family // NFPROTO_IPV4 or NFPROTO_IPV6
	Protocol
	SourcePort
	DestinationPort
	State  // of the connection, as bits of nf_tables
	Status // of the connection, as bits of IPS_*
	Mark
)

// States of a connection.
const (
	stateInvalid   = 1
	StateNew       = 8
	StateUntracked = 64
)

// Match is a condition: the field has one of the values, or with Not none of them.
type Match struct {
	Field  Field
	Not    bool
	Mask   uint32 // of State, Status and Mark: the bits that are compared
	Values []Value
}

// Value is one value or a range. The kind of the field decides which of its fields count.
type Value struct {
	Text     string // of interfaces
	Begins   bool   // Text is the beginning of the name
	From, To netip.Addr
	Low      uint32
	High     uint32
}

// Packet is a set of packets that are alike.
type Packet struct {
	In, Out             Interface
	Source, Destination netip.Prefix
	// Protocol is 0 for any; ports are 0 for any.
	Protocol        uint8
	SourcePort      uint16
	DestinationPort uint16
	State           uint32 // 0 in LocalPackets: of a new connection
	Marks           uint32 // bits of the mark that the packets may have; 0: Calico's standard ones
}

// Interface is that by which a packet comes or leaves. The zero value stands for none.
type Interface struct {
	Name string
	Any  bool // its name is not known
}
