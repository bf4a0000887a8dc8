package overlay

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// mesh makes nodes n1 to n9 with both overlays' addresses and keys, of which n1 to n5 are in one subnet.
func mesh() (list []*model.Object) {
	for i := 1; i < 10; i++ {
		n := &model.Node{Spec: model.NodeSpec{
			BGP: &model.NodeBGPSpec{IPv4Address: fmt.Sprintf("10.0.%d.%d/24", i/6, i),
				IPv6Address: fmt.Sprintf("fd00::%d/64", i)},
			IPv4VXLANTunnelAddr: fmt.Sprintf("10.244.0.%d", i), IPv6VXLANTunnelAddr: fmt.Sprintf("fd10::%d", i)},
			Status: model.NodeStatus{WireguardPublicKey: fmt.Sprint("key", i)}}
		n.Name, n.Labels = fmt.Sprint("n", i), map[string]string{"name": fmt.Sprint("n", i)}
		list = append(list, model.NewObject(model.ResourceKey(model.KindNode, n.Name), n))
	}
	return list
}

func poolObject(name, cidr, vxlan string) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindIPPool, name), &model.IPPool{Spec: model.IPPoolSpec{
		CIDR: cidr, VXLANMode: v3.VXLANMode(vxlan)}})
}

func felixObject(name string, set func(*model.FelixConfigurationSpec)) *model.Object {
	f := &model.FelixConfiguration{}
	f.Name = name
	set(&f.Spec)
	return model.NewObject(model.ResourceKey(model.KindFelixConfiguration, name), f)
}

// Two nodes with different ports or networks lose all packets of an overlay between them: each of them says so, with
// both values, while packets would travel there.
func TestMismatches(t *testing.T) {
	type spec = model.FelixConfigurationSpec
	port := func(n int) func(*spec) { return func(f *spec) { f.VXLANPort = new(n) } }
	v4, v6 := poolObject("v4", "10.244.0.0/16", "Always"), poolObject("v6", "fd10::/48", "Always")
	cross, plain := poolObject("v4", "10.244.0.0/16", "CrossSubnet"), poolObject("v4", "10.244.0.0/16", "Never")
	const remedy = ". Set it in the FelixConfiguration default alone, and remove it from the others (node.NAME) and " +
		"from the hosts (FELIX_VXLANPORT)"
	const lost = ": packets of VXLAN between this node and these are lost"
	others := func(from, to int) (list []*model.Object) {
		for i := from; i <= to; i++ {
			list = append(list, felixObject(fmt.Sprint("node.n", i), port(4800+i)))
		}
		return list
	}
	for _, x := range []struct {
		rule    string
		objects []*model.Object
		env     string
		want    string
	}{
		{"nothing is set", []*model.Object{v4}, "", ""},
		{"all have another one", []*model.Object{v4, felixObject("default", port(4790))}, "", ""},
		{"the default, said again", []*model.Object{v4, felixObject("node.n2", port(4789))}, "", ""},
		{"another node differs", []*model.Object{v4, felixObject("node.n2", port(4790))}, "",
			"vxlanPort: it is 4789 on this node, and 4790 on node n2" + lost + remedy},
		{"a node that is gone", []*model.Object{v4, felixObject("node.n10", port(4790))}, "", ""},
		{"this one differs", []*model.Object{v4, felixObject("node.n1", port(4790))}, "",
			"vxlanPort: it is 4790 on this node, and 4789 on nodes n2, n3, n4 and 5 more" + lost + remedy},
		{"its environment differs", []*model.Object{v4}, "FELIX_VXLANPORT=4790",
			"vxlanPort: it is 4790 on this node, set on the host (FELIX_VXLANPORT), and 4789 on nodes n2, n3, n4 and " +
				"5 more" + lost + ", unless their hosts set the same" + remedy},
		{"its environment has the cluster's", []*model.Object{v4, felixObject("default", port(4790))},
			"FELIX_VXLANPORT=4790", ""},
		{"a selector", []*model.Object{v4, felixObject("rack", func(f *spec) {
			f.NodeSelector, f.VXLANPort = "name in {'n8', 'n9'}", new(4790)
		})}, "", "vxlanPort: it is 4789 on this node, and 4790 on nodes n8, n9" + lost + remedy},
		{"many values", append(others(2, 6), v4), "", "vxlanPort: it is 4789 on this node, and 4802 on node n2, and " +
			"4803 on node n3, and 4804 on node n4, and 2 more values on others" + lost + remedy},
		{"both settings", []*model.Object{v4, felixObject("node.n2", func(f *spec) {
			f.VXLANPort, f.VXLANVNI = new(4790), new(7)
		})}, "", "vxlanPort: it is 4789 on this node, and 4790 on node n2" + lost + remedy +
			"; vxlanVNI: it is 4096 on this node, and 7 on node n2" + lost + strings.ReplaceAll(remedy, "PORT", "VNI")},
		{"both families are one setting", []*model.Object{v4, v6, felixObject("node.n2", port(4790))}, "",
			"vxlanPort: it is 4789 on this node, and 4790 on node n2" + lost + remedy},
		{"IPv6 alone", []*model.Object{plain, v6, felixObject("node.n2", port(4790))}, "",
			"vxlanPort: it is 4789 on this node, and 4790 on node n2" + lost + remedy},
		{"no pool with VXLAN", []*model.Object{plain, felixObject("node.n8", port(4790)),
			felixObject("default", func(f *spec) { f.VXLANEnabled = new(true) })}, "", ""},
		{"the value of the most nodes first", []*model.Object{v4, felixObject("node.n2", port(4790)),
			felixObject("node.n3", port(4791)), felixObject("node.n4", port(4791))}, "",
			"vxlanPort: it is 4789 on this node, and 4791 on nodes n3, n4, and 4790 on node n2" + lost + remedy},
		{"VXLAN is off here", []*model.Object{v4, felixObject("node.n2", port(4790))}, "FELIX_VXLANENABLED=false", ""},
		{"VXLAN is off there", []*model.Object{v4, felixObject("node.n2", func(f *spec) {
			f.VXLANPort, f.VXLANEnabled = new(4790), new(false)
		})}, "", ""},
		{"of one subnet no packet travels by CrossSubnet", []*model.Object{cross, felixObject("node.n2", port(4790)),
			felixObject("node.n8", port(4790))}, "",
			"vxlanPort: it is 4789 on this node, and 4790 on node n8" + lost + remedy},
		{"a value out of range is not used", []*model.Object{v4, felixObject("node.n2", port(70000))}, "", ""},
		{"WireGuard", []*model.Object{felixObject("default", func(f *spec) { f.WireguardEnabled = new(true) }),
			felixObject("node.n2", func(f *spec) { f.WireguardListeningPort = new(51000) }),
			felixObject("node.n3", func(f *spec) { f.WireguardListeningPortV6 = new(51000) })}, "",
			"wireguardListeningPort: it is 51820 on this node, and 51000 on node n2" +
				strings.ReplaceAll(lost, "VXLAN", "WireGuard") + strings.ReplaceAll(remedy, "VXLANPORT",
				"WIREGUARDLISTENINGPORT")},
		{"WireGuard is off", []*model.Object{felixObject("node.n2", func(f *spec) {
			f.WireguardListeningPort = new(51000)
		})}, "", ""},
	} {
		r := model.NewSet(slices.Concat(mesh(), x.objects)...)
		own := felixconfig.Merge(r, "n1", felixconfig.NewLocal([]string{x.env}, "", ""))
		var got []string
		for _, c := range Mismatches(r, "n1", &own) {
			got = append(got, c.Setting+": "+c.Text)
		}
		if strings.Join(got, "; ") != x.want {
			t.Errorf("%s:\n%q, want\n%q", x.rule, got, x.want)
		}
	}
}

