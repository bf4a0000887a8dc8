package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// liveOptions are the flags of explain for real packets.
type liveOptions struct {
	on      bool
	timeout time.Duration
	packets uint32
}

const (
	liveTimeout = 30 * time.Second
	livePackets = 1
)

// check refuses contradictory flags.
func (o liveOptions) check(files, changed bool) error {
	switch {
	case !o.on && changed:
		return usagef("--live-timeout and --live-packets need --live")
	case o.on && files:
		return usagef("--live uses the kernel and --filename uses files: want one of them")
	case o.timeout < time.Millisecond || o.timeout > time.Hour:
		return usagef("--live-timeout=%s: want 1ms to 1h", o.timeout)
	case o.packets < 1 || o.packets > 1000:
		return usagef("--live-packets=%d: want 1 to 1000", o.packets)
	}
	return nil
}

// The verdicts of a TracedPacket.
const (
	packetDiffers   = "differs"
	packetUndecided = "undecided"
)

// confirm waits for real packets of an explained flow and prints the verdict of each. In a structured format it prints
// everything at the end.
func (c *cli) confirm(ctx context.Context, o liveOptions, format table.Format, request *manxv1.TraceFlowRequest,
	explained *manxv1.Explanation) error {
	live := &manxv1.LiveTrace{}
	explained.Live = live
	people, ready := c.out, c.out
	if format != planText {
		people, ready = io.Discard, c.err
	}
	request.Packets, request.TimeoutMs = o.packets, o.timeout.Milliseconds()
	err := c.daemonFor(ctx, o.timeout+daemonTimeout, func(ctx context.Context, m manxv1.ManxClient) error {
		return liveView{live, people, ready}.follow(ctx, m, request)
	})
	switch {
	case err != nil && ctx.Err() == nil:
		return err
	case live.GetNode() == "":
		return &exitErr{exitError, "interrupted before packets were waited for"}
	}
	conclude(live, o.timeout, ctx.Err() != nil)
	if format != planText {
		if err := c.printStructured(format, explained); err != nil {
			return err
		}
	}
	switch {
	case live.GetProblem() != "":
		return &exitErr{exitError, live.GetProblem()}
	case !live.GetAgrees():
		return &exitErr{code: exitError}
	}
	return nil
}

// liveView receives the daemon's responses: in live, and as text for people. ready gets a line when packets can be
// sent.
type liveView struct {
	live          *manxv1.LiveTrace
	people, ready io.Writer
}

// follow reads the daemon's responses until their end.
func (v liveView) follow(ctx context.Context, m manxv1.ManxClient, request *manxv1.TraceFlowRequest) error {
	stream, err := m.TraceFlow(ctx, request)
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case answer.GetArmed() != nil:
			a := answer.GetArmed()
			v.live.Node = a.GetNode()
			_, err = fmt.Fprintf(v.ready, "\nWaiting for a packet of this flow through node %s (from %s to %s by %s); "+
				"send one now\n",
				a.GetNode(), strings.Join(a.GetSources(), " or "), strings.Join(a.GetDestinations(), " or "),
				a.GetFlow())
		case answer.GetPacket() != nil:
			v.live.Packets = append(v.live.Packets, answer.GetPacket())
			_, err = io.WriteString(v.people, packetText(answer.GetPacket()))
		}
		if err != nil {
			return err
		}
	}
}

// conclude returns the conclusion from the packets.
func conclude(live *manxv1.LiveTrace, timeout time.Duration, interrupted bool) {
	live.Agrees = true
	decisive := 0
	for _, p := range live.GetPackets() {
		if p.GetVerdict() != packetUndecided {
			decisive++
		}
		live.Agrees = live.Agrees && p.GetVerdict() != packetDiffers
	}
	if decisive > 0 {
		return
	}
	live.Agrees = false
	what := fmt.Sprintf("no packet of this flow came through node %s", live.GetNode())
	if len(live.GetPackets()) > 0 {
		what = fmt.Sprintf("no packet to compare came through node %s", live.GetNode())
	}
	if interrupted {
		live.Problem = "interrupted: " + what
	} else {
		live.Problem = fmt.Sprintf("%s within %s", what, timeout)
	}
}

