package server

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/dataplane/flowtrace"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy/explain"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// FlowTracer has the calls of *nftables.Conn that the server uses.
type FlowTracer interface {
	TraceFlow(ctx context.Context, f nftables.Flow, armed func(), handle func(nftables.TraceStep)) error
}

// Limits of a request.
const (
	tracePackets     = 1
	traceMostPackets = 1000
	traceTimeout     = 30 * time.Second
	traceMostTime    = time.Hour
	traceMostCalls   = 8 // at a time: each costs every packet of the host a little
	traceMostOthers  = 5 // packets without evidence about the explanation are reported so many times
)

// tracePoll is how often packets are looked for that are not seen any more.
const tracePoll = 20 * time.Millisecond

// TraceFlow implements manxv1.ManxServer.
func (v *PolicyView) TraceFlow(
	r *manxv1.TraceFlowRequest, stream grpc.ServerStreamingServer[manxv1.TraceFlowResponse],
) error {
	agent, err := v.agent()
	if err != nil {
		return err
	}
	tracer := v.now().Tracer
	if tracer == nil {
		return status.Error(codes.FailedPrecondition, "this manxd cannot trace packets")
	}
	t := liveTrace{world: func() explain.World { return v.explainWorld(agent) }, tracer: tracer, node: v.node,
		stream: stream, wanted: tracePackets, timeout: traceTimeout}
	if err := t.read(r); err != nil {
		return err
	}
	if n := v.traces.Add(1); n > traceMostCalls {
		v.traces.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "%d flows are traced already: try again when one of "+
			"them has ended", traceMostCalls)
	}
	defer v.traces.Add(-1)
	v.log.Info("packets of a flow are traced", append(callerFields(stream.Context()),
		zap.Strings("sources", texts(t.flow.Sources)), zap.Strings("destinations", texts(t.flow.Destinations)),
		zap.Stringer("flow", t.answer.Flow), zap.Duration("timeout", t.timeout))...)
	return t.run(stream.Context())
}

// liveTrace is one call of TraceFlow.
type liveTrace struct {
	world  func() explain.World // as it is now
	tracer FlowTracer
	node   string
	stream grpc.ServerStreamingServer[manxv1.TraceFlowResponse]

	wanted  int
	timeout time.Duration

	question explain.Question
	answer   *explain.Answer
	hop      explain.Hop
	flow     nftables.Flow

	collector flowtrace.Collector
	decisive  int // packets with evidence about the explanation
	others    int
}

// read parses the request and determines the trace on this node.
func (t *liveTrace) read(r *manxv1.TraceFlowRequest) error {
	switch {
	case r.GetPackets() > traceMostPackets:
		return status.Errorf(codes.InvalidArgument, "packets = %d: want 1 to %d", r.GetPackets(), traceMostPackets)
	case r.GetTimeoutMs() < 0 || r.GetTimeoutMs() > traceMostTime.Milliseconds():
		return status.Errorf(codes.InvalidArgument, "timeout_ms = %d: want 1 to %d", r.GetTimeoutMs(),
			traceMostTime.Milliseconds())
	}
	if n := r.GetPackets(); n > 0 {
		t.wanted = int(n)
	}
	if ms := r.GetTimeoutMs(); ms > 0 {
		t.timeout = time.Duration(ms) * time.Millisecond
	}
	flow, err := explain.ParseFlow(r.GetFlow())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	t.question = explain.Question{Source: r.GetSource(), Destination: r.GetDestination(), Flow: flow, IPv6: r.GetIpv6()}
	if t.answer, err = explain.Explain(t.world(), t.question); err != nil {
		return status.Error(codes.NotFound, err.Error())
	}
	there := false
	if t.hop, there = t.answer.HopAt(t.node); !there {
		var nodes []string
		for _, h := range t.answer.Hops {
			nodes = append(nodes, h.Node)
		}
		return status.Errorf(codes.FailedPrecondition, "packets from %s to %s do not come through node %s: "+
			"ask on node %s",
			t.answer.Source, t.answer.Destination, t.node, strings.Join(nodes, " or "))
	}
	t.flow = nftables.Flow{
		Sources:      addresses(t.hop.Source, t.answer.Source),
		Destinations: addresses(t.hop.Destination, t.answer.Destination),
		Protocol:     t.answer.Flow.Protocol, Port: t.answer.Flow.Port,
	}
	if f := t.answer.Flow; f.Protocol == protoICMP || f.Protocol == protoICMPv6 {
		t.flow.HasICMP, t.flow.ICMPType, t.flow.HasCode, t.flow.ICMPCode = true, f.ICMPType, f.HasICMP, f.ICMPCode
	}
	return nil
}

const (
	protoICMP   = 1
	protoICMPv6 = 58
)

// addresses of an end in packets that come to this node: translated ones if they are translated before, else any that
// it has.
func addresses(here netip.Addr, e explain.End) []netip.Addr {
	if here != e.Address {
		return []netip.Addr{here}
	}
	return e.Addresses()
}