// Nodes that take no part yet, or have no address of the family, lose nothing. By CrossSubnet two nodes do if one of
// them has the other in another subnet.
func TestMismatchesOfNodesThatSendNothing(t *testing.T) {
	address := func(text string) func(*model.Node) {
		return func(n *model.Node) { n.Spec.BGP.IPv4Address = text }
	}
	for _, x := range []struct {
		rule, mode string
		node       int
		change     func(*model.Node)
		want       bool
	}{
		{"both take part", "Always", 2, func(*model.Node) {}, true},
		{"no tunnel address there", "Always", 2, func(n *model.Node) { n.Spec.IPv4VXLANTunnelAddr = "" }, false},
		{"no address there", "Always", 2, address(""), false},
		{"no tunnel address here", "Always", 1, func(n *model.Node) { n.Spec.IPv4VXLANTunnelAddr = "" }, false},
		{"one subnet", "CrossSubnet", 2, func(*model.Node) {}, false},
		{"another subnet here", "CrossSubnet", 1, address("10.0.0.1/32"), true},
		{"another subnet there", "CrossSubnet", 2, address("10.0.0.2/32"), true},
	} {
		objects := mesh()
		x.change(objects[x.node-1].Value.(*model.Node))
		r := model.NewSet(append(objects, poolObject("v4", "10.244.0.0/16", x.mode), felixObject("node.n2",
			func(f *model.FelixConfigurationSpec) { f.VXLANPort = new(4790) }))...)
		own := felixconfig.Merge(r, "n1", nil)
		if list := Mismatches(r, "n1", &own); len(list) > 0 != x.want {
			t.Errorf("%s: %v", x.rule, list)
		}
	}
}

// Each setting of which nodes must have one value has the variable that the text names.
func TestSharedSettingsHaveVariables(t *testing.T) {
	n := 0
	for _, o := range all {
		for _, s := range o.Settings(&model.FelixConfigurationSpec{}).Shared {
			n++
			if !slices.ContainsFunc(felixconfig.Parameters(), func(p felixconfig.Parameter) bool {
				return p.Field == s.Name && p.Variable() == "FELIX_"+strings.ToUpper(s.Name)
			}) {
				t.Errorf("%s of %s is no parameter", s.Name, o.Name)
			}
		}
	}
	if n != 6 {
		t.Errorf("%d settings", n)
	}
}
