package device

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

func testKernel() *kerneltest.Kernel {
	f := kerneltest.New()
	f.PutLink(kernel.Link{Index: 2, Name: "eth0", MTU: 9000, Up: true})
	f.PutLink(kernel.Link{Index: 3, Name: "enp3s0", MTU: 1500, Up: true})
	f.PutLink(kernel.Link{Index: 4, Name: "eth1", MTU: 1280}) // down: does not count
	return f
}

// testTarget is a Target with a list of devices.
type testTarget struct {
	*Target
	list []overlay.Device
}

func newTestTarget(f kernel.Links) *testTarget {
	t := &testTarget{}
	t.Target = newTarget(f, time.Now, func(*hoststate.Host) []overlay.Device { return t.list },
		map[string]model.Family{"tunl0": model.IPv4, "overlay.test": 0, "first.test": 0, "second.test": 0})
	return t
}

func (t *testTarget) configure(list ...overlay.Device) { t.follow(false, list) }

// follow sets the devices, by the last state of an earlier run or by the datastore.
func (t *testTarget) follow(last bool, list []overlay.Device) {
	t.list = list
	h := hoststate.New("n1", nil)
	h.Concerned, h.Last = true, last
	t.SetState(h)
}

func ipip(address string) overlay.Device {
	on, f := true, model.FelixConfigurationSpec{}
	f.IPIPEnabled = &on
	n := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4IPIPTunnelAddr: address}}}
	return overlay.Devices(&f, ippool.NewTable(ippool.Pool{CIDR: netip.MustParsePrefix("10.0.0.0/8")}), n)[0]
}

func TestTunnelDevice(t *testing.T) {
	f := testKernel()
	target := newTestTarget(f)
	flush := func() []string {
		t.Helper()
		f.Log()
		if _, failures, err := target.Flush(); err != nil || failures > 0 {
			t.Fatal(failures, err, target.Rows())
		}
		return f.Log()
	}
	target.configure(ipip("10.244.1.1"))
	log := flush()
	if len(log) == 0 || log[0] != "create tunl0" {
		t.Fatalf("%q", log)
	}
	if up, address := slices.Index(log, "SetUp tunl0"), slices.Index(log, "add address 10.244.1.1/32"); up < 0 ||
		address < 0 || up < address {
		t.Errorf("the device is up without its address: %q", log)
	}
	if log := flush(); len(log) != 0 {
		t.Errorf("the second flush does %q", log)
	}
	tunnel := kernel.Link{Index: 5, Name: model.DeviceIPIP, Kind: "ipip", MTU: 1300, Up: true}
	f.PutLink(tunnel)
	foreign := kernel.Address{Link: 5, Prefix: netip.MustParsePrefix("192.0.2.1/24")}
	f.PutAddress(foreign)
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: tunnel}, {Type: kernel.EventAddress, Address: foreign}})
	if log := flush(); !slices.Equal(log, []string{"SetMTU tunl0", "remove address 192.0.2.1/24"}) {
		t.Errorf("repair: %q", log)
	}
	target.configure(ipip("10.244.7.1"))
	if log := flush(); !slices.Equal(log, []string{"add address 10.244.7.1/32", "remove address 10.244.1.1/32"}) {
		t.Errorf("another address: %q", log)
	}
	target.configure()
	if log := flush(); !slices.Equal(log, []string{"remove address 10.244.7.1/32"}) {
		t.Errorf("IPIP off: %q", log)
	}
}

func TestNoIPIPIsOneStatus(t *testing.T) {
	f := testKernel()
	f.WithoutIPIP()
	target := newTestTarget(f)
	target.configure(ipip("10.244.1.1"))
	_, _, _ = target.Flush()
	var failed []reconcile.Row
	for _, s := range target.Rows() {
		if s.Phase != reconcile.Applied {
			failed = append(failed, s)
		}
	}
	if len(failed) != 1 || failed[0].Key != "device tunl0" ||
		!strings.Contains(failed[0].Reason, kernel.ErrNoIPIP.Error()) {
		t.Errorf("%+v", failed)
	}
	if err := target.Missing()[model.DeviceIPIP]; !errors.Is(err, kernel.ErrNoIPIP) {
		t.Error(err)
	}
	target.configure()
	_, _, _ = target.Flush()
	if missing := target.Missing(); len(missing) != 0 {
		t.Errorf("nobody needs IPIP any more: %v", missing)
	}
}