// run traces until there were enough packets.
func (t *liveTrace) run(ctx context.Context) error {
	tracing, stop := context.WithCancel(ctx)
	steps, armed, failed := make(chan nftables.TraceStep, 1024), make(chan struct{}), make(chan error, 1)
	go func() {
		failed <- t.tracer.TraceFlow(tracing, t.flow, func() { close(armed) }, func(s nftables.TraceStep) {
			select {
			case steps <- s:
			case <-tracing.Done():
			}
		})
	}()
	ended := false
	defer func() { // nothing is left in the kernel when the client receives the end
		stop()
		if !ended {
			<-failed
		}
	}()
	poll := time.NewTicker(tracePoll)
	defer poll.Stop()
	var over <-chan time.Time // runs from when packets can be seen
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return nil
		case err := <-failed:
			ended = true
			return traceError(err)
		case <-armed:
			armed, over = nil, time.After(t.timeout)
			if err := t.stream.Send(t.armed()); err != nil {
				return err
			}
		case s := <-steps:
			t.collector.Add(s, time.Now())
		case now := <-poll.C:
			if len(steps) > 0 { // a slow host, not a packet that is not seen any more
				continue
			}
			if full, err := t.send(t.collector.Take(now)); full || err != nil {
				return err
			}
		}
	}
}

func traceError(err error) error {
	switch {
	case errors.Is(err, nftables.ErrMissing):
		return status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

func (t *liveTrace) armed() *manxv1.TraceFlowResponse {
	return &manxv1.TraceFlowResponse{Answer: &manxv1.TraceFlowResponse_Armed{Armed: &manxv1.TraceArmed{
		Node: t.node, Sources: texts(t.flow.Sources), Destinations: texts(t.flow.Destinations),
		Flow: t.answer.Flow.String()}}}
}

func texts(list []netip.Addr) []string {
	out := make([]string, len(list))
	for i, a := range list {
		out[i] = a.String()
	}
	return out
}

// send sends the results about packets; full when there were enough.
func (t *liveTrace) send(packets []*flowtrace.Packet) (full bool, err error) {
	for _, p := range packets {
		answer := t.explain(p)
		verdict, reasons := flowtrace.Compare(p, answer, t.node)
		if verdict == flowtrace.Undecided {
			if t.others++; t.others > traceMostOthers {
				continue
			}
		} else {
			t.decisive++
		}
		m := tracedPacket(p)
		m.Verdict, m.Reasons, m.Explained = string(verdict), reasons, explainedLine(answer)
		if err := t.stream.Send(&manxv1.TraceFlowResponse{
			Answer: &manxv1.TraceFlowResponse_Packet{Packet: m}}); err != nil {
			return false, err
		}
		if t.decisive >= t.wanted {
			return true, nil
		}
	}
	return false, nil
}

// explain explains a packet by its real addresses and ports, which the question may have left open.
func (t *liveTrace) explain(p *flowtrace.Packet) *explain.Answer {
	q := t.question
	if a := p.First.Source; a.IsValid() && a != t.hop.Source {
		q.Source = a.String()
	}
	// Another program translates a service before policy is evaluated.
	if a := p.Last.Destination; a.IsValid() && a != t.hop.Destination {
		q.Destination = a.String()
	}
	q.Flow = t.answer.Flow
	q.Flow.Port, q.Flow.SourcePort = p.Last.DestinationPort, p.First.SourcePort
	q.Flow.HasICMP, q.Flow.ICMPType, q.Flow.ICMPCode = true, p.First.ICMPType, p.First.ICMPCode
	answer, err := explain.Explain(t.world(), q)
	if err != nil {
		return t.answer
	}
	return answer
}

func explainedLine(a *explain.Answer) string {
	verdict := "DENIED"
	if a.Allowed {
		verdict = "ALLOWED"
	}
	if a.By == "" {
		return verdict + ": no policy is about it"
	}
	return verdict + " by " + a.By
}

func tracedPacket(p *flowtrace.Packet) *manxv1.TracedPacket {
	m := &manxv1.TracedPacket{
		Source: text(p.First.Source), Destination: text(p.First.Destination),
		Protocol:   explain.ProtocolName(p.First.Protocol),
		SourcePort: uint32(p.First.SourcePort), DestinationPort: uint32(p.First.DestinationPort), In: p.First.In,
		Out:        p.Out,
		Connection: p.Connection, End: p.End.Text, Dropped: p.End.Kind == flowtrace.Dropped,
	}
	for i := range p.Chains {
		c := &p.Chains[i]
		out := &manxv1.TracedChain{Hook: c.Hook, Table: fmt.Sprintf("%s %s", c.Family, c.Table), Chain: c.Name,
			Priority: c.Priority, Verdict: c.Verdict, By: c.By(), Decision: tracedDecision(c.Decision())}
		if c.Headers != nil {
			out.Source, out.Destination = text(c.Headers.Source), text(c.Headers.Destination)
		}
		for _, s := range c.Steps {
			if s.Kind == nftables.TraceRule {
				rule := tracedRule(s.Chain, s.Rule)
				rule.Verdict = strings.TrimSpace(s.Verdict + " " + s.Target)
				out.Rules = append(out.Rules, rule)
			}
		}
		m.Chains = append(m.Chains, out)
	}
	return m
}

func tracedRule(chain string, r nftables.TracedRule) *manxv1.TracedRule {
	return &manxv1.TracedRule{Chain: chain, Handle: r.Handle, Number: uint32(r.Number), Comment: r.Comment}
}

// tracedDecision is nil if nothing decided.
func tracedDecision(d flowtrace.Decision) *manxv1.TracedDecision {
	out := &manxv1.TracedDecision{Chain: d.Chain, Policy: d.Policy}
	switch {
	case d == flowtrace.Decision{}:
		return nil
	case d.Policy == "":
		out.Rule = tracedRule(d.Chain, d.Rule)
	}
	return out
}
