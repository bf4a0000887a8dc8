package main_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (d *playedDaemon) Explain(context.Context, *manxv1.ExplainRequest) (*manxv1.Explanation, error) {
	return &manxv1.Explanation{
		Source: &manxv1.ExplainedEnd{Kind: "pod", Name: "shop/web", Address: "10.65.0.2", Node: "n1",
			Interface: "cali1"}, Destination: &manxv1.ExplainedEnd{Kind: "outside", Address: "192.0.2.1"},
		Flow: "tcp/80", Allowed: true, By: "NetworkPolicy/shop/web egress 1 (egress of pod shop/web)",
		Others: []*manxv1.OtherDrop{
			{Node: "n1", Table: "ip6 filter", Chain: "FORWARD", Hook: "forward", By: "policy drop", Certain: true},
			{Node: "n1", Table: "inet x", Chain: "y", Hook: "postrouting", By: "rule 2 of chain y, handle 4",
				Except: []string{"rule 1 of chain y, handle 3, \"forged\nALLOWED\""}}},
	}, nil
}

// tracedPackets are the traces that the played daemon has of a flow to each of these destinations.
var tracedPackets = map[string][]*manxv1.TracedPacket{
	"nobody": nil,
	"agrees": {tracedPacket("agrees")},
	"known":  {tracedPacket("undecided", "it belongs to a connection that was already known")},
	"differs": {tracedPacket("undecided", "steps were lost"), tracedPacket("agrees"), {
		Source: "fd00::2", Destination: "fd00::3", Protocol: "icmpv6", In: "cali1", Connection: "new", Dropped: true,
		Verdict: "differs",
		Chains: []*manxv1.TracedChain{{Hook: "forward", Table: "ip6 filter", Chain: "FORWARD", Verdict: "drop",
			By:       "table ip6 filter, chain DOCKER, rule 3 (handle 12)",
			Decision: &manxv1.TracedDecision{Chain: "DOCKER", Rule: &manxv1.TracedRule{Handle: 12, Number: 3}},
			Rules: []*manxv1.TracedRule{{Chain: "FORWARD", Handle: 3, Number: 1, Verdict: "jump DOCKER"},
				{Chain: "DOCKER", Handle: 12, Number: 3, Verdict: "drop"}}}},
		End:       "dropped by table ip6 filter, chain DOCKER, rule 3 (handle 12)",
		Explained: "ALLOWED: no policy is about it",
		Reasons:   []string{"first", "second"},
	}},
}

func tracedPacket(verdict string, reasons ...string) *manxv1.TracedPacket {
	return &manxv1.TracedPacket{
		Source: "10.65.0.2", SourcePort: 4000, Destination: "10.96.0.10", DestinationPort: 80, Protocol: "tcp",
		In: "cali1", Out: "eth0", Connection: "new",
		Chains: []*manxv1.TracedChain{
			{Hook: "prerouting", Table: "ip nat", Chain: "PREROUTING", Priority: -100, Verdict: "accept",
				By:       "table ip nat, chain KUBE-SEP-A, rule 2 (handle 9)",
				Decision: &manxv1.TracedDecision{Chain: "KUBE-SEP-A", Rule: &manxv1.TracedRule{Handle: 9, Number: 2}},
				Rules: []*manxv1.TracedRule{
					{Chain: "PREROUTING", Handle: 8, Number: 1, Verdict: "jump KUBE-SEP-A"}}},
			{Hook: "forward", Table: "inet manx", Chain: "forward-from-workload", Verdict: "accept",
				By: "NetworkPolicy/shop/web egress 1", Source: "10.65.0.2", Destination: "192.0.2.1",
				Decision: &manxv1.TracedDecision{Chain: "po/NetworkPolicy/shop/web",
					Rule: &manxv1.TracedRule{Handle: 5, Number: 1, Comment: "NetworkPolicy/shop/web egress 1"}}},
			{Hook: "forward", Table: "inet manx", Chain: "forward-to-workload", Verdict: "accept", Source: "10.65.0.2",
				Destination: "192.0.2.1"},
			{Hook: "forward", Table: "ip filter", Chain: "FORWARD", Verdict: "accept",
				By: "table ip filter, chain FORWARD, rule 2 (handle 7) \"all\"",
				Decision: &manxv1.TracedDecision{Chain: "FORWARD",
					Rule: &manxv1.TracedRule{Handle: 7, Number: 2, Comment: "all"}}},
			{Hook: "postrouting", Table: "ip nat", Chain: "POSTROUTING", Verdict: "accept",
				By:       "table ip nat, chain POSTROUTING (policy accept)",
				Decision: &manxv1.TracedDecision{Chain: "POSTROUTING", Policy: "accept"}},
		},
		End: "sent out eth0", Verdict: verdict, Reasons: reasons, Explained: "ALLOWED by NetworkPolicy/shop/web " +
			"egress 1 (egress of pod shop/web)",
	}
}

