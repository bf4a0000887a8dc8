package ippool

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

func pool(name, cidr string, set func(*model.IPPoolSpec)) *model.Object {
	spec := model.IPPoolSpec{CIDR: cidr}
	if set != nil {
		set(&spec)
	}
	return model.NewObject(model.ResourceKey(model.KindIPPool, name), &model.IPPool{Spec: spec})
}

func TestParse(t *testing.T) {
	lb := []v3.IPPoolAllowedUse{v3.IPPoolAllowedUseLoadBalancer}
	for _, c := range []struct {
		rule string
		spec model.IPPoolSpec
		want Pool
	}{
		{"no encapsulation", model.IPPoolSpec{CIDR: "10.1.0.0/16"}, Pool{}},
		{"IPIP", model.IPPoolSpec{CIDR: "10.1.0.0/16", IPIPMode: "Always"}, Pool{IPIP: Always}},
		{"VXLAN", model.IPPoolSpec{CIDR: "10.1.0.0/16", VXLANMode: "CrossSubnet"}, Pool{VXLAN: CrossSubnet}},
		{"host bits do not matter", model.IPPoolSpec{CIDR: "10.1.2.3/16", IPIPMode: "Never"}, Pool{}},
		{"a disabled pool counts",
			model.IPPoolSpec{CIDR: "10.1.0.0/16", IPIPMode: "Always", Disabled: true}, Pool{IPIP: Always}},
		{"an unknown mode does not", model.IPPoolSpec{CIDR: "10.1.0.0/16", IPIPMode: "Sometimes"}, Pool{}},
		{"nor does that of a pool for load balancers",
			model.IPPoolSpec{CIDR: "10.1.0.0/16", IPIPMode: "Always", VXLANMode: "Always", AllowedUses: lb}, Pool{}},
		{"there is no IPIP for IPv6",
			model.IPPoolSpec{CIDR: "fd00::/48", IPIPMode: "Always"}, Pool{CIDR: netip.MustParsePrefix("fd00::/48")}},
	} {
		c.want.Name = "p"
		if !c.want.CIDR.IsValid() {
			c.want.CIDR = netip.MustParsePrefix("10.1.0.0/16")
		}
		if got, err := Parse("p", &c.spec); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.rule, got, err, c.want)
		}
	}
	want := `spec.cidr = "10.1.0.0": want ADDRESS/LENGTH`
	if _, err := Parse("p", &model.IPPoolSpec{CIDR: "10.1.0.0"}); err == nil || err.Error() != want {
		t.Errorf("error %v", err)
	}
}

func TestMostSpecificPool(t *testing.T) {
	objects := []*model.Object{
		pool("a-outer", "10.0.0.0/8", nil), pool("z-inner", "10.1.0.0/16", nil),
		pool("m-innermost", "10.1.2.0/24", nil),
		pool("b-same", "10.1.0.0/16", nil), pool("six", "fd00::/48", nil), pool("broken", "10.1.2.3", nil),
	}
	table := Read(model.NewSet(objects...))
	for text, want := range map[string]string{
		"10.1.2.3/32": "m-innermost", "10.1.2.0/24": "m-innermost", "10.1.2.0/23": "b-same", "10.1.3.0/26": "b-same",
		"10.2.0.0/26": "a-outer", "10.0.0.0/8": "a-outer", "10.0.0.0/7": "", "0.0.0.0/0": "", "11.0.0.0/26": "",
		"fd00::1/128": "six", "fd00::/47": "", "::/0": "",
	} {
		p, got := netip.MustParsePrefix(text), ""
		if found := table.Of(p); found != nil {
			got = found.Name
		}
		if got != want {
			t.Errorf("%s is in pool %q, want %q", text, got, want)
		}
		if p.IsSingleIP() && table.OfAddress(p.Addr()).Name != want {
			t.Errorf("%s as an address is in pool %q, want %q", text, table.OfAddress(p.Addr()).Name, want)
		}
	}
	if table.OfAddress(netip.Addr{}) != nil {
		t.Error("an invalid address is in a pool")
	}
	backwards := slices.Clone([]Pool(table))
	slices.Reverse(backwards)
	if !slices.Equal(NewTable(backwards...), table) {
		t.Errorf("the order matters: %v and %v", NewTable(backwards...), table)
	}
}

