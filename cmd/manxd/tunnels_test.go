package main

import (
	"fmt"
	"testing"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// An administrator who switches VXLAN off on a node reads in its status which pools lose their routes, whether the
// datastore or the host says so.
func TestNoticesOfOverlays(t *testing.T) {
	pool := model.NewObject(model.ResourceKey(model.KindIPPool, "pods"), &model.IPPool{Spec: model.IPPoolSpec{
		CIDR: "10.0.0.0/16", VXLANMode: "CrossSubnet"}})
	felix := &model.FelixConfiguration{}
	felix.Spec.VXLANEnabled = new(false)
	wrong := &model.FelixConfiguration{}
	wrong.Spec.VXLANVNI = new(1 << 24)
	port := &model.FelixConfiguration{}
	port.Spec.VXLANPort = new(4790)
	node := func(name, address, tunnel string) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindNode, name), &model.Node{Spec: model.NodeSpec{
			BGP: &model.NodeBGPSpec{IPv4Address: address}, IPv4VXLANTunnelAddr: tunnel}})
	}
	const off = "[{dataplane vxlanEnabled it is false, while pools need VXLAN (pods): the routes to other nodes " +
		"that need it are blocked 0001-01-01 00:00:00 +0000 UTC}]"
	for _, x := range []struct {
		rule string
		r    model.Reader
		env  []string
		want string
	}{
		{"nothing is set", model.NewSet(pool), nil, "[]"},
		{"the node's object", model.NewSet(pool, model.NewObject(model.ResourceKey(model.KindFelixConfiguration,
			"node.n1"), felix)), nil, off},
		{"another node's", model.NewSet(pool, model.NewObject(model.ResourceKey(model.KindFelixConfiguration,
			"node.n2"), felix)), nil, "[]"},
		{"the environment", model.NewSet(pool), []string{"FELIX_VXLANENABLED=false"}, off},
		{"a value out of range, of another program", model.NewSet(pool, model.NewObject(model.ResourceKey(
			model.KindFelixConfiguration, "default"), wrong)), nil,
			"[{dataplane vxlanVNI 16777216 is out of range: 4096 is used 0001-01-01 00:00:00 +0000 UTC}]"},
		{"the port of another node", model.NewSet(pool, node("n1", "192.0.2.1/32", "10.0.0.1"),
			node("n2", "192.0.2.2/32", "10.0.0.2"), model.NewObject(model.ResourceKey(
				model.KindFelixConfiguration, "node.n2"), port)), nil,
			"[{dataplane vxlanPort it is 4789 on this node, and 4790 on node n2: packets of VXLAN between this node " +
				"and these are lost. Set it in the FelixConfiguration default alone, and remove it from the others " +
				"(node.NAME) and from the hosts (FELIX_VXLANPORT) 0001-01-01 00:00:00 +0000 UTC}]"},
	} {
		n := deps.Node{Name: "n1", Felix: felixconfig.NewLocal(x.env, "", "")}
		if got := fmt.Sprint(overlayNotices(x.r, n)); got != x.want {
			t.Errorf("%s: %s, want %s", x.rule, got, x.want)
		}
	}
}

// Without IPAM the tunnels of VXLAN alone are maintained: the datastore has the addresses of the others.
func TestTunnelTypesOfPodCIDR(t *testing.T) {
	var o options
	if all := o.tunnelTypes(); len(all) != len(overlay.DeviceNames()) {
		t.Errorf("with IPAM: %v", all)
	}
	o.datastore.kube.UsePodCIDR = true
	if got := fmt.Sprint(o.tunnelTypes()); got != "[VXLAN VXLAN IPv6]" {
		t.Errorf("with pod CIDRs: %s", got)
	}
}
