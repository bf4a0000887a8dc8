package route

import (
	"net/netip"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Routes to peers behind a gateway.
func TestStaticRules(t *testing.T) {
	for _, c := range []struct {
		rule string
		Static
		want string // the route, or the reason
	}{
		{"gateway on a link", Static{Prefix: prefix("192.0.2.9/32"), Via: addr("10.3.0.1")},
			"192.0.2.9/32 via 10.3.0.1 dev eth1 proto bird"},
		{"IPv6", Static{Prefix: prefix("2001:db8::9/128"), Via: addr("fd01::1")},
			"2001:db8::9/128 via fd01::1 dev eth0 proto bird metric 1024"},
		{"gateway behind another", Static{Prefix: prefix("192.0.2.9/32"), Via: addr("10.2.0.1")},
			"gateway 10.2.0.1 (reachableBy) is on no link of this node: it is itself behind 10.1.0.1"},
		{"no way to the gateway", Static{Prefix: prefix("2001:db8::9/128"), Via: addr("fd09::1")},
			"gateway fd09::1 (reachableBy) cannot be used: no route to next hop fd09::1"},
		{"the gateway is this node", Static{Prefix: prefix("192.0.2.9/32"), Via: addr("10.3.0.5")},
			"gateway 10.3.0.5 (reachableBy) cannot be used: next hop 10.3.0.5 is this node itself"},
		{"the gateway is a workload", Static{Prefix: prefix("192.0.2.9/32"), Via: addr("10.244.1.7")},
			"192.0.2.9/32 via 10.244.1.7 dev cali1 proto bird"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			target, _ := testTarget(testKernel())
			target.SetStatic([]Static{c.Static})
			_, _, _ = target.Flush()
			s := rowOf(target, c.Prefix.String())
			got := s.Desired
			if s.Phase == reconcile.Blocked {
				got = s.Reason
			}
			if got != c.want || s.Source != SourceStatic || len(s.NextHops) != 1 || s.NextHops[0] != c.Via {
				t.Errorf("have %q, source %q, next hops %v\nwant %q", got, s.Source, s.NextHops, c.want)
			}
		})
	}
}

// Routes of a peer behind a gateway use that gateway, too, as long as it is configured.
func TestLearnedThroughAStaticRoute(t *testing.T) {
	target, _ := testTarget(testKernel())
	flush := func(want, wantStatic string) {
		t.Helper()
		_, _, _ = target.Flush()
		if got := rowOf(target, "10.244.2.0/26").Desired; got != want {
			t.Errorf("learned: %q, want %q", got, want)
		}
		if got := rowOf(target, "192.0.2.9/32").Desired; got != wantStatic {
			t.Errorf("static: %q, want %q", got, wantStatic)
		}
	}
	target.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "192.0.2.9"), learned("192.0.2.9/32", 1024, "10.1.0.9")})
	flush("10.244.2.0/26 via 10.1.0.1 dev eth0 proto bird metric 1024",
		"192.0.2.9/32 via 10.1.0.9 dev eth0 proto bird metric 1024")
	target.SetStatic([]Static{{Prefix: prefix("192.0.2.9/32"), Via: addr("10.3.0.1")}})
	flush("10.244.2.0/26 via 10.3.0.1 dev eth1 proto bird metric 1024", "192.0.2.9/32 via 10.3.0.1 dev eth1 proto bird")
	down := kernel.Link{Index: 3, Name: "eth1"}
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: down},
		{Type: kernel.EventRouteGone, Route: via("10.3.0.0/24", "", 3, kernel.ProtocolKernel)}})
	_, _, _ = target.Flush()
	if s := rowOf(target, "192.0.2.9/32"); s.Desired == "192.0.2.9/32 via 10.3.0.1 dev eth1 proto bird" {
		t.Errorf("the route stays although its link is down: %+v", s)
	}
	target.SetStatic(nil)
	flush("10.244.2.0/26 via 10.1.0.1 dev eth0 proto bird metric 1024",
		"192.0.2.9/32 via 10.1.0.9 dev eth0 proto bird metric 1024")
	if a := target.gatewayTo(addr("192.0.2.9")); a != (netip.Addr{}) {
		t.Errorf("gateway %s remains", a)
	}
}