// A VXLAN device whose VNI another program's device has is missing, with the reason, unless there is a former one.
// Another hardware address and another address change the device that is there.
func TestVXLANDevice(t *testing.T) {
	f := testKernel()
	other := kernel.Link{Index: 8, Name: "flannel.1", Kind: kernel.KindVXLAN,
		VXLAN: kernel.VXLAN{VNI: 4096, Port: 4789}}
	f.PutLink(other)
	target := newTestTarget(f)
	var seen []kernel.Link
	target.FollowDevices(func(l kernel.Link) { seen = append(seen, l) })
	device := func(vni uint32, local, mac string) overlay.Device {
		return overlay.Device{Name: "overlay.test", Kind: kernel.KindVXLAN, MTU: 1450, VXLAN: &overlay.VXLAN{VNI: vni,
			Port: 4789, Local: netip.MustParseAddr(local), MAC: mac}}
	}
	flush := func(want ...string) {
		t.Helper()
		f.Log()
		_, _, _ = target.Flush()
		if log := f.Log(); !slices.Equal(log, want) {
			t.Errorf("%q, want %q", log, want)
		}
	}
	none := kernel.NoKindError{Kind: kernel.KindVXLAN}
	f.Fail("EnsureDevice", 1, fmt.Errorf("create interface: %w", none))
	target.configure(device(4097, "10.1.0.5", "66:00:00:00:00:01"))
	flush()
	if missing := target.Missing(); missing["overlay.test"] != none {
		t.Errorf("missing: %v", missing)
	}
	taken := kernel.VNITakenError{VNI: 4096, Port: 4789, By: "flannel.1"}
	const mac1, mac2 = "66:00:00:00:00:01", "66:00:00:00:00:02"
	target.configure(device(4096, "10.1.0.5", mac1))
	flush()
	if missing := target.Missing(); missing["overlay.test"] != taken {
		t.Errorf("missing: %v", missing)
	}
	target.configure(device(4097, "10.1.0.5", mac1))
	flush("create overlay.test", "SetMTU overlay.test", "SetUp overlay.test")
	target.configure(device(4097, "10.1.0.6", mac1))
	flush("change overlay.test to id 4097 dstport 4789 local 10.1.0.6 address " + mac1)
	target.configure(device(4097, "10.1.0.6", mac2))
	flush("change overlay.test to id 4097 dstport 4789 local 10.1.0.6 address " + mac2)
	if len(seen) != 3 || seen[2].MAC != mac2 || seen[2].Index != seen[0].Index {
		t.Errorf("the followers have %+v", seen)
	}
	target.configure(device(4096, "10.1.0.6", mac2))
	flush()
	if missing := target.Missing(); len(missing) != 0 {
		t.Errorf("the former device counts as missing: %v", missing)
	}
	if n := target.Notices(); len(n) != 1 || !strings.Contains(n[0].Text, taken.Error()) {
		t.Errorf("notices are %+v", n)
	}
	f.DropLink(8)
	target.Retry()
	flush("create overlay.test", "SetMTU overlay.test", "SetUp overlay.test")
	f.Fail("SetUp", f.Calls("SetUp")+1, unix.EADDRINUSE)
	l := seen[len(seen)-1]
	l.MTU = 1450
	f.PutLink(l)
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	flush()
	if n := target.Notices(); len(n) != 1 || !strings.Contains(n[0].Text, "another program has UDP port 4789") {
		t.Errorf("notices are %+v", n)
	}
}

func vxlanWith(vni uint32) *overlay.VXLAN {
	return &overlay.VXLAN{VNI: vni, Port: 4789, Local: netip.MustParseAddr("10.1.0.5"), MAC: "66:00:00:00:00:01"}
}

