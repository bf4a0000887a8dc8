package sysctl

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/datastore/model"
)

func testKernel() *kerneltest.Kernel {
	f := kerneltest.New()
	f.PutLink(kernel.Link{Index: 2, Name: "eth0", MTU: 9000, Up: true})
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/ipv4/conf/tunl0/rp_filter"} {
		f.PutSysctl(name, "0")
	}
	return f
}

// configure passes a state with IPv4 workloads behind these interfaces to a target.
func configure(t *Target, forwarding bool, interfaces ...string) {
	objects := model.Set{}
	for _, name := range interfaces {
		k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name}
		objects[k] = model.NewObject(k, &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1",
			InterfaceName: name, IPNetworks: []string{"10.1.0.1/32"}}})
	}
	f := &model.FelixConfiguration{}
	if !forwarding {
		f.Spec.IPForwarding = "Disabled"
	}
	k := model.ResourceKey(model.KindFelixConfiguration, "default")
	objects[k] = model.NewObject(k, f)
	h := hoststate.New("n1", nil)
	h.Take(hoststate.State{Reader: objects, All: true})
	t.SetState(h)
}

func TestEndpointSysctls(t *testing.T) {
	values := func(e endpoint, ipv6 bool) string {
		var list []string
		want := map[key]string{}
		e.put(want, ipv6)
		for k, v := range want {
			list = append(list, strings.TrimPrefix(k.Name, "net/")+"="+v)
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	const v4 = "ipv4/conf/cali1/forwarding=1 ipv4/conf/cali1/proxy_arp=1 ipv4/conf/cali1/route_localnet=1 " +
		"ipv4/conf/cali1/rp_filter=%s ipv4/neigh/cali1/proxy_delay=0"
	for _, c := range []struct {
		rule string
		e    endpoint
		ipv6 bool
		want string
	}{
		{"IPv4 on a host without IPv6", endpoint{Interface: "cali1", V4: true}, false, fmt.Sprintf(v4, "1")},
		{"router advertisements are refused in any case", endpoint{Interface: "cali1", V4: true}, true,
			fmt.Sprintf(v4, "1") + " ipv6/conf/cali1/accept_ra=0"},
		{"IPv6 only", endpoint{Interface: "cali1", V6: true}, true,
			"ipv6/conf/cali1/accept_ra=0 ipv6/conf/cali1/disable_ipv6=0 ipv6/conf/cali1/forwarding=1 " +
				"ipv6/conf/cali1/proxy_ndp=1"},
		{"a workload that may spoof", endpoint{Interface: "cali1", V4: true, Spoof: true}, false, fmt.Sprintf(v4, "0")},
	} {
		if got := values(c.e, c.ipv6); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.rule, got, c.want)
		}
	}
}

// A workload's interface is configured when it appears. Another interface of the same name is configured again.
func TestEndpointInterfaceAppears(t *testing.T) {
	f := testKernel()
	target := New(f, Reassembly{}, time.Now)
	configure(target, false, "cali1", "cali2")
	put := func(l kernel.Link) {
		f.PutLink(l)
		target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
		f.PutSysctl("net/ipv4/conf/"+l.Name+"/proxy_arp", "0")
	}
	flush := func() []string {
		f.Log()
		_, _, _ = target.Flush()
		return f.Log()
	}
	if log := flush(); len(log) != 0 {
		t.Fatalf("%q", log)
	}
	put(kernel.Link{Index: 8, Name: "cali1"})
	if log := flush(); !slices.Contains(log, "sysctl net/ipv4/conf/cali1/proxy_arp=1") {
		t.Fatalf("%q", log)
	}
	before := f.Calls("Sysctl")
	put(kernel.Link{Index: 9, Name: "cali2"})
	flush()
	if n := f.Calls("Sysctl") - before; n > 6 {
		t.Errorf("%d variables are read for one interface with six", n)
	}
	target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: kernel.Link{Index: 8, Name: "cali1"}}})
	flush()
	put(kernel.Link{Index: 10, Name: "cali1"})
	if log := flush(); !slices.Contains(log, "sysctl net/ipv4/conf/cali1/proxy_arp=1") {
		t.Errorf("%q", log)
	}
}

