package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Workloads have the smallest MTU of the host and its overlays, whether a pool or a setting switches those on.
func TestMTU(t *testing.T) {
	pool := func(cidr string, ipip, vxlan ippool.Mode) ippool.Pool {
		return ippool.Pool{CIDR: netip.MustParsePrefix(cidr), IPIP: ipip, VXLAN: vxlan}
	}
	none := pool("10.0.0.0/16", ippool.Never, ippool.Never)
	byIPIP := pool("10.1.0.0/16", ippool.Always, ippool.Never)
	byVXLAN := pool("10.2.0.0/16", ippool.Never, ippool.CrossSubnet)
	byVXLAN6 := pool("fd10::/48", ippool.Never, ippool.Always)
	own := &model.Node{Spec: model.NodeSpec{
		BGP:                 &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24", IPv6Address: "fd16::1/64"},
		IPv4VXLANTunnelAddr: "10.2.0.1", IPv6VXLANTunnelAddr: "fd10::1"}}
	own.Name = "n1"
	yes, no := true, false
	type settings = model.FelixConfigurationSpec
	for _, c := range []struct {
		rule    string
		pools   []ippool.Pool
		set     func(*settings)
		host    int
		devices []int // MTUs of tunl0, vxlan.calico, vxlan-v6.calico, those that there are
		pods    int
	}{
		{"no tunnel", []ippool.Pool{none}, nil, 1500, nil, 1500},
		{"IPIP", []ippool.Pool{none, byIPIP}, nil, 1500, []int{1480}, 1480},
		{"ipipEnabled", []ippool.Pool{none}, func(s *settings) { s.IPIPEnabled = &yes }, 1500, []int{1480}, 1480},
		{"ipipMTU wins", []ippool.Pool{byIPIP}, func(s *settings) { s.IPIPMTU = new(1400) }, 1500, []int{1400}, 1400},
		{"a tunnel larger than the host does not make pods larger", []ippool.Pool{byIPIP},
			func(s *settings) { s.IPIPMTU = new(9000) }, 1500, []int{9000}, 1500},
		{"VXLAN", []ippool.Pool{byVXLAN}, nil, 1500, []int{1450}, 1450},
		{"VXLAN for IPv6", []ippool.Pool{byVXLAN6}, nil, 1500, []int{1430}, 1430},
		{"VXLAN for both", []ippool.Pool{byVXLAN, byVXLAN6}, nil, 9000, []int{8950, 8930}, 8930},
		{"the smallest of all tunnels counts", []ippool.Pool{byIPIP, byVXLAN, none}, nil, 1500,
			[]int{1480, 1450}, 1450},
		{"vxlanMTU is for IPv4 alone", []ippool.Pool{byVXLAN, byVXLAN6},
			func(s *settings) { s.VXLANMTU = new(1300) }, 1500, []int{1300, 1430}, 1300},
		{"vxlanMTUV6 is for IPv6 alone", []ippool.Pool{byVXLAN, byVXLAN6},
			func(s *settings) { s.VXLANMTUV6 = new(1300) }, 1500, []int{1450, 1300}, 1300},
		{"0 is none", []ippool.Pool{byVXLAN, byVXLAN6},
			func(s *settings) { s.VXLANMTU, s.VXLANMTUV6 = new(0), new(0) }, 1500, []int{1450, 1430}, 1430},
		{"too small to work", []ippool.Pool{byVXLAN, byVXLAN6},
			func(s *settings) { s.VXLANMTU, s.VXLANMTUV6 = new(100), new(1000) }, 1500, []int{1450, 1430}, 1430},
		{"IPv6 needs 1280", []ippool.Pool{byVXLAN, byVXLAN6}, func(s *settings) { s.VXLANMTU = new(1000) }, 1300,
			[]int{1000, 1280}, 1280},
		{"vxlanEnabled without a pool", []ippool.Pool{none}, func(s *settings) { s.VXLANEnabled = &yes }, 1500,
			[]int{1450}, 1450},
		{"vxlanEnabled: false", []ippool.Pool{byVXLAN}, func(s *settings) { s.VXLANEnabled = &no }, 1500, nil, 1500},
	} {
		var f settings
		if c.set != nil {
			c.set(&f)
		}
		table := ippool.NewTable(c.pools...)
		devices := slices.DeleteFunc(Devices(&f, table, own), func(d Device) bool { return d.Leaving })
		var got []int
		for _, d := range devices {
			got = append(got, d.MTUOn(c.host))
		}
		if len(got) != len(c.devices) {
			t.Fatalf("%s: the devices are %+v", c.rule, devices)
		}
		for i := range got {
			if got[i] != c.devices[i] {
				t.Errorf("%s: %s has %d, want %d", c.rule, devices[i].Name, got[i], c.devices[i])
			}
		}
		if pods := PodMTU(&f, table, c.host); pods != c.pods {
			t.Errorf("%s: pods have %d, want %d", c.rule, pods, c.pods)
		}
	}
}

