package datastore

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// Addresses that only annotations name count on the pod's node from the moment when they are confirmed, whichever
// version of the pod comes before or after that, and no others.
func TestConfirmedClaims(t *testing.T) {
	key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "evil", Name: "n1-k8s-p-eth0"}
	tables := NewTables(zap.NewNop(), "n1")
	revision := int64(1)
	claims := func(node string, networks ...string) *model.Object {
		revision++
		w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: node, InterfaceName: "cali1"}}
		w.Namespace, w.Name = key.Namespace, key.Name
		w.Spec.Claim = &model.Claim{IPNetworks: networks, IPNATs: []model.IPNAT{{ExternalIP: "10.9.9.9"}}}
		o := model.NewObject(key, w)
		o.Revision = revision
		return o
	}
	put := func(o *model.Object) {
		tables.Apply(Event{Type: EventUpdate, Key: key, Object: o, Revision: o.Revision})
	}
	has := func(when, want string) {
		t.Helper()
		w := tables.Snapshot().Get(key).Workload()
		if got := strings.Trim(fmt.Sprint(w.Networks), "[]"); got != want || (want == "") != (w.Claim != nil) ||
			(want == "") != (len(w.IPNATs) == 0) {
			t.Errorf("%s: the endpoint has %q (%+v), want %q", when, got, w.RareEndpoint, want)
		}
	}
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	put(claims("n1", "10.0.0.1/32", "fd00::1/128"))
	tables.Apply(Event{Type: EventInSync, Revision: revision})
	has("nothing is confirmed", "")
	before := tables.Snapshot()
	tables.Confirm(key, b, a)
	has("both are confirmed", "10.0.0.1/32 fd00::1/128")
	select {
	case <-before.Replaced():
	default:
		t.Error("readers do not learn that the addresses are confirmed")
	}
	put(claims("n1", "10.0.0.2/32"))
	has("another address is claimed", "")
	put(claims("n1", "10.0.0.1/32"))
	has("one of the two is claimed", "")
	put(claims("n1", "fd00::1/128", "10.0.0.1/32"))
	has("the confirmed ones are claimed again", "fd00::1/128 10.0.0.1/32")
	if o := tables.Confirmed(claims("n1", "10.0.0.1/32", "fd00::1/128")); len(o.Workload().Networks) != 2 {
		t.Errorf("an object that was read elsewhere: %+v", o.Workload())
	}
	tables.Withdraw(key, netip.MustParseAddr("10.0.0.9"))
	put(claims("n1", "10.0.0.1/32", "fd00::1/128"))
	has("the address of another container was released", "10.0.0.1/32 fd00::1/128")
	tables.Withdraw(key, b)
	put(claims("n1", "10.0.0.1/32", "fd00::1/128"))
	has("one of the addresses was released", "")
	tables.Confirm(key, a, b)
	tables.Confirm(key)
	put(claims("n1", "10.0.0.1/32", "fd00::1/128"))
	has("the container is gone", "")

	tables.Confirm(key, a)
	put(claims("n1", "10.0.0.1/32"))
	has("confirmed before it is claimed", "10.0.0.1/32")
	revision++
	tables.Apply(Event{Type: EventDelete, Key: key, Revision: revision})
	put(claims("n1", "10.0.0.1/32"))
	has("a new pod of that name", "")

	tables.Confirm(key, a)
	put(claims("n2", "10.0.0.1/32"))
	if w := tables.Snapshot().Get(key).Workload(); len(w.Networks) > 0 || w.Claim == nil {
		t.Errorf("another node's pod: %+v", w)
	}
}
