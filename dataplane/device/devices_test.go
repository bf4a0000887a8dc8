package device

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

func prefixes(list ...string) (ps []netip.Prefix) {
	for _, text := range list {
		ps = append(ps, netip.MustParsePrefix(text))
	}
	return ps
}

// second is a second device beside tunl0, of another kind and with addresses of both families.
func second(addresses ...string) overlay.Device {
	return overlay.Device{Name: "overlay.test", Kind: "bridge", MTU: 1400, Addresses: prefixes(addresses...)}
}

// newTwoDevices returns a Target on a fake kernel in which two devices are possible. flush returns its steps in order
// of text. addAddress adds an address as another program does.
func newTwoDevices(t *testing.T) (
	f *kerneltest.Kernel, target *testTarget, flush func() []string, addAddress func(device, address string),
) {
	f = testKernel()
	target = newTestTarget(f)
	flush = func() []string {
		t.Helper()
		f.Log()
		links, _ := f.ListLinks()
		for _, l := range links { // the kernel reports the changes of the earlier flush
			target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
		}
		if _, failures, err := target.Flush(); err != nil || failures > 0 {
			t.Fatal(failures, err, target.Rows())
		}
		log := f.Log()
		slices.Sort(log)
		return log
	}
	addAddress = func(device, address string) {
		links, _ := f.ListLinks()
		for _, l := range links {
			if l.Name == device {
				a := kernel.Address{Link: l.Index, Prefix: netip.MustParsePrefix(address)}
				f.PutAddress(a)
				target.Handle([]kernel.Event{{Type: kernel.EventAddress, Address: a}})
			}
		}
	}
	return f, target, flush, addAddress
}

func TestTwoDevicesBesideEachOther(t *testing.T) {
	f, target, flush, addAddress := newTwoDevices(t)
	target.configure(ipip("10.244.1.1"), second("10.245.1.1/32", "fd10::1/128"))
	want := []string{"SetMTU overlay.test", "SetUp overlay.test", "SetUp tunl0",
		"add address 10.244.1.1/32", "add address 10.245.1.1/32",
		"add address fd10::1/128", "create overlay.test", "create tunl0"}
	if log := flush(); !slices.Equal(log, want) {
		t.Fatalf("%q, want\n%q", log, want)
	}
	for _, s := range target.Rows() {
		if s.Phase != reconcile.Applied {
			t.Errorf("%+v", s)
		}
	}
	if log := flush(); len(log) != 0 {
		t.Errorf("the second flush does %q", log)
	}
	addAddress("overlay.test", "192.0.2.1/24")
	addAddress("overlay.test", "fd99::1/64")
	addAddress("overlay.test", "fe80::1/64")
	addAddress("tunl0", "10.245.1.1/32") // wanted, but on the other device
	addAddress("eth0", "192.0.2.7/24")
	want = []string{"remove address 10.245.1.1/32", "remove address 192.0.2.1/24", "remove address fd99::1/64"}
	if log := flush(); !slices.Equal(log, want) {
		t.Errorf("undesired addresses: %q, want %q", log, want)
	}
	addresses, _ := f.ListAddresses()
	if n := len(addresses); n != 5 {
		t.Errorf("%d addresses remain: %v", n, addresses)
	}
	target.configure(ipip("10.244.1.1"))
	if log := flush(); !slices.Equal(log, []string{"remove address 10.245.1.1/32", "remove address fd10::1/128"}) {
		t.Errorf("the second device is not wanted any more: %q", log)
	}
	addAddress("overlay.test", "192.0.2.1/24")
	if log := flush(); !slices.Equal(log, []string{"remove address 192.0.2.1/24"}) {
		t.Errorf("a device that was ours stays so: %q", log)
	}
}

// A full read finds changes without an event, on each own device, also those of an earlier run.
func TestLeftoversOnBothDevices(t *testing.T) {
	f, target, flush, _ := newTwoDevices(t)
	f.PutLink(kernel.Link{Index: 8, Name: "tunl0", Kind: "ipip", MTU: 1480, Up: true})
	f.PutLink(kernel.Link{Index: 9, Name: "overlay.test", Kind: "bridge", MTU: 1400, Up: true})
	for link, a := range map[int]string{8: "192.0.2.8/32", 9: "192.0.2.9/32", 2: "192.0.2.2/24"} {
		f.PutAddress(kernel.Address{Link: link, Prefix: netip.MustParsePrefix(a)})
	}
	target.configure(second())
	want := []string{"remove address 192.0.2.8/32", "remove address 192.0.2.9/32"}
	if log := flush(); !slices.Equal(log, want) {
		t.Errorf("%q, want %q", log, want)
	}
}

// A device that the kernel cannot create is reported by name, and the other one is as desired.
func TestOneDeviceIsMissing(t *testing.T) {
	f, target, _, _ := newTwoDevices(t)
	f.WithoutIPIP()
	target.configure(ipip("10.244.1.1"), second("10.245.1.1/32"))
	_, _, _ = target.Flush()
	if missing := target.Missing(); len(missing) != 1 || !errors.Is(missing[model.DeviceIPIP], kernel.ErrNoIPIP) {
		t.Errorf("%v", missing)
	}
	for _, s := range target.Rows() {
		if (s.Phase == reconcile.Applied) == (s.Key == "device tunl0") {
			t.Errorf("%s is %s: %s", s.Key, s.Phase, s.Reason)
		}
	}
	l := kernel.Link{Index: 77, Name: model.DeviceIPIP, Kind: "ipip", MTU: 1480}
	f.PutLink(l) // another program loaded the module
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	target.Retry()
	if _, failures, err := target.Flush(); failures > 0 || err != nil {
		t.Error(failures, err)
	}
}

func TestKeyNames(t *testing.T) {
	p := netip.MustParsePrefix("10.244.1.1/32")
	for _, c := range []struct {
		key  key
		want string
	}{
		{key{Kind: exists, Device: "tunl0"}, "device tunl0"}, {key{Kind: mtu, Device: "tunl0"}, "mtu tunl0"},
		{key{Kind: up, Device: "tunl0"}, "up tunl0"},
		{key{Kind: address, Device: "tunl0", Address: p}, "address 10.244.1.1/32"},
	} {
		if got := c.key.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
