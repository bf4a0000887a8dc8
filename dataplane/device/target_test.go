package device

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
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

func (t *testTarget) configure(list ...overlay.Device) {
	t.list = list
	h := hoststate.New("n1", nil)
	h.Concerned = true
	t.SetState(h)
}

func ipip(address string) overlay.Device {
	on, f := true, model.FelixConfigurationSpec{}
	f.IPIPEnabled = &on
	n := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4IPIPTunnelAddr: address}}}
	return overlay.Devices(&f, nil, n)[0]
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
