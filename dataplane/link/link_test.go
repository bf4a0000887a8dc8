package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/reconcile"
)

func testKernel() *kerneltest.Kernel {
	f := kerneltest.New()
	f.PutLink(kernel.Link{Index: 2, Name: "eth0", MTU: 9000, Up: true})
	f.PutLink(kernel.Link{Index: 3, Name: "enp3s0", MTU: 1500, Up: true})
	f.PutLink(kernel.Link{Index: 4, Name: "eth1", MTU: 1280}) // down: does not count
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/ipv4/conf/tunl0/rp_filter"} {
		f.PutSysctl(name, "0")
	}
	return f
}

func TestMTU(t *testing.T) {
	links := map[string]kernel.Link{
		"lo": {Name: "lo", MTU: 65536, Up: true}, "eth0": {Name: "eth0", MTU: 9000, Up: true},
		"ens4": {Name: "ens4", MTU: 1500, Up: true}, "cali1": {Name: "cali1", MTU: 1000, Up: true},
		"eth1": {Name: "eth1", MTU: 1280},
	}
	ipip := func(mtus ...int) (c Config) {
		for _, mtu := range mtus {
			c.Devices = append(c.Devices, IPIP(netip.Addr{}, mtu))
		}
		return c
	}
	for _, c := range []struct {
		rule         string
		config       Config
		links        map[string]kernel.Link
		tunnel, pods int
	}{
		{"the smallest uplink that is up", Config{}, links, 0, 1500},
		{"the tunnel's header counts with IPIP", ipip(0), links, 1480, 1480},
		{"ipipMTU wins", ipip(1400), links, 1400, 1400},
		{"a tunnel larger than the host does not make pods larger", ipip(9000), links, 9000, 1500},
		{"the smallest of several tunnels counts", ipip(1300, 1200, 1400), links, 1300, 1200},
		{"no uplink", ipip(0), nil, 1440, 1440},
	} {
		host, tunnel := hostMTU(c.links, c.config.MTUPattern), 0
		if len(c.config.Devices) > 0 {
			tunnel = c.config.Devices[0].mtu(host)
		}
		if pods := c.config.podMTU(host); tunnel != c.tunnel || pods != c.pods {
			t.Errorf("%s: tunnel %d, pods %d; want %d, %d", c.rule, tunnel, pods, c.tunnel, c.pods)
		}
	}
}

func TestEndpointSysctls(t *testing.T) {
	values := func(e Endpoint, ipv6 bool) string {
		var list []string
		for _, s := range e.sysctls(ipv6) {
			list = append(list, strings.TrimPrefix(s.Name, "net/")+"="+s.Value)
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	const v4 = "ipv4/conf/cali1/forwarding=1 ipv4/conf/cali1/proxy_arp=1 ipv4/conf/cali1/route_localnet=1 " +
		"ipv4/conf/cali1/rp_filter=%s ipv4/neigh/cali1/proxy_delay=0"
	for _, c := range []struct {
		rule string
		e    Endpoint
		ipv6 bool
		want string
	}{
		{"IPv4 on a host without IPv6", Endpoint{Interface: "cali1", V4: true}, false, fmt.Sprintf(v4, "1")},
		{"router advertisements are refused in any case", Endpoint{Interface: "cali1", V4: true}, true,
			fmt.Sprintf(v4, "1") + " ipv6/conf/cali1/accept_ra=0"},
		{"IPv6 only", Endpoint{Interface: "cali1", V6: true}, true,
			"ipv6/conf/cali1/accept_ra=0 ipv6/conf/cali1/disable_ipv6=0 ipv6/conf/cali1/forwarding=1 " +
				"ipv6/conf/cali1/proxy_ndp=1"},
		{"a workload that may spoof", Endpoint{Interface: "cali1", V4: true, Spoof: true}, false, fmt.Sprintf(v4, "0")},
	} {
		if got := values(c.e, c.ipv6); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.rule, got, c.want)
		}
	}
}

func tunnelConfig(address string) Config {
	return Config{Devices: []OwnDevice{IPIP(netip.MustParseAddr(address), 0)}}
}