// A workload can take the carrier away from its interface as often as it likes: no setting is read again for that, but
// at once when the interface itself changes.
func TestCarrierChangesNoSetting(t *testing.T) {
	f := testKernel()
	l := kernel.Link{Index: 7, Name: "cali1", MTU: 1500, Up: true, Running: true}
	f.PutLink(l)
	now := time.Unix(1000, 0)
	target := New(f, Reassembly{}, func() time.Time { return now })
	configure(target, false, "cali1")
	flush := func() (reads int) {
		before := f.Calls("Sysctl")
		if _, _, err := target.Flush(); err != nil {
			t.Fatal(err)
		}
		return f.Calls("Sysctl") - before
	}
	flush()
	change := func() int {
		f.PutLink(l)
		target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
		return flush()
	}
	for range 100 {
		l.Running = !l.Running
		if reads := change(); reads > 0 {
			t.Fatalf("a change of the carrier has %d variables read", reads)
		}
	}
	l.MTU = 1400
	if change() == 0 {
		t.Error("a change of the interface has none read")
	}
}

// A host that forwards IPv6 ignores router advertisements, so only a node that uses IPv6 forwards it.
func TestIPv6IsForwardedWhereItIsUsed(t *testing.T) {
	workload := func(node string, addresses ...string) *model.WorkloadEndpoint {
		return &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: node, InterfaceName: "cali1",
			IPNetworks: addresses}}
	}
	affinity := func(cidr string) model.Key {
		return model.Key{Kind: model.KindBlockAffinity, Name: "host/n1/" + cidr}
	}
	v4 := &model.NodeBGPSpec{IPv4Address: "10.0.0.1/24"}
	pods := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: "w"}
	pool := &model.IPPool{}
	pool.Spec.CIDR = "fd00:10::/48"
	for _, c := range []struct {
		rule string
		own  *model.NodeBGPSpec
		more map[model.Key]any
		want bool
	}{
		{"IPv4 alone", v4, nil, false},
		{"a default pool of IPv6 that nobody uses", v4, map[model.Key]any{
			model.ResourceKey(model.KindIPPool, "default-ipv6-ippool"): pool}, false},
		{"a workload of another node", v4, map[model.Key]any{pods: workload("n2", "fd00:10::1/128")}, false},
		{"a workload with IPv4", v4, map[model.Key]any{pods: workload("n1", "10.1.0.1/32")}, false},
		{"the Node has an address", &model.NodeBGPSpec{IPv6Address: "fd00::1/64"}, nil, true},
		{"a workload with both", v4, map[model.Key]any{pods: workload("n1", "10.1.0.1/32", "fd00:10::1/128")}, true},
		{"a block of this node", v4, map[model.Key]any{affinity("fd00:10::/122"): &model.BlockAffinity{}}, true},
	} {
		t.Run(c.rule, func(t *testing.T) {
			n := &model.Node{}
			n.Spec.BGP = c.own
			objects := model.NewSet(model.NewObject(model.ResourceKey(model.KindNode, "n1"), n))
			for k, v := range c.more {
				objects[k] = &model.Object{Key: k, Value: v}
			}
			h := hoststate.New("n1", nil)
			h.Take(hoststate.State{Reader: objects, All: true})
			links := map[string]kernel.Link{"cali1": {Name: "cali1"}}
			if got := desired(h, links, true)[forwarding6] == "1"; got != c.want {
				t.Errorf("IPv6 is forwarded: %t, want %t", got, c.want)
			}
		})
	}
}

// Variables for reassembly are only set where they leave less room than required, and only where they exist.
func TestReassembly(t *testing.T) {
	for _, c := range []struct {
		rule          string
		want          Reassembly
		before, after string // memory of IPv4 and IPv6, time of IPv4 and IPv6; -: there is none
	}{
		{"defaults of the kernel", Reassembly{64 << 20, 2}, "4194304 4194304 30 60", "67108864 67108864 2 2"},
		{"an operator's own values", Reassembly{64 << 20, 2}, "99999999 67108865 1 2", "99999999 67108865 1 2"},
		{"connections are not tracked", Reassembly{64 << 20, 2}, "4194304 - 30 -", "67108864 - 2 -"},
		{"kept", Reassembly{}, "4194304 4194304 30 60", "4194304 4194304 30 60"},
		{"only the time", Reassembly{Time: 5}, "4194304 4194304 30 60", "4194304 4194304 5 5"},
	} {
		f := testKernel()
		names := slices.Concat(reassemblyMemory, reassemblyTime)
		for i, value := range strings.Fields(c.before) {
			if value != "-" {
				f.PutSysctl(names[i], value)
			}
		}
		now := time.Now()
		target := New(f, c.want, func() time.Time { return now })
		configure(target, false)
		if _, failures, err := target.Flush(); failures > 0 || err != nil {
			t.Fatal(c.rule, failures, err)
		}
		for i, value := range strings.Fields(c.after) {
			if got, err := f.Sysctl(names[i]); got != value && (value != "-" || err == nil) {
				t.Errorf("%s: %s is %s, want %s", c.rule, names[i], got, value)
			}
		}
	}
	f, now := testKernel(), time.Now()
	target := New(f, Reassembly{64 << 20, 2}, func() time.Time { return now })
	configure(target, false)
	if _, _, err := target.Flush(); err != nil {
		t.Fatal(err)
	}
	f.PutSysctl(reassemblyTime[1], "60") // the module is loaded
	now = now.Add(target.Next())
	if _, _, err := target.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, _ := f.Sysctl(reassemblyTime[1]); got != "2" {
		t.Errorf("a variable that came later is %s", got)
	}
}

