package kernel

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

func vxlanDevice(name string, vni uint32, local, mac string) Device {
	return Device{Name: name, Kind: KindVXLAN, VXLAN: VXLAN{VNI: vni, Port: 4789, Local: addr(local), MAC: mac}}
}

const mac1, mac2 = "66:f9:37:c3:7e:94", "66:f9:37:c3:7e:95"

// ensure makes a VXLAN device; the test is skipped on a kernel without such devices.
func ensure(t *testing.T, c *Conn, d Device) Link {
	t.Helper()
	l, err := c.EnsureDevice(d)
	if errors.As(err, new(NoKindError)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if l.VXLAN != d.VXLAN || l.MAC != d.VXLAN.MAC || l.Kind != KindVXLAN {
		t.Fatalf("the device is %+v", l)
	}
	if links, err := c.ListLinks(); err != nil || !slices.Contains(links, l) {
		t.Fatalf("%+v is not one of %+v, %v", l, links, err)
	}
	return l
}

// Devices of both families exist beside each other with one VNI, as ip-link(8) shows them.
func TestVXLANDevicesAreMade(t *testing.T) {
	ns, c := testNS(t)
	four := ensure(t, c, vxlanDevice("vxlan.calico", 4096, "10.1.0.5", mac1))
	six := ensure(t, c, vxlanDevice("vxlan-v6.calico", 4096, "fd01::5", mac2))
	for name, want := range map[string][]string{
		"vxlan.calico": {"vxlan id 4096 local 10.1.0.5 ", " dstport 4789 nolearning ttl auto ", " udpcsum ",
			"link/ether " + mac1},
		"vxlan-v6.calico": {"vxlan id 4096 local fd01::5 ", " dstport 4789 nolearning ttl auto ",
			" noudp6zerocsumtx noudp6zerocsumrx ", "link/ether " + mac2},
	} {
		out := nettest.Run(t, "ip", "-n", ns, "-d", "link", "show", name)
		for _, text := range append(want, name+": <BROADCAST,MULTICAST>") {
			if !strings.Contains(out, text) {
				t.Errorf("%s lacks %q:\n%s", name, text, out)
			}
		}
	}
	if again := ensure(t, c, vxlanDevice("vxlan.calico", 4096, "10.1.0.5", mac1)); again != four {
		t.Errorf("%+v is not as before, %+v", again, four)
	}
	if err := errors.Join(c.SetUp(six.Index), c.AddAddress(Address{Link: six.Index,
		Prefix: prefix("fd10::1/128")})); err != nil {
		t.Fatal(err)
	}
	if out := nettest.Run(t, "ip", "-n", ns, "addr", "show", "to", "fd10::1"); strings.Contains(out, "tentative") {
		t.Errorf("the address is not in use at once: %s", out)
	}
	for range 2 {
		if err := c.DeleteLink(six.Index); err != nil {
			t.Error(err)
		}
	}
}

// hold puts an address, a route and both entries on a device, and returns which of them are still there.
func hold(t *testing.T, ns string, c *Conn, l Link, family string) (left func() string) {
	t.Helper()
	own, gateway, block, node := "10.245.0.1/32", "10.245.1.1", "10.245.1.0/26", "10.1.0.9"
	if family == "-6" {
		own, gateway, block, node = "fd45::1/128", "fd45:1::1", "fd45:1::/122", "fd01::9"
	}
	if err := errors.Join(c.SetUp(l.Index), c.AddAddress(Address{Link: l.Index, Prefix: prefix(own)}),
		c.SetVXLANEntry(VXLANEntry{Link: l.Index, MAC: mac2, Remote: addr(node)}),
		c.SetVXLANEntry(VXLANEntry{Link: l.Index, Neighbour: addr(gateway), MAC: mac2})); err != nil {
		t.Fatal(err)
	}
	nettest.Run(t, "ip", "-n", ns, family, "route", "add", block, "via", gateway, "dev", l.Name, "onlink")
	return func() (text string) {
		entries, err := c.ListVXLANEntries(l.Index)
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if e.Neighbour.IsValid() {
				text = "neighbour " + text
			} else if e.Remote == addr(node) {
				text += "fdb "
			}
		}
		if strings.Contains(nettest.Run(t, "ip", "-n", ns, family, "route"), block) {
			text += "route "
		}
		if strings.Contains(nettest.Run(t, "ip", "-n", ns, "addr", "show", "dev", l.Name), " "+own+" ") {
			text += "address"
		}
		return text
	}
}