func (d *playedDaemon) TraceFlow(
	r *manxv1.TraceFlowRequest, stream grpc.ServerStreamingServer[manxv1.TraceFlowResponse],
) error {
	packets, ok := tracedPackets[r.GetDestination()]
	if !ok {
		return status.Error(codes.FailedPrecondition, "a table that goes with its owner takes Linux 5.12")
	}
	if err := stream.Send(&manxv1.TraceFlowResponse{Answer: &manxv1.TraceFlowResponse_Armed{Armed: &manxv1.TraceArmed{
		Node: "n1", Sources: []string{"10.65.0.2"}, Destinations: []string{"192.0.2.1", "192.0.2.2"},
		Flow: r.GetFlow()}}}); err != nil {
		return err
	}
	for _, p := range packets {
		if err := stream.Send(&manxv1.TraceFlowResponse{
			Answer: &manxv1.TraceFlowResponse_Packet{Packet: p}}); err != nil {
			return err
		}
	}
	return nil
}

// TestExplainLive pins the output for real packets, and the exit code.
func TestExplainLive(t *testing.T) {
	s, _ := newPlayedDaemon(t)
	for _, c := range []struct {
		destination string
		code        int
		err         string
	}{
		{"agrees", 0, ""}, {"differs", 1, ""},
		{"nobody", 1, "Error: no packet of this flow came through node n1 within 30s\n"},
		{"known", 1, "Error: no packet to compare came through node n1 within 30s\n"},
		{"old-kernel", 1, "Error: a table that goes with its owner takes Linux 5.12\n"},
	} {
		r := s.runWithDaemon("explain", "shop/web", c.destination, "tcp/80", "--live")
		if r.code != c.code || r.err != c.err {
			t.Errorf("%s: exit code %d, %q; want %d, %q", c.destination, r.code, r.err, c.code, c.err)
		}
		golden(t, "explain-live-"+c.destination, r.out)
	}
	r := s.runWithDaemon("explain", "shop/web", "differs", "tcp/80", "--live", "-o", "yaml")
	if r.code != 1 || !strings.HasSuffix(r.err, "; send one now\n") {
		t.Errorf("exit code %d, %q; want the time to send on standard error", r.code, r.err)
	}
	golden(t, "explain-live-yaml", r.out)
	for args, text := range map[string]string{
		"--live -f x.yaml": "want one of them", "--live-timeout=1s": "need --live", "--live-packets=2": "need --live",
		"--live --live-timeout=2h": "want 1ms to 1h", "--live --live-packets=0": "want 1 to 1000",
	} {
		if r := s.runWithDaemon(append([]string{"explain", "shop/web", "agrees"},
			strings.Fields(args)...)...); r.code != 2 ||
			!strings.Contains(r.err, text) {
			t.Errorf("%s: exit code %d, %q, want %q", args, r.code, r.err, text)
		}
	}
}
