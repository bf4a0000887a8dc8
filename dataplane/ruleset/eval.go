package ruleset

import (
	"net/netip"
)

// Packet has the fields of a packet, and of its connection, that rules match.
type Packet struct {
	In, Out                     string // interfaces; empty at hooks where there is none
	Source, Destination         netip.Addr
	Protocol                    uint8
	SourcePort, DestinationPort uint16 // of TCP, UDP, UDP-Lite, DCCP and SCTP
	ICMPType, ICMPCode          uint8
	HopLimit                    uint8 // or TTL
	// of the connection: ConnEstablished, ..., ConnDNAT, ...; a State of 0 is ConnNew
	State, Status               uint32
	ConnSource, ConnReplySource netip.Addr // compared for the states that have a connection; invalid: never equal
	Mark                        uint32
	DSCP                        DSCP // that rules have set; they match nothing of it
	// Fragment: it is the first part of a larger packet, or comes as parts whose addresses are these.
	Fragment bool
	// VXLAN: it is a datagram with a VXLAN header, of the network VNI.
	VXLAN bool
	VNI   uint32
}

// Host has the facts besides the table that a verdict depends on. A nil function has no facts.
type Host struct {
	// IsLocal reports whether an address is one of this host's. Loopback addresses are, unasked.
	IsLocal func(netip.Addr) bool
	// ReturnInterface names the interface that packets to an address leave through, "" if there is no route. If it is
	// nil, no packet fails the check of the way back, and none has a SourceRoute.
	ReturnInterface func(netip.Addr) string
	// OwnsAddress reports whether an interface has an address.
	OwnsAddress func(iface string, a netip.Addr) bool
	// SourceFor is the address of an interface that Masquerade uses in the place of another of the same family. If it
	// is nil, Masquerade leaves the source as it is.
	SourceFor func(iface string, instead netip.Addr) netip.Addr
}

// Result is the fate of a packet.
type Result struct {
	Action Action // Accept, Drop, Reject or RejectTCP
	Packet Packet // as it goes on: with its mark and DSCP, and translated
	// Where it was dropped: the rule counts from 1. Empty if it was accepted.
	Hook  Hook
	Chain string
	Rule  int
	By    *Rule
}

// Accepted reports whether the packet goes on.
func (r Result) Accepted() bool { return r.Action == Accept }

// Bounds of the kernel: it refuses tables in which chains call each other deeper, and those with loops.
const (
	maxDepth  = 16
	maxChains = 1 << 20
)

// Eval evaluates the base chains of a hook for a packet as the kernel does: in order of priority, each seeing the
// changes by the ones before, until one drops it. An accept ends only its base chain. NAT chains see only the first
// packet of a connection, and none after the one that translated it. Chains before connection tracking (priority below
// -200 at Prerouting and Output) see an invalid connection. Limits are taken as not exceeded. A jump to a chain that is
// missing, or too deep, drops: the kernel takes no such table. Steps are added to trace unless that is nil.
func (t *Table) Eval(h *Host, hook Hook, p Packet, trace *Trace) Result {
	if h == nil {
		h = &Host{}
	}
	if p.State == 0 {
		p.State = ConnNew
	}
	switch hook {
	case Prerouting, Input:
		p.Out = ""
	case Output:
		p.In = ""
	}
	r := run{table: t, host: h, hook: hook, packet: p, trace: trace}
	for _, c := range t.hooked[hook] {
		r.early = c.Base.Priority < -200 && (hook == Prerouting || hook == Output)
		r.whole = !r.early || c.Base.Priority >= -400
		if c.Base.Type == NAT && (r.translated || r.packet.State != ConnNew) {
			continue
		}
		if action := r.base(c); action != Accept {
			return Result{Action: action, Packet: r.packet, Hook: hook, Chain: r.chain.Name, Rule: r.rule, By: r.by()}
		}
	}
	return Result{Action: Accept, Packet: r.packet}
}

// EvalForward shows a packet that is routed through this host to Prerouting, Forward and Postrouting. p.Out is where
// the routes lead it after Prerouting.
func (t *Table) EvalForward(h *Host, p Packet, trace *Trace) Result {
	return t.evalPath(h, p, trace, Prerouting, Forward, Postrouting)
}

// EvalInput shows a packet for this host to Prerouting and Input.
func (t *Table) EvalInput(h *Host, p Packet, trace *Trace) Result {
	return t.evalPath(h, p, trace, Prerouting, Input)
}

