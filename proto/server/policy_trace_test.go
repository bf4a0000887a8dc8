package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/dataplane/kernel/nflog"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// tracer takes the place of the kernel's trace: the test's packets are traced as soon as a flow is traced.
type tracer struct {
	packets chan []nftables.TraceStep
	flows   chan nftables.Flow
	ended   chan struct{}
	err     error
}

func (x *tracer) TraceFlow(ctx context.Context, f nftables.Flow, armed func(), handle func(nftables.TraceStep)) error {
	if x.err != nil {
		return x.err
	}
	x.flows <- f
	armed()
	defer func() { x.ended <- struct{}{} }()
	for n := uint32(1); ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case steps := <-x.packets:
			for _, s := range steps {
				s.Packet = n
				handle(s)
			}
		}
	}
}

// withTracer returns a server with a policy, and its tracer.
func withTracer(t *testing.T) (*rig, *rules, *tracer) {
	r, p := withPolicy(t)
	x := &tracer{packets: make(chan []nftables.TraceStep, 100), flows: make(chan nftables.Flow, 100),
		ended: make(chan struct{}, 100)}
	r.source.Trace = x
	r.show()
	return r, p, x
}

// udp is a packet to the workload that policy allows: the rule of the table that does, or, of another table, a chain
// that drops.
func udp(t *testing.T, p *rules, state string, drop bool) []nftables.TraceStep {
	t.Helper()
	h := &nflog.Packet{Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("10.65.0.1"),
		Protocol: 17, SourcePort: 4000, DestinationPort: 53, In: "eth0", Out: "cali1"}
	list := []nftables.TraceStep{
		{Kind: nftables.TraceMarked, Fresh: true, Headers: h}, {Kind: nftables.TraceEnter, Hook: "prerouting"},
		{Kind: nftables.TraceState, State: state},
		{Kind: nftables.TraceLeave, Hook: "prerouting"}, {Kind: nftables.TraceEnter, Hook: "forward"},
	}
	if drop {
		return append(list, nftables.TraceStep{Kind: nftables.TracePolicy, Family: "ip", Table: "filter",
			Chain: "FORWARD", Verdict: nftables.VerdictDrop, Base: &nftables.TracedBase{Hook: "forward"}})
	}
	chain := p.calc.Table().Chain("pi/GlobalNetworkPolicy/web")
	for _, rule := range chain.Rules {
		if rule.Origin == policy.RuleNumber(2) {
			list = append(list, nftables.TraceStep{Kind: nftables.TraceRule, Family: "inet", Table: "manx",
				Chain: "forward-to-workload", Verdict: nftables.VerdictJump, Base: &nftables.TracedBase{
					Hook: "forward", Priority: 1}},
				nftables.TraceStep{Kind: nftables.TraceRule, Family: "inet", Table: "manx", Chain: chain.Name,
					Verdict: nftables.VerdictAccept, Rule: nftables.TracedRule{Handle: 9, Number: 2,
						Comment: rule.Comment, ID: rule.ID()}})
			break
		}
	}
	return append(list, nftables.TraceStep{Kind: nftables.TraceLeave, Hook: "forward"},
		nftables.TraceStep{Kind: nftables.TraceEnter, Hook: "postrouting"},
		nftables.TraceStep{Kind: nftables.TraceLeave, Hook: "postrouting"})
}

