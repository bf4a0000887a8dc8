package nftables

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"

	"github.com/manxnet/manx/dataplane/kernel/nflog"
)

// Flow is the packets to trace, of one family.
type Flow struct {
	Sources, Destinations []netip.Addr // any of them
	Protocol              uint8        // as in the header that follows IP
	Port                  uint16       // of the destination; 0 for any
	HasICMP, HasCode      bool         // whether type, and code, matter
	ICMPType, ICMPCode    uint8
}

// TraceKind is the kind of a TraceStep.
type TraceKind uint8

const (
	// TraceRule is a rule that holds for the packet.
	TraceRule TraceKind = iota + 1
	// TraceReturn is the end of a chain that was jumped to, which leads back.
	TraceReturn
	// TracePolicy is the end of a base chain, which decides by its policy.
	TracePolicy
	// TraceMarked: the packet belongs to the flow. Other packets may be traced, too, if other programs request that. It
	// comes more than once, also when the packet's addresses became those of the flow on its way.
	TraceMarked
	// TraceState carries the state of the packet in connection tracking.
	TraceState
	// TraceEnter and TraceLeave: the packet is before and behind all chains of a hook.
	TraceEnter
	TraceLeave
	// TraceLost: steps of any packets were lost, since they came too fast.
	TraceLost
)

// Verdicts of a TraceStep.
const (
	VerdictAccept   = "accept" // ends the base chain
	VerdictDrop     = "drop"
	VerdictContinue = "continue"
	VerdictReturn   = "return"
	VerdictJump     = "jump"
	VerdictGoto     = "goto"
	VerdictQueue    = "queue"  // to a program
	VerdictStolen   = "stolen" // something else takes care of it
)

// States of connections in a TraceStep.
const (
	StateNew         = "new"
	StateEstablished = "established" // or related
	StateInvalid     = "invalid"
	StateUntracked   = "untracked"
)

// TraceStep is one step of a packet through the chains of all tables.
type TraceStep struct {
	Kind    TraceKind
	Packet  uint32 // steps of one packet have the same number; numbers are used again
	Family  string // of the table: "inet", "ip", "ip6", "bridge", "netdev"
	Table   string
	Chain   string
	Base    *TracedBase // of a base chain
	Hook    string      // of TraceEnter and TraceLeave
	State   string      // of TraceState
	Fresh   bool        // of TraceMarked: nothing else has seen the packet yet
	Verdict string
	Target  string // of a jump or goto: the chain
	Rule    TracedRule
	Mark    uint32
	// Headers are those of the packet and its interfaces at this moment, without prefix; nil if the kernel sent none:
	// it sends them with the first step in each base chain.
	Headers *nflog.Packet
}

// TracedBase is where a base chain is attached.
type TracedBase struct {
	Hook     string
	Priority int32
	Type     string
}

// TracedRule is the rule of a step.
type TracedRule struct {
	Handle  uint64
	Number  int    // counts from 1 in its chain; 0 if it is gone
	Comment string // without the ID
	ID      string // of a rule of the table manx
}

// traceQueue bounds how many steps wait to be read.
const traceQueue = 8 << 20

// TraceFlow calls handle with each step that packets of a flow take through the rules, until ctx ends, from one
// goroutine; armed is called before that, when packets are traced from now on. A flood is traced in part only. All
// flows must be of one family.
//
// It needs a table of its own for as long as it runs, which the kernel removes with the socket that made it, even if
// this process is killed. Other tables are not touched.
func (r *Conn) TraceFlow(ctx context.Context, f Flow, armed func(), handle func(TraceStep)) error {
	if err := r.traceFlow(ctx, f, armed, handle); err != nil {
		return fmt.Errorf("trace packets: %w", err)
	}
	return nil
}

func (r *Conn) traceFlow(ctx context.Context, f Flow, armed func(), handle func(TraceStep)) error {
	names, err := r.open(netlink.RequestQueue)
	if err != nil {
		return err
	}
	defer names.Close()
	owner, err := r.open(netlink.RequestQueue) // not the one that reads steps: answers would be lost among them
	if err != nil {
		return err
	}
	defer owner.Close()
	steps, err := r.open(traceQueue)
	if err != nil {
		return err
	}
	if err := steps.Join(unix.NFNLGRP_NFTRACE); err != nil {
		steps.Close()
		return fmt.Errorf("listen to the kernel's traces, which takes CAP_NET_ADMIN and Linux 4.6: %w", err)
	}
	t := traceTable{name: fmt.Sprintf("%s%d", traceTablePrefix, owner.Port), flow: f}
	if err := t.commit(owner); err != nil {
		steps.Close()
		return err
	}
	armed()
	reader := traceReader{own: t.name, names: chainNames{sock: names},
		interfaceName: netlink.NewInterfaceNames(r.namespace).Of,
		pending:       map[uint32]*nflog.Packet{}}
	return steps.Follow(ctx, func(m netlink.Message) {
		if s, ok := reader.step(m); ok {
			handle(s)
		}
	}, func() { handle(TraceStep{Kind: TraceLost}) }, func() {})
}
