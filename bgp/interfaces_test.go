package bgp

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// An endpoint whose interface belongs to no workload gets no session and is not advertised. A notice has the reason.
// The setting of this host's administrator about interfaces comes before FelixConfiguration.
func TestWorkloadsWithInterfacesOfTheHostAreLeftOut(t *testing.T) {
	workload := func(name, iface, address string) *model.Object {
		w := &model.WorkloadEndpoint{}
		w.Namespace, w.Name, w.Labels = "shop", name, map[string]string{"speaks": "bgp"}
		w.Spec = model.WorkloadEndpointSpec{Node: "n1", InterfaceName: iface, IPNetworks: []string{address}}
		return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: name}, w)
	}
	node := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "10.0.0.1/24"}}}
	node.Name = "n1"
	peer := &model.BGPPeer{}
	peer.Name = "pods"
	peer.Spec.LocalWorkloadSelector = "speaks == 'bgp'"
	peer.Spec.ASNumber = 65001
	set := model.NewSet(
		model.NewObject(model.ResourceKey(model.KindNode, "n1"), node),
		model.NewObject(model.ResourceKey(model.KindBGPPeer, "pods"), peer),
		workload("good", "cali1", "10.244.0.1/32"), workload("forged", "eth0", "10.244.0.2/32"),
		workload("tap", "tap1", "10.244.0.3/32"))
	for prefix, want := range map[string][]string{"": {"cali1 10.244.0.1"}, "tap": {"tap1 10.244.0.3"},
		"tap,cali": {"cali1 10.244.0.1", "tap1 10.244.0.3"}} {
		var local felixconfig.Local
		local.Spec.InterfacePrefix = prefix
		d := Compute(Input{Reader: set, Node: "n1", Felix: &local})
		var sessions, refused []string
		for _, s := range d.Sessions {
			if s.Workload != "" {
				sessions = append(sessions, s.Workload+" "+s.Address.String())
			}
		}
		for _, n := range d.Notices {
			if strings.Contains(n.Reason, "the endpoint gets no route") {
				refused = append(refused, n.Object)
			}
		}
		slices.Sort(sessions)
		if !slices.Equal(sessions, want) || len(sessions)+len(refused) != 3 {
			t.Errorf("with prefix %q sessions are %q, want %q; refused are %q", prefix, sessions, want, refused)
		}
		advertised := slices.ContainsFunc(d.Originated,
			func(o Origin) bool { return o.Prefix.Contains(netip.MustParseAddr("10.244.0.2")) })
		if advertised {
			t.Errorf("with prefix %q the address of the refused endpoint is advertised", prefix)
		}
	}
}