func TestTraceFlowComparesPackets(t *testing.T) {
	r, p, x := withTracer(t)
	stream, err := r.client.TraceFlow(r.context(), &manxv1.TraceFlowRequest{
		Source: "192.0.2.1", Destination: "shop/web", Flow: "udp", Packets: 2})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || first.GetArmed().GetNode() != "node-1" ||
		fmt.Sprint(first.GetArmed().GetDestinations()) != "[10.65.0.1]" {
		t.Fatalf("first answer %v, %v: want that packets are traced", first, err)
	}
	if f := <-x.flows; f.Protocol != 17 || f.Port != 0 || f.HasICMP ||
		fmt.Sprint(f.Sources, f.Destinations) != "[192.0.2.1] [10.65.0.1]" {
		t.Errorf("traced %+v", f)
	}
	x.packets <- udp(t, p, nftables.StateNew, false)
	x.packets <- udp(t, p, nftables.StateEstablished, false)
	for _, want := range []struct{ verdict, end, reason string }{
		{"agrees", "sent out cali1", ""}, {"undecided", "sent out cali1", "already known"},
		{"differs", "dropped by table ip filter, chain FORWARD (policy drop)", "policy allows it, but"},
	} {
		if want.verdict == "differs" {
			x.packets <- udp(t, p, nftables.StateNew, true)
		}
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		m := got.GetPacket()
		if m.GetVerdict() != want.verdict || m.GetEnd() != want.end ||
			!strings.Contains(fmt.Sprint(m.GetReasons()), want.reason) || m.GetSourcePort() != 4000 ||
			m.GetIn() != "eth0" ||
			!strings.HasPrefix(m.GetExplained(), "ALLOWED by GlobalNetworkPolicy/web ingress 2") {
			t.Errorf("got %v, want %+v", m, want)
		}
		d := m.GetChains()[len(m.GetChains())-1].GetDecision()
		if dropped := want.verdict == "differs"; dropped != (d.GetPolicy() == "drop" && d.GetChain() == "FORWARD") ||
			dropped == (d.GetRule().GetHandle() == 9 && d.GetChain() == "pi/GlobalNetworkPolicy/web") {
			t.Errorf("%s: decided by %v", want.verdict, d)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) { // the packet of the known connection does not count
		t.Errorf("after two reported packets: %v", err)
	}
	<-x.ended
}

func TestTraceFlowEnds(t *testing.T) {
	r, p, x := withTracer(t)
	begin := func(ctx context.Context, q *manxv1.TraceFlowRequest) manxv1.Manx_TraceFlowClient {
		t.Helper()
		q.Source, q.Destination, q.Flow = "192.0.2.1", "shop/web", "udp"
		stream, err := r.client.TraceFlow(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	stream := begin(r.context(), &manxv1.TraceFlowRequest{TimeoutMs: 1})
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("when the time is over: %v", err)
	}
	<-x.ended
	ctx, cancel := context.WithCancel(r.context())
	begin(ctx, &manxv1.TraceFlowRequest{})
	cancel()
	<-x.ended // nothing is traced for a client that went away

	stream = begin(r.context(), &manxv1.TraceFlowRequest{})
	for range 20 { // a busy known connection does not fill the output
		x.packets <- udp(t, p, nftables.StateEstablished, false)
	}
	x.packets <- udp(t, p, nftables.StateNew, false)
	count := 0
	for {
		_, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	if count != traceMostOthers+1 {
		t.Errorf("%d packets were reported, want %d", count, traceMostOthers+1)
	}
	<-x.ended
	ctx, cancel = context.WithCancel(r.context())
	defer cancel()
	for range traceMostCalls {
		begin(ctx, &manxv1.TraceFlowRequest{})
	}
	more, err := r.client.TraceFlow(ctx, &manxv1.TraceFlowRequest{Source: "192.0.2.1", Destination: "shop/web"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := more.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more than may be at a time: %v", err)
	}
}

func TestTraceFlowRefuses(t *testing.T) {
	r, _, x := withTracer(t)
	for _, c := range []struct {
		name    string
		request *manxv1.TraceFlowRequest
		err     error // of the kernel
		code    codes.Code
		text    string
	}{
		{"an end that is nobody", &manxv1.TraceFlowRequest{Source: "shop/nobody", Destination: "shop/web"}, nil,
			codes.NotFound, "is no address"},
		{"a flow", &manxv1.TraceFlowRequest{Source: "192.0.2.1", Destination: "shop/web", Flow: "udp/x"}, nil,
			codes.InvalidArgument, "is not a port"},
		{"too many packets", &manxv1.TraceFlowRequest{Source: "192.0.2.1", Destination: "shop/web", Packets: 5000}, nil,
			codes.InvalidArgument, "want 1 to 1000"},
		{"too long", &manxv1.TraceFlowRequest{Source: "192.0.2.1", Destination: "shop/web", TimeoutMs: 1 << 40}, nil,
			codes.InvalidArgument, "want 1 to 3600000"},
		{"a kernel without tables that have an owner", &manxv1.TraceFlowRequest{
			Source: "192.0.2.1", Destination: "shop/web"}, fmt.Errorf("%w: takes Linux 5.12", nftables.ErrMissing),
			codes.FailedPrecondition, "Linux 5.12"},
		{"another error of the kernel", &manxv1.TraceFlowRequest{Source: "192.0.2.1", Destination: "shop/web"},
			errors.New("busy"), codes.Internal, "busy"},
	} {
		x.err = c.err
		stream, err := r.client.TraceFlow(r.context(), c.request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %s with %q", c.name, err, c.code, c.text)
		}
	}
	r.source.Trace, r.source.Policy = nil, &rules{calc: policy.New(policy.Config{})}
	r.show()
	stream, err := r.client.TraceFlow(r.context(), &manxv1.TraceFlowRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without a tracer: %v", err)
	}
}