// A kept device stays as it is, with its addresses, also in a new run; a missing one is not made.
func TestKeptDevice(t *testing.T) {
	f := testKernel()
	kept := overlay.Device{Name: "overlay.test", Kind: kernel.KindVXLAN, MTU: 1450, Kept: true}
	target := newTestTarget(f)
	flush := func(want ...string) {
		t.Helper()
		f.Log()
		if _, failures, err := target.Flush(); err != nil || failures > 0 {
			t.Error(failures, err, target.Rows())
		}
		if log := f.Log(); !slices.Equal(log, want) {
			t.Errorf("%q, want %q", log, want)
		}
	}
	target.configure(kept)
	flush()
	sound := kept
	sound.Kept, sound.Addresses = false, prefixes("10.245.1.1/32")
	sound.VXLAN = vxlanWith(4096)
	target.configure(sound)
	flush("create overlay.test", "SetMTU overlay.test", "add address 10.245.1.1/32", "SetUp overlay.test")
	target.configure(kept)
	flush()
	target = newTestTarget(f)
	target.configure(kept)
	flush()
	target.Resync()
	flush()
	if list, _ := target.Repairs(); len(list) > 0 {
		t.Errorf("repaired %v", list)
	}
	target.configure()
	target.Resync()
	flush("remove address 10.245.1.1/32")
}

// Until the datastore has been read a device keeps its addresses and its parameters, which may be newer than the last
// state; a missing one is made.
func TestDevicesStayWithoutTheDatastore(t *testing.T) {
	f := testKernel()
	device := func(vni uint32, address string) overlay.Device {
		return overlay.Device{Name: "overlay.test", Kind: kernel.KindVXLAN, MTU: 1450, VXLAN: vxlanWith(vni),
			Addresses: prefixes(address)}
	}
	var target *testTarget
	flush := func(what string, want ...string) {
		t.Helper()
		f.Log()
		if _, failures, err := target.Flush(); err != nil || failures > 0 {
			t.Error(failures, err, target.Rows())
		}
		if log := f.Log(); !slices.Equal(log, want) {
			t.Errorf("%s: %q, want %q", what, log, want)
		}
	}
	now, older := device(4097, "10.245.1.1/32"), device(4096, "10.245.9.9/32")
	target = newTestTarget(f)
	target.follow(true, []overlay.Device{now})
	flush("after a reboot", "create overlay.test", "SetMTU overlay.test", "add address 10.245.1.1/32",
		"SetUp overlay.test")
	target = newTestTarget(f)
	target.follow(true, nil)
	flush("without the device in the last state")
	target.follow(true, []overlay.Device{older})
	flush("with other values", "add address 10.245.9.9/32")
	target.configure(now)
	flush("with the datastore", "remove address 10.245.9.9/32")
}

// A device that is made again has no address of the former; no other program took it away. One that another program
// does take away is named.
func TestRepairsOfAddresses(t *testing.T) {
	f := testKernel()
	target := newTestTarget(f)
	device := func(vni uint32) overlay.Device {
		return overlay.Device{Name: "overlay.test", Kind: kernel.KindVXLAN, Addresses: prefixes("10.245.1.1/32"),
			VXLAN: vxlanWith(vni)}
	}
	flush := func(want string) {
		t.Helper()
		target.Resync()
		if _, failures, err := target.Flush(); err != nil || failures > 0 {
			t.Error(failures, err, target.Rows())
		}
		list, _ := target.Repairs()
		if got := fmt.Sprint(list); got != want {
			t.Errorf("repaired %s, want %s", got, want)
		}
	}
	target.configure(device(4096))
	flush("[]")
	target.configure(device(4097))
	flush("[]")
	a := kernel.Address{Link: target.Link("overlay.test").Index, Prefix: netip.MustParsePrefix("10.245.1.1/32")}
	if err := f.DeleteAddress(a); err != nil { // as another program does
		t.Fatal(err)
	}
	flush("[{address 10.245.1.1/32  10.245.1.1/32}]")
	a.Prefix = netip.MustParsePrefix("192.0.2.1/24")
	f.PutAddress(a)
	flush("[{address 192.0.2.1/24 192.0.2.1/24 }]")
}