func TestReach(t *testing.T) {
	four, six := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd10::/48")
	always := Pool{CIDR: four, IPIP: Always}
	cross := Pool{CIDR: four, IPIP: CrossSubnet}
	for _, c := range []struct {
		rule        string
		pool        *Pool
		own, remote string
		want        string
	}{
		{"outside", nil, "10.0.0.1/24", "10.0.0.2", "Direct"},
		{"plain", &Pool{CIDR: four}, "10.0.0.1/24", "10.9.0.2", "Direct"},
		{"Always, also in one subnet", &always, "10.0.0.1/24", "10.0.0.2", "IPIP tunl0"},
		{"CrossSubnet in one subnet", &cross, "10.0.0.1/24", "10.0.0.2", "Direct"},
		{"CrossSubnet across", &cross, "10.0.0.1/24", "10.0.1.2", "IPIP tunl0"},
		{"a bare own address is a subnet of its own", &cross, "10.0.0.1/32", "10.0.0.2", "IPIP tunl0"},
		{"own address unknown", &cross, "", "10.0.0.2", "IPIP tunl0"},
		{"other address unknown", &cross, "10.0.0.1/24", "", "IPIP tunl0"},
		{"IPIP to an IPv6 next hop", &always, "10.0.0.1/24", "fd00::2", "Direct"},
		{"VXLAN", &Pool{CIDR: four, VXLAN: Always}, "10.0.0.1/24", "10.0.0.2", "VXLAN vxlan.calico"},
		{"VXLAN for IPv6", &Pool{CIDR: six, VXLAN: CrossSubnet}, "fd00::1/64", "fd00:1::2", "VXLAN vxlan-v6.calico"},
		{"VXLAN for IPv6 in one subnet", &Pool{CIDR: six, VXLAN: CrossSubnet}, "fd00::1/64", "fd00::2", "Direct"},
		{"both: VXLAN counts", &Pool{CIDR: four, IPIP: Always, VXLAN: Always}, "10.0.0.1/24", "10.0.0.2",
			"VXLAN vxlan.calico"},
	} {
		own, _ := netip.ParsePrefix(c.own)
		remote, _ := netip.ParseAddr(c.remote)
		r := c.pool.Reach(own, remote)
		if got := strings.TrimSpace(r.Encapsulation.String() + " " + r.Device()); got != c.want {
			t.Errorf("%s: %q, want %q", c.rule, got, c.want)
		}
	}
}

// A node decides hundreds of thousands of routes.
func TestNoAllocations(t *testing.T) {
	table := NewTable(Pool{Name: "a", CIDR: netip.MustParsePrefix("10.0.0.0/8")},
		Pool{Name: "b", CIDR: netip.MustParsePrefix("10.1.0.0/16"), IPIP: CrossSubnet})
	p, own := netip.MustParsePrefix("10.1.2.0/26"), netip.MustParsePrefix("10.0.0.1/24")
	remote := netip.MustParseAddr("10.9.0.2")
	var got Reach
	decide := func() { got = table.Of(p).Reach(own, remote) }
	if n := testing.AllocsPerRun(100, decide); n != 0 || got.Encapsulation != IPIP {
		t.Errorf("%v allocations for %+v", n, got)
	}
}

// A pool sends through the device that it is to send through.
func TestThrough(t *testing.T) {
	four, six := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd10::/48")
	for _, c := range []struct {
		cidr   netip.Prefix
		device string
	}{{four, ""}, {four, model.DeviceIPIP}, {four, model.DeviceVXLAN}, {six, ""}, {six, model.DeviceVXLANV6}} {
		p := Pool{CIDR: c.cidr, IPIP: CrossSubnet, VXLAN: Always}.Through(c.device)
		if got := p.Reach(netip.PrefixFrom(c.cidr.Addr(), 8), c.cidr.Addr()).Device(); got != c.device {
			t.Errorf("%s: %q, want %q", c.cidr, got, c.device)
		}
	}
}
