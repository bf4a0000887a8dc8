package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/vtep"
	"github.com/manxnet/manx/datastore/model"
)

// vxlanNode is node i of a cluster with VXLAN for IPv4.
func vxlanNode(i int, edit ...func(*model.NodeSpec)) *model.Object {
	o := nodeObject(fmt.Sprintf("node-%d", i), fmt.Sprintf("10.1.0.%d/24", 4+i), "")
	o.Value.(*model.Node).Name = o.Key.Name
	spec := &o.Value.(*model.Node).Spec
	spec.IPv4VXLANTunnelAddr = fmt.Sprintf("10.245.%d.1", i)
	for _, f := range edit {
		f(spec)
	}
	return o
}

// vxlanCluster has nodes 1 to 3, of which node 1 is this host.
func vxlanCluster(vni int, edit ...func(*model.NodeSpec)) model.Set {
	p := &model.IPPool{}
	p.Spec.CIDR, p.Spec.VXLANMode = "10.245.0.0/16", v3.VXLANModeAlways
	f := &model.FelixConfiguration{}
	f.Spec.VXLANVNI = &vni
	return model.NewSet(vxlanNode(1, edit...), vxlanNode(2), vxlanNode(3),
		object(model.ResourceKey(model.KindIPPool, "vx"), p),
		object(model.ResourceKey(model.KindFelixConfiguration, "default"), f))
}

// vxlanHost is node-1 in a network namespace.
type vxlanHost struct {
	*host
	agent *HostAgent
	logs  *observer.ObservedLogs
}

func (h *vxlanHost) bridge(args string) string {
	h.t.Helper()
	return run(h.t, append([]string{"bridge", "-n", h.name}, strings.Fields(args)...)...)
}

// await waits until the device is as ip(8) shows it, with the entries of nodes 2 and 3 alone and its address.
func (h *vxlanHost) await(what string, device ...string) {
	h.t.Helper()
	for i := 2; i <= 3; i++ {
		mac := vtep.MAC(fmt.Sprintf("node-%d", i), model.IPv4)
		device = append(device, fmt.Sprintf("%s dst 10.1.0.%d self permanent", mac, 4+i),
			fmt.Sprintf("10.245.%d.1 lladdr %s PERMANENT", i, mac))
	}
	device = append(device, "inet 10.245.1.1/32 ", ",UP", " mtu 1450 ", " nolearning ")
	var text string
	ok := func() bool {
		text = ""
		for _, command := range []string{"ip -n %s -d addr show dev vxlan.calico",
			"bridge -n %s fdb show dev vxlan.calico", "ip -n %s neigh show nud permanent dev vxlan.calico"} {
			words := strings.Fields(fmt.Sprintf(command, h.name))
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if text += string(out); err != nil { // the device is being made again
				return false
			}
		}
		for _, part := range device {
			if !strings.Contains(text, part) {
				return false
			}
		}
		return strings.Count(text, "permanent") == 2 && strings.Count(text, "PERMANENT") == 2
	}
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: waited in vain for %q:\n%s\n%+v", what, device, text, h.agent.Status())
		}
	}
}

func newVXLANHost(t *testing.T) *vxlanHost {
	core, logs := observer.New(zap.InfoLevel)
	h := &vxlanHost{host: newHost(t), logs: logs}
	c := h.open()
	if _, err := c.EnsureDevice(kernel.Device{Name: "probe", Kind: kernel.KindVXLAN, VXLAN: kernel.VXLAN{VNI: 9,
		Port: 4789, Local: netip.MustParseAddr("10.1.0.5"), MAC: "66:00:00:00:00:01"}}); err != nil {
		t.Skip(err)
	}
	h.ip("link del probe")
	h.agent = New(Config{Kernel: KernelOf(c), NodeName: "node-1", Logger: zap.New(core)})
	return h
}

// made returns why devices were made again.
func (h *vxlanHost) made() (reasons []string) {
	for _, e := range h.logs.FilterMessage("the device was deleted and made again").All() {
		reasons = append(reasons, e.ContextMap()["reason"].(string))
	}
	return reasons
}

