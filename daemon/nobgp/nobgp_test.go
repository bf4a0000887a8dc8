package nobgp

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

func pool(name, cidr string, edit func(*model.IPPoolSpec)) *model.Object {
	p := &model.IPPool{}
	p.Spec.CIDR = cidr
	edit(&p.Spec)
	return model.NewObject(model.ResourceKey(model.KindIPPool, name), p)
}

func peer(name, node, selector string) *model.Object {
	p := &model.BGPPeer{}
	p.Spec.Node, p.Spec.NodeSelector = node, selector
	return model.NewObject(model.ResourceKey(model.KindBGPPeer, name), p)
}

// Objects for this node that need BGP are named, and pools without a way to other nodes; objects for other nodes are
// not.
func TestNotices(t *testing.T) {
	own := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"rack": "1"},
		Annotations: map[string]string{model.AnnotationDrain: "draining"}},
		Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24"}}}
	services := &model.BGPConfiguration{}
	services.Spec.ServiceClusterIPs = []v3.ServiceClusterIPBlock{{CIDR: "10.96.0.0/12"}}
	set := model.NewSet(model.NewObject(model.ResourceKey(model.KindNode, "n1"), own),
		model.NewObject(model.ResourceKey(model.KindBGPConfiguration, "default"), services),
		model.NewObject(model.ResourceKey(model.KindBGPConfiguration, "node.n2"), services),
		peer("all", "", ""), peer("here", "n1", ""), peer("there", "n2", ""), peer("rack", "", "rack == '1'"),
		peer("racks", "", "rack == '2'"), peer("wrong", "", "rack =="),
		pool("direct", "10.1.0.0/16", func(*model.IPPoolSpec) {}),
		pool("ipip", "10.2.0.0/16", func(s *model.IPPoolSpec) { s.IPIPMode = v3.IPIPModeAlways }),
		pool("vxlan", "10.3.0.0/16", func(s *model.IPPoolSpec) { s.VXLANMode = v3.VXLANModeCrossSubnet }),
		pool("no address of the node", "fd00:10::/48", func(*model.IPPoolSpec) {}),
		pool("balancers", "10.4.0.0/16", func(s *model.IPPoolSpec) {
			s.AllowedUses = []v3.IPPoolAllowedUse{v3.IPPoolAllowedUseLoadBalancer}
		}))
	common := []string{"BGPConfiguration/default: off: this node does not announce the addresses of Services",
		"BGPPeer/all: off: this node has no session with this peer",
		"BGPPeer/here: off: this node has no session with this peer",
		"BGPPeer/rack: off: this node has no session with this peer",
		"n1: off: the drain of this node has no effect; manxctl node undrain n1 withdraws the request"}
	pools := []string{
		"IPPool/direct: no route to other nodes without BGP: pool direct (10.1.0.0/16) has no vxlanMode",
		"IPPool/ipip: no route to other nodes without BGP: pool ipip (10.2.0.0/16) has no vxlanMode"}
	for policyOnly, want := range map[bool][]string{false: append(pools, common...), true: common} {
		var got []string
		for _, n := range notices(set, "n1", "off", policyOnly) {
			got = append(got, n.Subject+": "+n.Text)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("policy only %t: got\n%s\nwant\n%s", policyOnly, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