// readOnly is a kernel whose variables cannot be set, as in an unprivileged container.
type readOnly struct {
	*kerneltest.Kernel
	off bool
}

func (r *readOnly) SetSysctl(name, value string) error {
	if r.off {
		return r.Kernel.SetSysctl(name, value)
	}
	return fmt.Errorf("set sysctl %s to %s: %w", name, value, &kernel.ReadOnlyError{Dir: kernel.DefaultProcSysNet})
}

func TestReadOnlySysctlsHaveOneNotice(t *testing.T) {
	k := &readOnly{Kernel: testKernel()}
	now := time.Now()
	target := New(k, Reassembly{}, func() time.Time { return now })
	var ends []string
	for i := range 50 {
		name := fmt.Sprintf("cali%d", i)
		k.PutLink(kernel.Link{Index: 100 + i, Name: name})
		k.PutSysctl("net/ipv4/conf/"+name+"/rp_filter", "0")
		ends = append(ends, name)
	}
	configure(target, true, ends...)
	if _, failures, err := target.Flush(); err != nil || failures < 51 {
		t.Fatalf("%d failures, %v", failures, err)
	}
	notices := target.Notices()
	if len(notices) != 1 || !strings.Contains(notices[0].Text, "for instance net/ipv4/ip_forward=1: /proc/sys/net "+
		"is read-only") ||
		!strings.Contains(notices[0].Text, "--proc-sys-net or MANX_PROC_SYS_NET") {
		t.Fatalf("notices %+v", notices)
	}
	k.off = true
	now = now.Add(time.Hour)
	target.Retry()
	if _, failures, err := target.Flush(); err != nil || failures > 0 {
		t.Fatal(failures, err)
	}
	if n := target.Notices(); len(n) > 0 {
		t.Errorf("when it can be written: %+v", n)
	}
}

// With encryption of the nodes' own packets, reverse path lookups follow the mark of those that come in plain.
func TestHostEncryption(t *testing.T) {
	for _, on := range []bool{false, true} {
		felix := &model.FelixConfiguration{}
		felix.Spec.WireguardEnabled, felix.Spec.WireguardHostEncryptionEnabled = new(true), &on
		h := hoststate.New("n1", nil)
		h.Take(hoststate.State{All: true, Reader: model.NewSet(model.NewObject(
			model.ResourceKey(model.KindFelixConfiguration, "default"), felix))})
		for _, h.PolicyOnly = range []bool{false, true} {
			v := desired(h, nil, true)[key{Name: "net/ipv4/conf/all/src_valid_mark"}]
			if (v == "1") != (on && !h.PolicyOnly) {
				t.Errorf("on %t, policy alone %t: %q", on, h.PolicyOnly, v)
			}
		}
	}
}

// With CrossSubnet a packet comes by the tunnel from a source that is reached without it: on the devices of overlays
// the check of sources is loose. IPv6 has none.
func TestOverlaysCheckSourcesLoosely(t *testing.T) {
	felix := &model.FelixConfiguration{}
	felix.Spec.IPForwarding = "Disabled"
	pool := func(name, cidr string) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindIPPool, name), &model.IPPool{
			Spec: model.IPPoolSpec{CIDR: cidr, VXLANMode: "CrossSubnet"}})
	}
	own := &model.Node{Spec: model.NodeSpec{IPv4VXLANTunnelAddr: "10.0.0.1", IPv6VXLANTunnelAddr: "fd10::1",
		BGP: &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24", IPv6Address: "fd16::1/64"}}}
	own.Name = "n1"
	h := hoststate.New("n1", nil)
	h.Take(hoststate.State{All: true, Reader: model.NewSet(pool("four", "10.0.0.0/16"), pool("six", "fd10::/48"),
		model.NewObject(model.ResourceKey(model.KindNode, "n1"), own),
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))})
	links := map[string]kernel.Link{"eth0": {Index: 2}, "vxlan.calico": {Index: 3}, "vxlan-v6.calico": {Index: 4}}
	want := map[key]string{}
	for _, device := range []string{"vxlan.calico", "vxlan-v6.calico"} {
		want[key{device, "net/ipv4/conf/" + device + "/rp_filter"}] = "2"
	}
	if got := desired(h, links, true); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