// The devices of WireGuard have the node's address while packets to nodes are encrypted, beside that of a pool.
func TestDevicesOfHostEncryption(t *testing.T) {
	own := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24"},
		Wireguard: &model.NodeWireguard{InterfaceIPv4Address: "10.2.0.1"}}}
	var f model.FelixConfigurationSpec
	f.WireguardEnabled = new(true)
	pools := ippool.NewTable(ippool.Pool{CIDR: netip.MustParsePrefix("10.2.0.0/16")})
	for want, set := range map[string]func(){
		"[10.2.0.1/32]":              func() {},
		"[192.0.2.1/32 10.2.0.1/32]": func() { f.WireguardHostEncryptionEnabled = new(true) },
	} {
		f.WireguardHostEncryptionEnabled = nil
		set()
		if list := Devices(&f, pools, own); len(list) != 1 || fmt.Sprint(list[0].Addresses) != want {
			t.Errorf("%+v, want %s", list, want)
		}
	}
	f.WireguardHostEncryptionEnabled, own.Spec.Wireguard = nil, nil
	if list := Devices(&f, nil, own); len(list) != 1 || fmt.Sprint(list[0].Addresses) != "[192.0.2.1/32]" {
		t.Errorf("without an address of a pool: %+v", list)
	}
	f.WireguardHostEncryptionEnabled, f.WireguardRoutingRulePriority = new(true), new(1)
	if list := Conflicts(&f, nil); len(list) != 1 || list[0].Setting != "wireguardRoutingRulePriority" {
		t.Errorf("no room for rules: %+v", list)
	}
	f.WireguardEnabled = nil
	if list := Conflicts(&f, nil); len(list) != 1 || list[0].Setting != "wireguardHostEncryptionEnabled" {
		t.Errorf("nothing is encrypted: %+v", list)
	}
}

// A device that no pool needs any more is one of the node's as long as the Node has the tunnel address, unless the
// settings decide.
func TestDevicesLeave(t *testing.T) {
	own := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24"},
		IPv4VXLANTunnelAddr: "10.2.0.1"}}
	own.Name = "n1"
	var f model.FelixConfigurationSpec
	plain := ippool.NewTable(ippool.Pool{CIDR: netip.MustParsePrefix("10.2.0.0/16")})
	if list := Devices(&f, plain, own); len(list) != 1 || !list[0].Leaving || list[0].Name != model.DeviceVXLAN ||
		len(list[0].Addresses) != 1 {
		t.Errorf("%+v", list)
	}
	if list := Devices(&f, nil, own); len(list) != 1 || !list[0].Leaving || !list[0].Kept ||
		len(list[0].Addresses) > 0 {
		t.Errorf("without the pool: %+v", list)
	}
	off := false
	f.VXLANEnabled = &off
	if list := Devices(&f, nil, own); len(list) != 0 {
		t.Errorf("switched off: %+v", list)
	}
	f.VXLANEnabled, own.Spec.IPv4VXLANTunnelAddr = nil, ""
	if list := Devices(&f, nil, own); len(list) != 0 {
		t.Errorf("no address: %+v", list)
	}
}

// A Node with a tunnel address, but no sound parameters of the device, keeps the device that there is.
func TestDevicesAreKept(t *testing.T) {
	pools := ippool.NewTable(ippool.Pool{CIDR: netip.MustParsePrefix("10.2.0.0/16"), VXLAN: ippool.Always})
	var f model.FelixConfigurationSpec
	for want, change := range map[string]func(*model.Node){
		"one":  func(*model.Node) {},
		"kept": func(n *model.Node) { n.Spec.VXLANTunnelMACAddr = "01:00:5e:00:00:01" },
		"none": func(n *model.Node) { n.Spec.VXLANTunnelMACAddr, n.Spec.IPv4VXLANTunnelAddr = "00:00:00:00:00:00", "" },
	} {
		own := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24"},
			IPv4VXLANTunnelAddr: "10.2.0.1"}}
		change(own)
		got, list := "none", Devices(&f, pools, own)
		if len(list) == 1 && list[0].Kept {
			got = "kept"
		} else if len(list) == 1 && list[0].VXLAN != nil {
			got = "one"
		}
		if got != want {
			t.Errorf("%s: %+v", want, list)
		}
	}
}

// A device whose packets do not fit the host is a sentence with both sizes and the way out.
func TestTooLarge(t *testing.T) {
	for _, c := range []struct {
		device Device
		host   int
		want   string
	}{
		{Device{MTU: 1450, Overhead: 50, MTUName: "vxlanMTU"}, 1500, ""},
		{Device{Overhead: 50}, 1500, ""},
		{Device{MTU: 1500, Overhead: 50}, 0, ""},
		{Device{MTU: 1500, Overhead: 50, MTUName: "vxlanMTU"}, 1500,
			"its MTU is 1500, so its packets have up to 1550 " +
				"bytes with their headers, and the links and routes to other nodes take 1500: larger packets are " +
				"fragmented, and lost where fragments are dropped. Set vxlanMTU to 1450 at most, or to 0"},
		{Device{Overhead: 70, Family: model.IPv6}, 1300, "its MTU is 1280, so its packets have up to 1350 " +
			"bytes with their headers, and the links and routes to other nodes take 1300: larger packets are " +
			"fragmented, and lost where fragments are dropped. Raise the MTU of the network between the nodes to 1350"},
	} {
		if got := c.device.TooLarge(c.host, "the links and routes to other nodes take"); got != c.want {
			t.Errorf("%+v on %d: %q, want %q", c.device, c.host, got, c.want)
		}
	}
}

// A pod keeps its MTU for its life: the first ones of a node come before it has the address of its tunnel.
func TestMTUBeforeTheTunnel(t *testing.T) {
	var f model.FelixConfigurationSpec
	pools := ippool.NewTable(ippool.Pool{CIDR: netip.MustParsePrefix("10.2.0.0/16"), VXLAN: ippool.Always})
	for _, own := range []*model.Node{nil, {}} {
		if devices := Devices(&f, pools, own); len(devices) > 0 {
			t.Errorf("a node without addresses has %+v", devices)
		}
	}
	if mtu := PodMTU(&f, pools, 1500); mtu != 1450 {
		t.Errorf("pods have %d, want 1450", mtu)
	}
}
