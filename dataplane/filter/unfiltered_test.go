package filter

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/datastore/model"
)

// entries is a table of connections.
type entries struct {
	list, ended []conntrack.Connection
	err         error
	late        []conntrack.Connection // that come with the next end
}

func (e *entries) ListConnections(accepts func(conntrack.Connection) bool) ([]conntrack.Connection, error) {
	return slices.DeleteFunc(slices.Clone(e.list), func(c conntrack.Connection) bool { return !accepts(c) }), e.err
}

func (e *entries) EndConnections(list []conntrack.Connection) (int, error) {
	e.ended = append(e.ended, list...)
	if e.err == nil {
		type key struct {
			source, destination netip.Addr
			port                uint16
		}
		of := func(c conntrack.Connection) key { return key{c.Source, c.Destination, c.SourcePort} }
		ended := map[key]bool{}
		for _, c := range list {
			ended[of(c)] = true
		}
		e.list = append(slices.DeleteFunc(e.list, func(c conntrack.Connection) bool { return ended[of(c)] }), e.late...)
		e.late = nil
	}
	return len(list), e.err
}

// Of the connections of this node's workloads those end that policy denies as new ones, in any number.
func TestConnectionsThatCameInWithoutRulesEnd(t *testing.T) {
	kern := &links{Kernel: kerneltest.New()}
	kern.PutLink(kernel.Link{Index: 2, Name: "eth0", Up: true, Running: true})
	kern.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("192.0.2.1/24")})
	target := newTarget(kerneltest.NewRules(), kern, nil)
	gnp := &v3.GlobalNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v3.GlobalNetworkPolicySpec{
		Selector: "all()", Types: []v3.PolicyType{v3.PolicyTypeIngress, v3.PolicyTypeEgress},
		Ingress: []v3.Rule{{Action: v3.Allow}}, Egress: []v3.Rule{{Action: v3.Allow}}}}
	denies := v3.Rule{Action: v3.Deny}
	denies.Source.Nets = []string{"10.0.0.66/32"}
	gnp.Spec.Ingress = slices.Insert(gnp.Spec.Ingress, 0, denies)
	pod := func(name, node, iface, address string) *model.Object {
		w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: node, InterfaceName: iface,
			IPNetworks: []string{address}}}
		return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name}, w)
	}
	h := hoststate.New("here", nil)
	h.Take(hoststate.State{All: true, Reader: model.NewSet(
		model.NewObject(model.ResourceKey(model.KindGlobalNetworkPolicy, "p"), gnp),
		pod("v", "here", "cali1", "10.0.0.1/32"), pod("w", "here", "cali2", "10.0.0.2/32"),
		pod("r", "there", "cali3", "10.0.0.66/32"))})
	target.SetState(h)
	target.Flush()

	udpTo := func(from, to string) conntrack.Connection {
		return conntrack.Connection{Source: netip.MustParseAddr(from), Destination: netip.MustParseAddr(to),
			Protocol: unix.IPPROTO_UDP, SourcePort: 7, DestinationPort: 8}
	}
	e := &entries{list: []conntrack.Connection{udpTo("10.0.0.66", "10.0.0.1"), udpTo("10.0.0.2", "10.0.0.1"),
		udpTo("10.0.0.1", "198.51.100.1"), udpTo("192.0.2.1", "10.0.0.1"), udpTo("10.0.0.66", "198.51.100.1"),
		udpTo("10.0.0.2", "192.0.2.1")}}
	for range 2 * checkSlice {
		e.list = append(e.list, udpTo("10.0.0.66", "10.0.0.2"))
	}
	denied := 2 + 2*checkSlice // from the pod to the node, too: endpoint-to-host is Drop
	u := &target.unfiltered
	u.entries, u.loop.Background = e, func(f func()) { f() }
	target.Flush()
	if len(e.ended) != 0 || u.waits() {
		t.Fatal("connections end although rules were there")
	}
	run := func() {
		u.step(true, target.calculator, target.reader, "here")
		for steps := 0; u.waits(); steps++ {
			if steps > 10 {
				t.Fatal("it does not end")
			}
			target.Flush()
		}
	}
	first := e.list[0]
	late := first // which enters the table during the first read
	late.SourcePort++
	e.late, denied = []conntrack.Connection{late}, denied+1
	run()
	if len(e.ended) != denied || e.ended[0].Destination != first.Destination || slices.ContainsFunc(e.ended,
		func(c conntrack.Connection) bool {
			return c.Source != netip.MustParseAddr("10.0.0.66") && c.Destination != netip.MustParseAddr("192.0.2.1")
		}) {
		t.Errorf("%d ended, want %d: %v", len(e.ended), denied, e.ended[:min(len(e.ended), 5)])
	}
	list, _ := target.Repairs()
	if len(list) != 2 || !strings.HasPrefix(list[0].Found, "1002 connections") ||
		!strings.HasPrefix(list[1].Found, "1 connections") {
		t.Errorf("%+v", list)
	}
	e.list, e.err = []conntrack.Connection{first}, errors.New("no buffer space available")
	run()
	if list, _ := target.Repairs(); len(list) == 0 || !strings.Contains(list[0].Found, "no buffer space") {
		t.Errorf("%+v", list)
	}
}