// The device of calico/node is adopted with its entries. Parameters change in place, or the device is made again and
// has its entries again, and another program's device with the same VNI is named.
func TestVXLANOfANode(t *testing.T) {
	h := newVXLANHost(t)
	mac1, mac2 := vtep.MAC("node-1", model.IPv4), vtep.MAC("node-2", model.IPv4)
	h.ip("link add vxlan.calico address " + mac1 + " mtu 1450 type vxlan id 4096 dstport 4789 dev eth0 local " +
		"10.1.0.5 nolearning")
	h.ip("addr add 10.245.1.1/32 dev vxlan.calico")
	h.ip("link set vxlan.calico up")
	h.bridge("fdb add " + mac2 + " dev vxlan.calico dst 10.1.0.6")
	h.ip("neigh add 10.245.2.1 lladdr " + mac2 + " dev vxlan.calico")
	h.bridge("fdb add 66:00:00:00:00:09 dev vxlan.calico dst 10.1.0.9")
	h.ip("neigh add 10.245.9.1 lladdr 66:00:00:00:00:09 dev vxlan.calico")
	index := strings.SplitN(h.ip("-o link show vxlan.calico"), ":", 2)[0] + ": "
	start(t, h.agent)
	h.agent.set(vxlanCluster(4096))
	h.agent.synced(true, true)
	h.await("adopted", index, "vxlan id 4096 local 10.1.0.5 dev eth0 ", mac1)
	h.agent.set(vxlanCluster(4096, func(s *model.NodeSpec) { s.VXLANTunnelMACAddr = "66:00:00:00:00:07" }))
	h.await("another hardware address", index, "link/ether 66:00:00:00:00:07")
	h.ip("addr add 10.1.0.4/24 dev eth0")
	h.agent.set(vxlanCluster(4096, func(s *model.NodeSpec) { s.BGP.IPv4Address = "10.1.0.4/24" }))
	h.await("another address", index, "local 10.1.0.4 ", "link/ether "+mac1)
	if list := h.made(); len(list) > 0 {
		t.Errorf("made again: %q", list)
	}
	if n := h.logs.FilterMessageSnippet("repaired").Len(); n > 0 {
		t.Errorf("%d repairs in the log: %+v", n, h.logs.FilterMessageSnippet("repaired").All())
	}
	h.agent.set(vxlanCluster(4097))
	h.await("another VNI", "vxlan id 4097 local 10.1.0.5 srcport", "link/ether "+mac1)
	if list := h.made(); !slices.Equal(list, []string{"its VNI is 4096, not 4097"}) {
		t.Errorf("made again: %q", list)
	}
	h.ip("link set vxlan.calico type vxlan id 4097 local 10.1.0.99")
	h.await("a repair of the address", "local 10.1.0.5 ")
	h.ip("link del vxlan.calico")
	h.await("a repair of the device", "vxlan id 4097 local 10.1.0.5 srcport")

	h.ip("link add flannel.1 type vxlan id 4098 dstport 4789")
	h.agent.set(vxlanCluster(4098))
	waitFor(t, "a notice of the other device", func() bool {
		return slices.ContainsFunc(h.agent.Status().Notices, func(n Notice) bool {
			return n.Subject == "device vxlan.calico" && strings.Contains(n.Text,
				"VXLAN device flannel.1 has VNI 4098 on UDP port 4789 already")
		})
	})
	h.bridge("fdb del " + mac2 + " dev vxlan.calico")
	h.await("a repair beside it", "vxlan id 4097 ")
	h.ip("link del flannel.1")
	if _, err := h.agent.Retry(t.Context()); err != nil {
		t.Error(err)
	}
	h.await("the VNI after the other device is gone", "vxlan id 4098 ")
}