// A device as Felix makes it is adopted. The local address, learning and the hardware address change in place: nothing
// on the device is lost but the neighbours with the latter. With another VNI, port or mode the device is made again.
func TestVXLANDevicesAreChanged(t *testing.T) {
	const felix = "link add vxlan.calico address " + mac1 + " type vxlan id 4096 dstport 4789 dev e0 local "
	for _, family := range []string{"-4", "-6"} {
		local, other := "10.1.0.5", "10.2.0.5"
		if family == "-6" {
			local, other = "fd01::5", "fd02::5"
		}
		for _, x := range []struct {
			what, made string // by ip(8)
			local, mac string
			again      bool
			left       string
		}{
			{"nothing", felix + local + " nolearning", local, mac1, false, "neighbour fdb route address"},
			{"learning", felix + local, local, mac1, false, "neighbour fdb route address"},
			{"the address", felix + local + " nolearning", other, mac1, false, "neighbour fdb route address"},
			{"both", felix + local, other, mac1, false, "neighbour fdb route address"},
			{"the hardware address", felix + local + " nolearning", local, "66:00:00:00:00:01", false,
				"fdb route address"},
			{"the VNI", strings.Replace(felix, "4096", "4097", 1) + local + " nolearning", local, mac1, true, ""},
			{"the port", strings.Replace(felix, "4789", "8472", 1) + local + " nolearning", local, mac1, true, ""},
			{"the mode", felix + local + " nolearning gbp", local, mac1, true, ""},
		} {
			t.Run(x.what+family, func(t *testing.T) {
				ns, c := testNS(t)
				d := vxlanDevice("vxlan.calico", 4096, x.local, x.mac)
				ensure(t, c, vxlanDevice("probe", 9, "10.1.0.5", mac2)) // or skip the test
				nettest.Run(t, append([]string{"ip", "-n", ns}, strings.Fields(x.made)...)...)
				before := Link{Index: linkIndex(t, c, "vxlan.calico"), Name: "vxlan.calico"}
				left := hold(t, ns, c, before, family)
				after := ensure(t, c, d)
				if (after.Index != before.Index) != x.again {
					t.Errorf("the interface was %d and is %d", before.Index, after.Index)
				}
				if x.again {
					return
				}
				if got := strings.TrimSpace(left()); got != x.left {
					t.Errorf("left are %q, want %q", got, x.left)
				}
				if out := nettest.Run(t, "ip", "-n", ns, "-d", "link", "show", "vxlan.calico"); !strings.Contains(out,
					" nolearning ") || !strings.Contains(out, " local "+x.local+" ") {
					t.Errorf("it is %s", out)
				}
			})
		}
	}
}

// A device of another program with the VNI is named, and the one in use stays.
func TestTheVNIIsTaken(t *testing.T) {
	ns, c := testNS(t)
	ensure(t, c, vxlanDevice("vxlan.calico", 4097, "10.1.0.5", mac1))
	nettest.Run(t, "ip", "-n", ns, "link", "add", "flannel.1", "type", "vxlan", "id", "4096", "dstport", "4789")
	_, err := c.EnsureDevice(vxlanDevice("vxlan.calico", 4096, "10.1.0.5", mac1))
	taken := VNITakenError{VNI: 4096, Port: 4789, By: "flannel.1"}
	if !errors.Is(err, taken) || !strings.Contains(err.Error(), "flannel.1 has VNI 4096 on UDP port 4789") {
		t.Error(err)
	}
	linkIndex(t, c, "vxlan.calico")
	far := nettest.Namespace(t)
	nettest.Run(t, "ip", "-n", ns, "link", "set", "flannel.1", "netns", far) // it keeps its VNI here
	_, err = c.EnsureDevice(vxlanDevice("vxlan2.test", 4096, "10.1.0.5", mac1))
	if taken.By = ""; !errors.Is(err, taken) || !strings.Contains(err.Error(), "another network namespace") {
		t.Error(err)
	}
	ensure(t, c, vxlanDevice("vxlan-v6.calico", 4096, "fd01::5", mac2)) // of the other family
	if _, err := c.EnsureDevice(vxlanDevice("e0", 7, "10.1.0.5", mac1)); err == nil ||
		!strings.Contains(err.Error(), `is of kind "veth"`) {
		t.Error(err)
	}
}

