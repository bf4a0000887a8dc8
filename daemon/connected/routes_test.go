package connected

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
)

type fakeKernel struct {
	addresses func() ([]kernel.Address, error)
	links     []kernel.Link
	routes    *[]kernel.Route
	reads     *int
}

func (k fakeKernel) ListAddresses() ([]kernel.Address, error) { return k.addresses() }
func (k fakeKernel) ListLinks() ([]kernel.Link, error)        { return k.links, nil }

func (k fakeKernel) ListRoutes(...kernel.Table) ([]kernel.Route, error) {
	if k.routes == nil {
		return nil, nil
	}
	*k.reads++
	return *k.routes, nil
}

func routeTo(p string, protocol kernel.Protocol, metric uint32, link int) kernel.Route {
	return kernel.Route{Dst: netip.MustParsePrefix(p), Protocol: protocol, Metric: metric, Type: kernel.Unicast,
		NextHops: []kernel.NextHop{{Link: link}}}
}

// BGP gets the networks of interfaces that are up and the routes of other programs, the best one for each prefix. It
// gets none of our own, and none that a neighbour can cause. Routes are read again only if those of others may have
// changed.
func TestRoutesOfOthers(t *testing.T) {
	blackhole := kernel.Route{Dst: netip.MustParsePrefix("10.9.0.0/16"), Protocol: kernel.ProtocolStatic,
		Type: kernel.Blackhole}
	elsewhere := routeTo("10.6.0.0/24", kernel.ProtocolStatic, 0, 1)
	elsewhere.Table = 100
	routes := []kernel.Route{
		routeTo("10.0.0.0/24", kernel.ProtocolKernel, 0, 1), routeTo("10.1.0.0/24", kernel.ProtocolStatic, 20, 1),
		routeTo("10.1.0.0/24", kernel.ProtocolBoot, 10, 2), routeTo("0.0.0.0/0", 16, 100, 1), blackhole, elsewhere,
		routeTo("10.2.0.0/24", kernel.ProtocolBIRD, 1024, 1), routeTo("10.3.0.0/24", kernel.ProtocolCalico, 0, 1),
		routeTo("fd01::/64", kernel.ProtocolRA, 1024, 1), routeTo("10.4.0.0/24", kernel.ProtocolRedirect, 0, 1),
		routeTo("10.5.0.0/24", kernel.ProtocolStatic, 0, 3),
	}
	reads := 0
	k := fakeKernel{routes: &routes, reads: &reads, links: []kernel.Link{{Index: 1, Name: "eth0", Up: true},
		{Index: 2, Name: "eth1", Up: true}, {Index: 3, Name: "eth2"}},
		addresses: func() ([]kernel.Address, error) {
			return []kernel.Address{{Link: 1, Prefix: netip.MustParsePrefix("10.0.0.5/24")},
				{Link: 1, Prefix: netip.MustParsePrefix("fe80::1/64")}}, nil
		}}
	c := newSubnets(k, func() {}, zap.NewNop())
	text := func() string {
		var list []string
		for _, r := range c.Routes() {
			list = append(list, fmt.Sprintf("%s %q %d %t", r.Prefix, r.Interface, r.Metric, r.Connected))
		}
		return strings.Join(list, ", ")
	}
	const want = `0.0.0.0/0 "eth0" 100 false, 10.0.0.0/24 "eth0" 0 true, 10.1.0.0/24 "eth1" 10 false, ` +
		`10.9.0.0/16 "" 0 false`
	if got := text(); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	for _, e := range []kernel.Event{
		{Type: kernel.EventRoute, Route: routes[6]}, {Type: kernel.EventAddress},
		{Type: kernel.EventLink, Link: kernel.Link{Index: 7, Name: "cali1"}},
	} {
		if c.handle([]kernel.Event{e}); c.read() || reads != 1 {
			t.Fatalf("%+v: %d reads of the routes", e, reads)
		}
	}
	routes = slices.Delete(routes, 3, 4)
	for _, e := range []kernel.Event{
		{Type: kernel.EventRouteGone, Route: routeTo("0.0.0.0/0", 16, 100, 1)},
		{Type: kernel.EventLink, Link: kernel.Link{Index: 2}}, {Type: kernel.EventResync},
	} {
		before := reads
		c.handle([]kernel.Event{e})
		if c.read(); reads != before+1 || strings.Contains(text(), "0.0.0.0/0") {
			t.Errorf("%+v: %d reads of the routes: %s", e, reads-before, text())
		}
	}
	for range mostRoutes {
		routes = append(routes, routeTo("10.1.0.0/24", kernel.ProtocolStatic, 1, 1))
	}
	c.handle([]kernel.Event{{Type: kernel.EventResync}})
	if c.read(); strings.Contains(text(), "10.1.0.0/24") {
		t.Errorf("with very many routes: %s", text())
	}
}