// packetText returns a line for each base chain of a packet, with its agreement with the explanation.
func packetText(p *manxv1.TracedPacket) string {
	var b strings.Builder
	end := func(address string, port uint32) string {
		switch {
		case port == 0:
			return address
		case strings.Contains(address, ":"):
			return fmt.Sprintf("[%s]:%d", address, port)
		}
		return fmt.Sprintf("%s:%d", address, port)
	}
	table.Fprintf(&b, "\nPacket from %s to %s, %s", end(p.GetSource(), p.GetSourcePort()),
		end(p.GetDestination(), p.GetDestinationPort()), p.GetProtocol())
	if p.GetIn() != "" {
		table.Fprintf(&b, ", in through %s", p.GetIn())
	}
	if p.GetOut() != "" {
		table.Fprintf(&b, ", out through %s", p.GetOut())
	}
	if p.GetConnection() != "" {
		table.Fprintf(&b, " (connection: %s)", p.GetConnection())
	}
	b.WriteByte('\n')
	source, destination := p.GetSource(), p.GetDestination()
	for _, x := range p.GetChains() {
		if x.GetSource() != "" && (x.GetSource() != source || x.GetDestination() != destination) {
			source, destination = x.GetSource(), x.GetDestination()
			table.Fprintf(&b, "  now from %s to %s\n", source, destination)
		}
		table.Fprintf(&b, "  %-11s table %s, chain %s: %s%s\n", x.GetHook(), x.GetTable(), x.GetChain(), x.GetVerdict(),
			decisionText(x))
	}
	table.Fprintf(&b, "  => %s\n", p.GetEnd())
	if command := commandFor(p); command != "" {
		table.Fprintf(&b, "     its rules: %s\n", command)
	}
	switch p.GetVerdict() {
	case packetDiffers:
		table.Fprintf(&b, "The kernel does otherwise: %s\n  explained: %s\n", strings.Join(p.GetReasons(), "; "),
			p.GetExplained())
	case packetUndecided:
		table.Fprintf(&b, "This is no evidence about the explanation: %s\n", strings.Join(p.GetReasons(), "; "))
	default:
		table.Fprintf(&b, "The kernel agrees: %s\n", p.GetExplained())
	}
	return b.String()
}

// ownTable is manxd's table. The comments of its rules name policies.
const ownTable = "inet manx"

// decisionText returns the deciding rule of a base chain, without the name of that chain.
func decisionText(x *manxv1.TracedChain) string {
	d, rule := x.GetDecision(), x.GetDecision().GetRule()
	switch {
	case x.GetBy() == "":
		return ""
	case d == nil, d.GetChain() != x.GetChain(), x.GetTable() == ownTable && rule.GetComment() != "":
		return " by " + x.GetBy()
	case d.GetPolicy() != "":
		return " (policy " + d.GetPolicy() + ")"
	}
	text := " by a rule that is gone"
	if rule.GetNumber() != 0 {
		text = fmt.Sprintf(" by rule %d", rule.GetNumber())
	}
	text += fmt.Sprintf(" (handle %d)", rule.GetHandle())
	if rule.GetComment() != "" {
		text += fmt.Sprintf(" %q", rule.GetComment())
	}
	return text
}

// commandFor returns the command that shows the chain of another program that dropped a packet; empty if none did.
func commandFor(p *manxv1.TracedPacket) string {
	n := len(p.GetChains())
	if n == 0 || !p.GetDropped() || p.GetChains()[n-1].GetTable() == ownTable {
		return ""
	}
	last := p.GetChains()[n-1]
	chain := last.GetChain()
	if rules := last.GetRules(); len(rules) > 0 && rules[len(rules)-1].GetVerdict() == "drop" {
		chain = rules[len(rules)-1].GetChain()
	}
	return fmt.Sprintf("nft -a list chain %s %s", last.GetTable(), chain)
}