// Entries are set, replaced, read and removed, and others' are listed. Those of other devices and those that are not
// permanent are left out.
func TestVXLANEntries(t *testing.T) {
	ns, c := testNS(t)
	four := ensure(t, c, vxlanDevice("vxlan.calico", 4096, "10.1.0.5", mac1)).Index
	six := ensure(t, c, vxlanDevice("vxlan-v6.calico", 4096, "fd01::5", mac2)).Index
	if err := errors.Join(c.SetUp(four), c.SetUp(six)); err != nil {
		t.Fatal(err)
	}
	ip := func(args string) { nettest.Run(t, append([]string{"ip", "-n", ns}, strings.Fields(args)...)...) }
	bridge := func(args string) { nettest.Run(t, append([]string{"bridge", "-n", ns}, strings.Fields(args)...)...) }
	ip("neigh add 10.245.9.9 lladdr " + mac1 + " dev e0")
	ip("neigh add 10.245.9.9 lladdr " + mac1 + " nud reachable dev vxlan.calico")
	bridge("fdb add 66:00:00:00:00:09 dev vxlan.calico dst 10.1.0.9 dynamic")
	bridge("fdb add 66:00:00:00:00:08 dev vxlan.calico dst 10.1.0.8 port 8472")
	foreign := VXLANEntry{Link: four, MAC: "66:00:00:00:00:08"}
	set := []VXLANEntry{
		{Link: four, MAC: mac2, Remote: addr("10.1.0.9")}, {Link: four, Neighbour: addr("10.245.1.1"), MAC: mac2},
		{Link: six, MAC: mac1, Remote: addr("fd01::9")}, {Link: six, Neighbour: addr("fd45::1"), MAC: mac1},
	}
	same := func(link int, want ...VXLANEntry) {
		t.Helper()
		have, err := c.ListVXLANEntries(link)
		if err != nil || len(have) != len(want) {
			t.Errorf("entries are %+v, %v, want %+v", have, err, want)
		}
		for _, e := range want {
			if got, ok, err := c.VXLANEntry(VXLANEntry{Link: e.Link, Neighbour: e.Neighbour, MAC: e.MAC}); got != e ||
				!ok || err != nil || !slices.Contains(have, e) {
				t.Errorf("%s is %+v %t %v", e, got, ok, err)
			}
		}
	}
	for _, to := range []string{"10.1.0.7", "10.1.0.9"} { // replaced
		set[0].Remote = addr(to)
		for _, e := range set {
			if err := c.SetVXLANEntry(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	same(four, append(slices.Clone(set[:2]), foreign)...)
	same(six, set[2:]...)
	all, err := c.ListNeighbours()
	if n := (Neighbour{Link: four, Address: set[1].Neighbour, MAC: mac2, Kind: Permanent, Own: true}); err != nil ||
		!slices.Contains(all, n) {
		t.Errorf("the neighbours are %+v, %v", all, err)
	}
	transient := []VXLANEntry{{Link: four, MAC: "66:00:00:00:00:09"}, {Link: four, Neighbour: addr("10.245.9.9")}}
	for _, e := range transient {
		if got, ok, err := c.VXLANEntry(e); ok || err != nil {
			t.Errorf("one that is not permanent is read as %+v, %v", got, err)
		}
		if e.Neighbour.IsValid() {
			e.MAC = mac1
		} else {
			e.Remote = addr("10.1.0.9")
		}
		if err := c.SetVXLANEntry(e); err != nil { // in its place
			t.Error(err)
		}
	}
	for _, e := range append(append(slices.Clone(set), foreign), transient...) {
		for range 2 {
			if err := c.RemoveVXLANEntry(e); err != nil {
				t.Error(err)
			}
		}
		if _, ok, err := c.VXLANEntry(e); ok || err != nil {
			t.Errorf("%s is still there: %v", e, err)
		}
	}
	same(four)
	same(six)
	if err := c.SetVXLANEntry(VXLANEntry{Link: 999, MAC: mac1, Remote: addr("10.1.0.9")}); err == nil {
		t.Error("an entry of no interface")
	}
	if err := c.RemoveVXLANEntry(VXLANEntry{Link: 999, MAC: mac1}); err != nil {
		t.Error(err)
	}
	if _, _, err := c.VXLANEntry(VXLANEntry{Link: 999, MAC: mac1}); err == nil {
		t.Error("an interface that does not exist has no error")
	}
}

// A watch reports the entries of its device alone. A flood on another interface does not wake it.
func TestVXLANEntriesAreWatched(t *testing.T) {
	ns, c := testNS(t)
	link := ensure(t, c, vxlanDevice("vxlan.calico", 4096, "10.1.0.5", mac1)).Index
	if err := c.SetUp(link); err != nil {
		t.Fatal(err)
	}
	events, calls := make(chan VXLANEvent, 1000), make(chan int, 1000)
	stop, err := c.WatchVXLANEntries(link, func(list []VXLANEvent) {
		calls <- len(list)
		for _, e := range list {
			events <- e
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	e0 := linkIndex(t, c, "e0")
	for i := range 500 {
		a := netip.AddrFrom4([4]byte{10, 7, byte(i >> 8), byte(i)})
		if err := c.SetNeighbour(Neighbour{Link: e0, Address: a, MAC: mac1, Kind: Permanent}); err != nil {
			t.Fatal(err)
		}
	}
	next := func(want VXLANEvent) {
		t.Helper()
		select {
		case e := <-events:
			if e != want {
				t.Errorf("the event is %+v, want %+v", e, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no event %+v", want)
		}
	}
	fdb, neighbour := VXLANEntry{Link: link, MAC: mac2, Remote: addr("10.1.0.9")},
		VXLANEntry{Link: link, Neighbour: addr("10.245.1.1"), MAC: mac2}
	if err := errors.Join(c.SetVXLANEntry(fdb), c.SetVXLANEntry(neighbour)); err != nil {
		t.Fatal(err)
	}
	next(VXLANEvent{Entry: fdb})
	next(VXLANEvent{Entry: neighbour})
	nettest.Run(t, "bridge", "-n", ns, "fdb", "del", mac2, "dev", "vxlan.calico")
	next(VXLANEvent{Entry: fdb, Gone: true})
	nettest.Run(t, "ip", "-n", ns, "neigh", "del", "10.245.1.1", "dev", "vxlan.calico")
	if e := <-events; !e.Entry.same(neighbour) || !e.Gone {
		t.Errorf("the event is %+v", e)
	}
	stop()
	if n := len(calls); n > 8 {
		t.Errorf("%d calls: those for another interface count", n)
	}
}
