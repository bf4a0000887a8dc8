package dataplane

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
)

// A route to a peer by its gateway: made, repaired, taken over by the next run, moved, and removed when no longer
// desired.
func TestRouteToAPeerByItsGateway(t *testing.T) {
	h := newHost(t)
	to := func(prefix, via string) route.Static {
		return route.Static{Prefix: netip.MustParsePrefix(prefix), Via: netip.MustParseAddr(via)}
	}
	both := []route.Static{to("192.0.2.9/32", "10.1.0.3"), to("2001:db8::9/128", "fd01::3")}
	const v4, v6 = "192.0.2.9 via 10.1.0.3 dev eth0 proto bird", "2001:db8::9 via fd01::3 dev eth0 proto bird metric " +
		"1024 pref medium"

	a, stop := h.agent()
	a.set(model.NewSet(nodeObject("node-1", "10.1.0.5/24", "fd01::5/64")))
	a.statics(both)
	h.eventually("-4", defaultRoute, v4)
	h.eventually("-6", v6)
	for _, harm := range []string{"route del 192.0.2.9/32", "route replace 192.0.2.9/32 via 10.1.0.77 proto bird",
		"-6 route del 2001:db8::9/128"} {
		h.ip(harm)
		h.eventually("-4", defaultRoute, v4)
		h.eventually("-6", v6)
	}
	stop()
	h.eventually("-4", defaultRoute, v4)

	a, _ = h.agent()
	events := countRouteEvents(t, h.open())
	a.set(model.NewSet(nodeObject("node-1", "10.1.0.5/24", "fd01::5/64")))
	a.statics(both)
	a.synced(true, true)
	settle(t, a)
	if n := events(); n != 0 {
		t.Errorf("%d changes of routes at a restart without any change", n)
	}
	a.statics([]route.Static{to("192.0.2.9/32", "10.1.0.4"), to("192.0.2.8/32", "10.9.0.1")})
	h.eventually("-4", defaultRoute, "192.0.2.9 via 10.1.0.4 dev eth0 proto bird")
	h.eventually("-6")
	settle(t, a)
	row, _ := a.Route(netip.MustParsePrefix("192.0.2.8/32"))
	if row.Phase != reconcile.Blocked ||
		!strings.Contains(row.Reason, "gateway 10.9.0.1 (reachableBy) is on no link of this node") ||
		row.Source != route.SourceStatic {
		t.Errorf("%+v", row)
	}
	a.statics(nil)
	h.eventually("-4", defaultRoute)
}