// A kernel that fails once, at any call and in any way, ends as one that does not fail.
func TestVXLANWhateverFails(t *testing.T) {
	play := func(before func(*kerneltest.Kernel)) *world {
		w := newWorld(t)
		w.fake.PutLink(kernel.Link{Index: 9, Name: "vxlan.calico", Kind: kernel.KindVXLAN, MTU: 1450, Up: true,
			Running: true, MAC: "66:00:00:00:00:01", VXLAN: kernel.VXLAN{VNI: 4097, Port: 4789, Learning: true,
				Local: netip.MustParseAddr("10.1.0.5"), MAC: "66:00:00:00:00:01"}})
		w.fake.PutVXLANEntry(kernel.VXLANEntry{Link: 9, MAC: "66:00:00:00:00:09",
			Remote: netip.MustParseAddr("10.1.0.9")})
		before(w.fake)
		for _, event := range []func(){
			func() { w.agent.set(vxlanCluster(4097)) },
			func() { w.watch() },
			func() { w.agent.synced(true, true) },
			func() { w.agent.set(vxlanCluster(4096)) },
			func() {
				w.fake.DropVXLANEntry(kernel.VXLANEntry{Link: 10, MAC: vtep.MAC("node-2", model.IPv4)})
			},
			func() { w.watch() }, // one that could not start is started again
		} {
			event()
			w.agent.step()
			w.clock = w.clock.Add(50 * time.Millisecond)
		}
		w.run()
		return w
	}
	check := func(w *world, what string) {
		t.Helper()
		w.fake.Heal()
		links, _ := w.fake.ListLinks()
		var device kernel.Link
		for _, l := range links {
			if l.Name == "vxlan.calico" {
				device = l
			}
		}
		want := kernel.VXLAN{VNI: 4096, Port: 4789, Local: netip.MustParseAddr("10.1.0.5"),
			MAC: vtep.MAC("node-1", model.IPv4)}
		entries, _ := w.fake.ListVXLANEntries(device.Index)
		if device.VXLAN != want || !device.Up || device.MTU != 1450 || len(entries) != 4 {
			t.Errorf("%s: the device is %+v, with %v", what, device, entries)
		}
		for i := 2; i <= 3; i++ {
			mac := vtep.MAC(fmt.Sprintf("node-%d", i), model.IPv4)
			for _, e := range []kernel.VXLANEntry{
				{Link: device.Index, MAC: mac, Remote: netip.AddrFrom4([4]byte{10, 1, 0, byte(4 + i)})},
				{Link: device.Index, MAC: mac, Neighbour: netip.AddrFrom4([4]byte{10, 245, byte(i), 1})},
			} {
				if !slices.Contains(entries, e) {
					t.Errorf("%s: %+v is none of %+v", what, e, entries)
				}
			}
		}
		for _, o := range w.agent.Objects("") {
			if o.Phase != reconcile.Applied && (o.Target == "device" || o.Target == "vxlan") {
				t.Errorf("%s: %+v", what, o)
			}
		}
	}
	w := play(func(*kerneltest.Kernel) {})
	check(w, "without a failure")
	for _, method := range []string{"ListLinks", "EnsureDevice", "SetMTU", "SetUp", "AddAddress", "ListVXLANEntries",
		"VXLANEntry", "SetVXLANEntry", "RemoveVXLANEntry", "WatchVXLANEntries", "Watch"} {
		calls := min(w.fake.Calls(method), 12)
		if calls == 0 {
			t.Errorf("%s is not called", method)
		}
		for nth := 1; nth <= calls; nth++ {
			for _, failure := range []error{unix.ENOBUFS, unix.EEXIST, unix.ENODEV, errors.New("broken")} {
				check(play(func(f *kerneltest.Kernel) { f.Fail(method, nth, failure) }),
					fmt.Sprintf("%s %d %v", method, nth, failure))
			}
		}
	}
}

// The entries that the kernel removes with a change of the device are back in the same step, without an event.
func TestVXLANEntriesAreBackAtOnce(t *testing.T) {
	w := newWorld(t)
	w.agent.set(vxlanCluster(4096))
	w.agent.step()
	w.agent.step()
	for _, change := range []model.Set{
		vxlanCluster(4096, func(s *model.NodeSpec) { s.VXLANTunnelMACAddr = "66:00:00:00:00:07" }),
		vxlanCluster(4097, func(s *model.NodeSpec) { s.VXLANTunnelMACAddr = "66:00:00:00:00:07" }),
	} {
		w.agent.set(change)
		w.agent.step()
		links, _ := w.fake.ListLinks()
		for _, l := range links {
			if entries, _ := w.fake.ListVXLANEntries(l.Index); l.Name == "vxlan.calico" && len(entries) != 4 {
				t.Errorf("%s has %v", l.VXLAN, entries)
			}
		}
	}
}
