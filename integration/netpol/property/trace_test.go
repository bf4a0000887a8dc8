package property

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/flowtrace"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	policyexplain "github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/dataplane/ruleset"
)

const tracedPackets = 8 // of each world

// TestKernelDoesWhatIsExplained sends packets through a kernel that has the rules of random worlds, and has it trace
// them: each goes the way that is explained, through the same rules. It tries for five seconds; see each for more.
func TestKernelDoesWhatIsExplained(t *testing.T) {
	n := newNode(t)
	rules, err := nftables.Open("/run/netns/" + n.inside)
	if err != nil {
		t.Fatal(err)
	}
	defer rules.Close()
	tried := tally{}
	forEachSeed(t, 5, 5*time.Second, func(seed uint64) bool {
		g := newGenerator(seed)
		set := g.comparableWorld()
		calc := policy.Build(g.config(), set, hostLinks())
		n.target.Resync()
		if result, _ := n.target.Flush(calc.Table()); result.Err != nil || result.Refused != 0 {
			t.Skipf("the kernel does not take the rules: %+v", result)
		}
		world := policyexplain.Computed(set, g.config())
		computed := world.Rules
		world.Local, world.Rules = thisNode, func(node string, use func(*policy.Calculator)) {
			if node == thisNode {
				use(calc)
			} else {
				computed(node, use)
			}
		}
		world.Route = func(a netip.Addr) (policyexplain.Route, string) {
			return policyexplain.Route{Next: "dev " + route(a)}, route(a)
		}
		for sent := 0; sent < tracedPackets; {
			_, p := g.packetTo(0) // to a floating address it would be another packet by the time that it is routed
			q := policyexplain.Question{Source: p.Source.String(), Destination: p.Destination.String(),
				Flow: policyexplain.Flow{Protocol: p.Protocol,
					Port: p.DestinationPort, SourcePort: p.SourcePort, HasICMP: true, ICMPType: p.ICMPType,
					ICMPCode: p.ICMPCode}}
			answer, err := policyexplain.Explain(world, q)
			if err != nil {
				tried["not explained"]++
				continue
			}
			// A packet with a false source, or to an address that is translated, is not the one that is explained.
			if hop, ok := answer.HopAt(thisNode); !ok || hop.In != p.In || hop.Out != p.Out || hop.Source != p.Source ||
				p.In != "" && route(p.Source) != p.In {
				tried["another way"]++
				continue
			}
			// perhaps it does not come here
			if s := answer.Stages; len(s) > 0 && s[0].Node != thisNode && !answer.Allowed {
				tried["from elsewhere, denied"]++
				continue
			}
			if err := n.flushConnections(); err != nil { // it may be the same as one before
				t.Fatal(err)
			}
			sent++
			n.first++
			seen, err := n.traced(rules, &p)
			if errors.Is(err, nftables.ErrMissing) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			verdict, reasons := flowtrace.Compare(seen, answer, thisNode)
			tried[fmt.Sprintf("%s, %s", verdict, strings.Fields(seen.End.Text)[0])]++
			if verdict != flowtrace.Agrees {
				t.Errorf("seed %d: %s: %q, explained %v by %s\n%s", seed, verdict, reasons, answer.Allowed, answer.By,
					explain(calc.Table(), wayOf(answer), p))
				return false
			}
		}
		return true
	})
	t.Logf("packets: %v", tried)
	for _, what := range []string{"agrees, dropped", "agrees, sent"} {
		if !t.Failed() && os.Getenv("MANX_PROPERTY_SEED") == "" && tried[what] == 0 {
			t.Errorf("none of the packets was %q", what)
		}
	}
}

func wayOf(a *policyexplain.Answer) path {
	switch hop, _ := a.HopAt(thisNode); {
	case hop.In == "":
		return output
	case hop.Out == "":
		return input
	}
	return forward
}

// traced sends a packet and has the kernel trace it.
func (n *node) traced(rules *nftables.Conn, p *ruleset.Packet) (*flowtrace.Packet, error) {
	ctx, cancel := context.WithCancel(context.Background())
	armed, steps, ended := make(chan struct{}), make(chan nftables.TraceStep, 1000), make(chan error, 1)
	f := nftables.Flow{Sources: []netip.Addr{p.Source}, Destinations: []netip.Addr{p.Destination}, Protocol: p.Protocol,
		Port:    p.DestinationPort,
		HasICMP: p.Protocol == 1 || p.Protocol == 58, HasCode: true, ICMPType: p.ICMPType, ICMPCode: p.ICMPCode}
	go func() {
		ended <- rules.TraceFlow(ctx, f, func() { close(armed) }, func(s nftables.TraceStep) { steps <- s })
	}()
	defer func() { cancel(); <-ended }()
	select {
	case err := <-ended:
		ended <- nil
		return nil, err
	case <-armed:
	}
	if err := n.emit(p, n.first); err != nil {
		return nil, err
	}
	var c flowtrace.Collector
	for look, end := time.NewTicker(5*time.Millisecond), time.After(time.Minute); ; {
		select {
		case s := <-steps:
			c.Add(s, time.Now())
		case now := <-look.C:
			if done := c.Take(now); len(done) > 0 {
				return done[0], nil
			}
		case <-end:
			return nil, fmt.Errorf("%+v was not traced", *p)
		}
	}
}
