package route

import (
	"net/netip"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/model"
)

// Beside another network, the routes of its CNI plugin stay, whoever made them and however long the interface has been
// there. The routes to interfaces of Calico's own plugin are made, and own blocks get none. Routes of an earlier run
// go, although nobody reads where the blocks of pools with VXLAN are.
func TestRoutesOfAnotherNetworkStay(t *testing.T) {
	workload := func(name, iface, address string) *model.Object {
		return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name},
			&model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "here", InterfaceName: iface,
				IPNetworks: []string{address}}})
	}
	felix := &model.FelixConfiguration{}
	felix.Spec.InterfacePrefix = "eni,cali"
	block := model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: "here",
		CIDR: netip.MustParsePrefix("10.244.9.0/26")})
	set := model.NewSet(workload("a", "eni1", "10.244.1.8/32"), workload("b", "cali2", "10.244.1.9/32"),
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix),
		model.NewObject(model.ResourceKey(model.KindIPPool, "pods"),
			&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.244.0.0/16"}}), // of before
		model.NewObject(model.ResourceKey(model.KindIPPool, "vxlan"),
			&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.245.0.0/16", VXLANMode: v3.VXLANModeAlways}}),
		model.NewObject(block, &model.BlockAffinity{State: model.StateConfirmed}))
	for _, policyOnly := range []bool{true, false} {
		f := testKernel()
		f.PutLink(kernel.Link{Index: 7, Name: "eni1", Up: true, Running: true})
		f.PutLink(kernel.Link{Index: 8, Name: "cali2", Up: true, Running: true})
		theirs := []kernel.Route{via("10.244.1.8/32", "", 7, kernel.ProtocolStatic),
			via("10.244.1.8/32", "", 7, kernel.ProtocolBoot), via("10.244.1.77/32", "", 7, kernel.ProtocolCalico)}
		theirs[1].Metric, theirs[2].Metric = 5, 6
		for _, r := range theirs {
			f.PutRoute(r)
		}
		old := via("10.245.7.0/26", "10.0.0.9", 2, kernel.ProtocolBIRD)
		f.PutRoute(old)
		now := time.Now()
		target := New(f, func() time.Time { return now })
		h := hoststate.New("here", nil)
		h.PolicyOnly = policyOnly
		h.Take(hoststate.State{Reader: set, DatastoreSynced: true, BGPSynced: true})
		target.SetPlacesSynced(!policyOnly)
		target.SetState(h)
		_, _, _ = target.Flush()
		now = now.Add(2 * externalGrace)
		_, _, _ = target.Flush()
		left := 0
		for _, r := range theirs {
			if _, there := f.Route(r.Key()); there {
				left++
			}
		}
		if (left == len(theirs)) != policyOnly {
			t.Errorf("policy only %t: %d routes of the other plugin are left", policyOnly, left)
		}
		if _, there := f.Route(old.Key()); there {
			t.Errorf("policy only %t: a route of an earlier run is left", policyOnly)
		}
		for p, want := range map[string]bool{"10.244.1.8/32": !policyOnly, "10.244.1.9/32": true,
			"10.244.9.0/26": !policyOnly} {
			if row, ok := target.Status(netip.MustParsePrefix(p)); ok != want {
				t.Errorf("policy only %t: a route to %s: %t, %+v", policyOnly, p, ok, row)
			}
		}
		if !target.HasLink("eni1") || target.HasLink("eni2") {
			t.Error("the interfaces are wrong")
		}
	}
}