// EvalOutput shows a packet of this host to Output and Postrouting.
func (t *Table) EvalOutput(h *Host, p Packet, trace *Trace) Result {
	p.In = ""
	return t.evalPath(h, p, trace, Output, Postrouting)
}

func (t *Table) evalPath(h *Host, p Packet, trace *Trace, hooks ...Hook) Result {
	r := Result{Action: Accept, Packet: p}
	for _, hook := range hooks {
		if r = t.Eval(h, hook, r.Packet, trace); !r.Accepted() {
			break
		}
		r.Packet.In, r.Packet.Out = p.In, p.Out // an interface that this hook does not see the next one may
	}
	return r
}

// run is one packet at one hook.
type run struct {
	table      *Table
	host       *Host
	hook       Hook
	packet     Packet
	trace      *Trace
	early      bool // before connection tracking
	whole      bool // after the reassembly for it
	translated bool
	chains     int // that were entered

	first *Chain // the base chain
	chain *Chain
	rule  int // in chain, counts from 1
	stack [maxDepth]frame
	depth int
}

// frame is where a jump returns to.
type frame struct {
	chain *Chain
	rule  int
}

func (r *run) by() *Rule {
	if r.rule > 0 && r.rule <= len(r.chain.Rules) {
		return &r.chain.Rules[r.rule-1]
	}
	return nil
}

// base runs one base chain to its verdict.
func (r *run) base(c *Chain) Action {
	r.first, r.chain, r.rule, r.depth = c, c, 0, 0
	for {
		if r.rule == len(r.chain.Rules) { // the end of a chain is a return
			if r.back() {
				continue
			}
			r.trace.end(r)
			return Accept
		}
		r.rule++
		rule := &r.chain.Rules[r.rule-1]
		failed, holds := r.holds(rule)
		if !holds {
			r.trace.failed(r, rule, failed)
			continue
		}
		v := r.effect(rule)
		r.trace.matched(r, rule, v)
		switch v.Action {
		case Continue:
		case Return:
			if !r.back() {
				return Accept
			}
		case Jump, Goto:
			if !r.enter(v) {
				return Drop
			}
		case Masquerade, SNAT, KeepSource, DNAT:
			r.translate(v)
			return Accept
		default:
			return v.Action
		}
	}
}

// back returns to the rule after the jump; false if there was none.
func (r *run) back() bool {
	if r.depth == 0 {
		return false
	}
	r.depth--
	r.chain, r.rule = r.stack[r.depth].chain, r.stack[r.depth].rule
	return true
}

// enter goes to a chain. After a goto, the return is to the place to which the chain that is left would return.
func (r *run) enter(v Verdict) bool {
	target := r.table.chains[v.Chain]
	r.chains++
	if target == nil || r.chains > maxChains {
		return false
	}
	if v.Action == Jump {
		if r.depth == maxDepth {
			return false
		}
		r.stack[r.depth] = frame{r.chain, r.rule}
		r.depth++
	}
	r.chain, r.rule = target, 0
	return true
}

// effect applies the effects of a rule besides its verdict, which it returns: that of the map for a Lookup.
func (r *run) effect(rule *Rule) Verdict {
	if m := rule.Mark; m.Mask != 0 {
		r.packet.Mark = r.packet.Mark&^m.Mask | m.Value&m.Mask
	}
	if rule.DSCP.Set {
		r.packet.DSCP = rule.DSCP
	}
	if rule.NoTrack && (r.early || r.packet.State == ConnInvalid) { // a packet that has a connection keeps it
		r.packet.State, r.packet.Status = ConnUntracked, 0
	}
	v := rule.Verdict
	if v.Action != Lookup {
		return v
	}
	iface := r.packet.In
	if v.Out {
		iface = r.packet.Out
	}
	return r.table.verdict(v.Map, iface)
}

func (r *run) translate(v Verdict) {
	r.translated = true
	p := &r.packet
	switch {
	case v.Action == DNAT && p.Destination != v.Address:
		p.Destination = v.Address
		p.Status |= ConnDNAT
	case v.Action == Masquerade && r.host.SourceFor != nil:
		v.Address = r.host.SourceFor(p.Out, p.Source)
		fallthrough
	case v.Action == SNAT:
		if v.Address.IsValid() && p.Source != v.Address {
			p.Source = v.Address
			p.Status |= ConnSNAT
		}
	}
}
