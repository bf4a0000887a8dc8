package explain

import (
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
)

// A packet travels from pod a on node n1 to pod b on node n2.
const (
	podA4, podB4 = "10.244.1.7", "10.244.2.7"
	podA6, podB6 = "fd10::1:7", "fd10::2:7"
)

func node(name string, bgp model.NodeBGPSpec) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindNode, name), &model.Node{Spec: model.NodeSpec{BGP: &bgp}})
}

// tunnelled is a node with addresses of its VXLAN devices.
func tunnelled(name string, bgp model.NodeBGPSpec, four, six string) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindNode, name), &model.Node{Spec: model.NodeSpec{BGP: &bgp,
		IPv4VXLANTunnelAddr: four, IPv6VXLANTunnelAddr: six}})
}

func pod(name, node string, networks ...string) *model.Object {
	k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name}
	return model.NewObject(k, &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{
		Orchestrator: "k8s", Node: node, Pod: name, Endpoint: "eth0", InterfaceName: "cali" + name,
		IPNetworks: networks}})
}

func pool(name string, spec model.IPPoolSpec) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindIPPool, name), &model.IPPool{Spec: spec})
}

func block(owner, cidr string, state model.AffinityState) *model.Object {
	k := model.Key{Kind: model.KindBlockAffinity, Name: "host/" + owner + "/" + cidr}
	return model.NewObject(k, &model.BlockAffinity{State: state})
}

// fromAToB is the route of the packet on n1.
func fromAToB(t *testing.T, own4 string, six bool, more ...*model.Object) Route {
	t.Helper()
	objects := append(more,
		node("n1", model.NodeBGPSpec{IPv4Address: own4, IPv6Address: "fd00::1/64"}),
		tunnelled("n2", model.NodeBGPSpec{IPv4Address: "10.0.0.2/24", IPv6Address: "fd00::2/64"}, "10.244.2.1",
			"fd10::2:1"),
		pod("a", "n1", podA4+"/32", podA6+"/128"), pod("b", "n2", podB4+"/32", podB6+"/128"))
	answer, err := Explain(Computed(model.NewSet(objects...), policy.Config{}),
		Question{Source: "pod/default/a", Destination: "pod/default/b", IPv6: six})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Routes[0]
}

// An explanation names the path of a packet by the routes of the node.
func TestWayBetweenNodes(t *testing.T) {
	const near, direct, tunnel = "10.0.0.1/24", "via 10.0.0.2", "via 10.0.0.2 dev tunl0"
	four := model.IPPoolSpec{CIDR: "10.244.0.0/16"}
	with := func(ipip v3.IPIPMode, vxlan v3.VXLANMode) model.IPPoolSpec {
		s := four
		s.IPIPMode, s.VXLANMode = ipip, vxlan
		return s
	}
	forServices := with("Always", "")
	forServices.AllowedUses = []v3.IPPoolAllowedUse{v3.IPPoolAllowedUseLoadBalancer}
	for _, c := range []struct {
		rule, own, want string
		six             bool
		pools           []*model.Object
	}{
		{"no pool", near, direct, false, nil},
		{"Always", near, tunnel, false, []*model.Object{pool("p", with("Always", ""))}},
		{"the most specific pool counts, whatever comes first", near, direct, false, []*model.Object{
			pool("a-outer", with("Always", "")),
			pool("z-inner", model.IPPoolSpec{CIDR: "10.244.2.0/24", IPIPMode: "Never"})}},
		{"also if it is the one with the tunnel", near, tunnel, false, []*model.Object{
			pool("a-outer", with("", "Always")),
			pool("z-inner", model.IPPoolSpec{CIDR: "10.244.2.0/24", IPIPMode: "Always"})}},
		{"CrossSubnet inside", near, direct, false, []*model.Object{pool("p", with("CrossSubnet", ""))}},
		{"CrossSubnet across", "10.9.0.1/24", tunnel, false, []*model.Object{pool("p", with("CrossSubnet", ""))}},
		{"CrossSubnet: an own address in IPv6 form has a subnet, too", "::ffff:10.0.0.1/120", direct, false,
			[]*model.Object{pool("p", with("CrossSubnet", ""))}},
		{"CrossSubnet: a bare own address is a subnet of its own", "10.0.0.1", tunnel, false,
			[]*model.Object{pool("p", with("CrossSubnet", ""))}},
		{"VXLAN counts where both modes are set", near, "via 10.244.2.1 dev vxlan.calico", false,
			[]*model.Object{pool("p", with("Always", "Always"))}},
		{"a pool for load balancers has no tunnel", near, direct, false, []*model.Object{pool("p", forServices)}},
		{"there is no IPIP for IPv6", near, "via fd00::2", true,
			[]*model.Object{pool("p", model.IPPoolSpec{CIDR: "fd10::/48", IPIPMode: "Always"})}},
		{"VXLAN for IPv6", near, "via fd10::2:1 dev vxlan-v6.calico", true,
			[]*model.Object{pool("p", model.IPPoolSpec{CIDR: "fd10::/48", VXLANMode: "Always"})}},
	} {
		if r := fromAToB(t, c.own, c.six, c.pools...); r.Next != c.want {
			t.Errorf("%s: %q, want %q", c.rule, r.Next, c.want)
		}
	}
}

func TestBlockOfTheWay(t *testing.T) {
	const cidr = "10.244.2.0/26"
	for _, c := range []struct {
		rule, prefix, note string
		blocks             []*model.Object
	}{
		{"of the node", cidr, "block of node n2", []*model.Object{block("n2", cidr, model.StateConfirmed)}},
		{"borrowed", podB4 + "/32", "borrowed from block " + cidr + " of node n1",
			[]*model.Object{block("n1", cidr, model.StateConfirmed)}},
		{"a claim that is pending is none", cidr, "block of node n2",
			[]*model.Object{block("n1", cidr, model.StatePending), block("n2", cidr, "")}},
		{"no other one", podB4 + "/32", "no block is known that it is in",
			[]*model.Object{block("n2", cidr, model.StatePending)}},
	} {
		if r := fromAToB(t, "10.0.0.1/24", false, c.blocks...); r.Prefix != c.prefix || r.Note != c.note {
			t.Errorf("%s: %q %q, want %q %q", c.rule, r.Prefix, r.Note, c.prefix, c.note)
		}
	}
}