func TestTunnelDevice(t *testing.T) {
	f := testKernel()
	mtuFile := filepath.Join(t.TempDir(), "calico", "mtu")
	target := New(f, mtuFile, time.Now)
	config := tunnelConfig("10.244.1.1")
	flush := func() []string {
		t.Helper()
		f.Log()
		if _, failures, err := target.Flush(); err != nil || failures > 0 {
			t.Fatal(failures, err, target.Statuses())
		}
		return f.Log()
	}
	target.Configure(config)
	log := flush()
	if len(log) == 0 || log[0] != "create tunl0" {
		t.Fatalf("%q", log)
	}
	if up, address := slices.Index(log, "SetUp tunl0"), slices.Index(log, "add address 10.244.1.1/32"); up < 0 ||
		address < 0 || up < address {
		t.Errorf("the device is up without its address: %q", log)
	}
	if mtu, err := os.ReadFile(mtuFile); string(mtu) != "1480" || err != nil {
		t.Errorf("MTU file %q %v", mtu, err)
	}
	if log := flush(); len(log) != 0 {
		t.Errorf("the second flush does %q", log)
	}
	tunnel := kernel.Link{Index: 5, Name: TunnelDevice, Kind: "ipip", MTU: 1300, Up: true}
	f.PutLink(tunnel)
	foreign := kernel.Address{Link: 5, Prefix: netip.MustParsePrefix("192.0.2.1/24")}
	f.PutAddress(foreign)
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: tunnel}, {Type: kernel.EventAddress, Address: foreign}})
	if log := flush(); !slices.Equal(log, []string{"SetMTU tunl0", "remove address 192.0.2.1/24"}) {
		t.Errorf("repair: %q", log)
	}
	target.Configure(tunnelConfig("10.244.7.1"))
	if log := flush(); !slices.Equal(log, []string{"add address 10.244.7.1/32", "remove address 10.244.1.1/32"}) {
		t.Errorf("another address: %q", log)
	}
	target.Configure(Config{})
	if log := flush(); !slices.Equal(log, []string{"remove address 10.244.7.1/32"}) {
		t.Errorf("IPIP off: %q", log)
	}
	if mtu, _ := os.ReadFile(mtuFile); string(mtu) != "1500" {
		t.Errorf("MTU file without IPIP: %q", mtu)
	}
}

// A workload's interface is configured when it appears. Another interface of the same name is configured again.
func TestEndpointInterfaceAppears(t *testing.T) {
	f := testKernel()
	target := New(f, "", time.Now)
	target.Configure(Config{NoForwarding: true, Endpoints: []Endpoint{{Interface: "cali1", V4: true},
		{Interface: "cali2", V4: true}}})
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

func TestNoIPIPIsOneStatus(t *testing.T) {
	f := testKernel()
	f.WithoutIPIP()
	target := New(f, "", time.Now)
	target.Configure(tunnelConfig("10.244.1.1"))
	_, _, _ = target.Flush()
	var failed []Status
	for _, s := range target.Statuses() {
		if s.Phase != reconcile.Applied {
			failed = append(failed, s)
		}
	}
	if len(failed) != 1 || failed[0].Kind != Device || !strings.Contains(failed[0].Reason, kernel.ErrNoIPIP.Error()) {
		t.Errorf("%+v", failed)
	}
	if err := target.Missing()[TunnelDevice]; !errors.Is(err, kernel.ErrNoIPIP) {
		t.Error(err)
	}
	target.Configure(Config{})
	if missing := target.Missing(); len(missing) != 0 {
		t.Errorf("nobody needs IPIP any more: %v", missing)
	}
}

// A workload can take the carrier away from its interface as often as it likes: no setting is read again for that, but
// at once when the interface itself changes.
func TestCarrierChangesNoSetting(t *testing.T) {
	f := testKernel()
	l := kernel.Link{Index: 7, Name: "cali1", MTU: 1500, Up: true, Running: true}
	f.PutLink(l)
	now := time.Unix(1000, 0)
	target := New(f, "", func() time.Time { return now })
	target.Configure(Config{NoForwarding: true, Endpoints: []Endpoint{{Interface: "cali1", V4: true}}})
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
