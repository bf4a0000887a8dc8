package vxlan

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/vtep"
	"github.com/manxnet/manx/datastore/model"
)

// rig is a Target of node n1 on a kernel in memory, with the clock and the state of a test.
type rig struct {
	t      testing.TB
	kernel *kerneltest.Kernel
	target *Target
	host   *hoststate.Host
	set    model.Set
	now    time.Time
	synced bool
	woken  int
}

// newRig has the pools of both families, node n1, and both devices: #4 for IPv4, #6 for IPv6.
func newRig(t testing.TB, nodes ...*model.Object) *rig {
	r := &rig{t: t, kernel: kerneltest.New(), host: hoststate.New("n1", nil), now: time.Unix(1e9, 0),
		set: model.NewSet(pool("p4", "10.244.0.0/16"), pool("p6", "fd10::/48"), node(1))}
	for _, n := range nodes {
		r.set[n.Key] = n
	}
	r.device(4)
	r.device(6)
	r.target = New(r.kernel, func() time.Time { return r.now }, func() { r.woken++ })
	r.t.Cleanup(r.target.Close)
	r.take()
	return r
}

// node has addresses of both families that follow from its number.
func node(i int) *model.Object {
	name := fmt.Sprintf("n%d", i)
	return model.NewObject(model.ResourceKey(model.KindNode, name), &model.Node{
		Spec: model.NodeSpec{
			BGP: &model.NodeBGPSpec{IPv4Address: address4(10, i).String() + "/24",
				IPv6Address: fmt.Sprintf("fd01::%x/64", i)},
			IPv4VXLANTunnelAddr: address4(11, i).String(), IPv6VXLANTunnelAddr: fmt.Sprintf("fd10::%x", i),
		}})
}

func address4(first byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, 1, byte(i >> 8), byte(i)})
}

func pool(name, cidr string) *model.Object {
	p := &model.IPPool{}
	p.Spec.CIDR, p.Spec.VXLANMode = cidr, v3.VXLANModeAlways
	return model.NewObject(model.ResourceKey(model.KindIPPool, name), p)
}

func (r *rig) device(index int) {
	l := kernel.Link{Index: index, Name: "vxlan.calico", Kind: "vxlan", MTU: 1450, Up: true, Running: true,
		MAC: vtep.MAC("n1", model.IPv4)}
	l.VXLAN = kernel.VXLAN{VNI: 4096, Port: 4789, Local: netip.MustParseAddr("10.1.0.1"), MAC: l.MAC}
	if index == 6 {
		l.Name, l.VXLAN.Local = "vxlan-v6.calico", netip.MustParseAddr("fd01::1")
	}
	r.kernel.PutLink(l)
	if r.target != nil {
		r.target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	}
}

// take passes the state: all of it, or with these changes.
func (r *rig) take(changed ...model.Key) {
	r.host.Take(hoststate.State{Reader: r.set, Changed: changed, All: len(changed) == 0, DatastoreSynced: r.synced,
		BGPSynced: r.synced})
	r.target.SetState(r.host)
}

func (r *rig) put(o *model.Object) {
	r.set[o.Key] = o
	r.take(o.Key)
}

func (r *rig) drop(kind model.Kind, name string) {
	k := model.ResourceKey(kind, name)
	delete(r.set, k)
	r.take(k)
}

// flush returns the changes of the kernel, in their order.
func (r *rig) flush() []string {
	r.t.Helper()
	r.kernel.Log()
	if _, failures, err := r.target.Flush(); err != nil || failures > 0 {
		r.t.Fatal(failures, err, r.target.Rows())
	}
	return r.kernel.Log()
}

// flushed compares the changes of the kernel with those that are wanted, in any order.
func (r *rig) flushed(what string, want ...string) {
	r.t.Helper()
	got := r.flush()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// entriesOf are the entries of a node, as SetVXLANEntry and RemoveVXLANEntry are logged.
func entriesOf(method string, i int, links ...int) (list []string) {
	for _, link := range links {
		tunnel, remote, family := address4(11, i).String(), address4(10, i).String(), model.IPv4
		if link%2 == 0 && link >= 6 {
			tunnel, remote, family = fmt.Sprintf("fd10::%x", i), fmt.Sprintf("fd01::%x", i), model.IPv6
		}
		mac := vtep.MAC(fmt.Sprintf("n%d", i), family)
		to := mac
		if method == remove {
			remote, to = "elsewhere", ""
		}
		list = append(list, fmt.Sprintf("%s %s to %s dev #%d", method, mac, remote, link),
			fmt.Sprintf("%s %s at %s dev #%d", method, tunnel, to, link))
	}
	return list
}

const set, remove = "SetVXLANEntry", "RemoveVXLANEntry"

// Each other node has an FDB entry and then a neighbour on the device of each family; when it leaves, they go in the
// reverse order.
func TestEntriesFollowTheNodes(t *testing.T) {
	r := newRig(t, node(2), node(3))
	r.synced = true
	r.take()
	r.flushed("start", append(entriesOf(set, 2, 4, 6), entriesOf(set, 3, 4, 6)...)...)
	r.put(node(4))
	steps := r.flush()
	if want := entriesOf(set, 4, 4, 6); len(steps) != 4 || !strings.Contains(steps[0]+steps[1], want[0]) ||
		!strings.Contains(steps[2]+steps[3], want[1]) {
		t.Errorf("a node comes: %q", steps)
	}
	r.drop(model.KindNode, "n3")
	steps = r.flush()
	if want := entriesOf(remove, 3, 4, 6); len(steps) != 4 || !strings.Contains(steps[0]+steps[1], "11.1.0.3 at ") ||
		!strings.Contains(steps[2]+steps[3], want[0]) {
		t.Errorf("a node leaves: %q", steps)
	}
	moved := node(2)
	moved.Value.(*model.Node).Spec.BGP.IPv4Address = "10.9.9.9/24"
	r.put(moved)
	r.flushed("another address", set+" "+vtep.MAC("n2", model.IPv4)+" to 10.9.9.9 dev #4")
	r.put(moved)
	r.flushed("nothing")
	for _, row := range r.target.Rows() {
		if row.Phase != reconcile.Applied || row.Desired != row.Actual {
			t.Errorf("%+v", row)
		}
	}
	rows := r.target.Rows()
	if want := (reconcile.Row{Key: "neighbour 11.1.0.2 dev vxlan.calico", Desired: vtep.MAC("n2", model.IPv4),
		Actual: vtep.MAC("n2", model.IPv4)}); len(rows) != 8 || !slices.ContainsFunc(rows, func(x reconcile.Row) bool {
		x.Status = reconcile.Status{}
		return x == want
	}) {
		t.Errorf("%+v", rows)
	}
	r.drop(model.KindIPPool, "p6")
	r.flushed("no pool of IPv6: others may still send by it")
	alone := node(1)
	alone.Value.(*model.Node).Spec.IPv6VXLANTunnelAddr = ""
	r.put(alone)
	r.flushed("nor a tunnel address of IPv6", append(entriesOf(remove, 2, 6), entriesOf(remove, 4, 6)...)...)
}

// Beside another network, pools with VXLAN give no entries, and those of an earlier run go from a device that is left.
func TestPolicyAloneHasNoEntries(t *testing.T) {
	r := newRig(t, node(2))
	mac := vtep.MAC("n2", model.IPv4)
	r.kernel.PutVXLANEntry(kernel.VXLANEntry{Link: 4, MAC: mac, Remote: address4(10, 2)})
	r.kernel.PutVXLANEntry(kernel.VXLANEntry{Link: 4, Neighbour: address4(11, 2), MAC: mac})
	r.host = hoststate.New("n1", nil)
	r.host.PolicyOnly, r.synced = true, true
	r.target = New(r.kernel, func() time.Time { return r.now }, func() { r.woken++ })
	r.take()
	r.flushed("start", entriesOf(remove, 2, 4)...)
}

// Entries of Felix or of an earlier run are adopted. Others go once the datastore is in sync, whoever made them.
func TestEntriesAreAdopted(t *testing.T) {
	r := newRig(t, node(2))
	mac := vtep.MAC("n2", model.IPv4)
	r.kernel.PutVXLANEntry(kernel.VXLANEntry{Link: 4, MAC: mac, Remote: address4(10, 2)})
	r.kernel.PutVXLANEntry(kernel.VXLANEntry{Link: 4, Neighbour: address4(11, 2), MAC: mac})
	old := kernel.VXLANEntry{Link: 4, MAC: "66:00:00:00:00:09", Remote: address4(10, 9)}
	r.kernel.PutVXLANEntry(old)
	r.kernel.PutVXLANEntry(kernel.VXLANEntry{Link: 4, Neighbour: address4(11, 9), MAC: old.MAC})
	r.kernel.PutNeighbour(kernel.Neighbour{Link: 4, Address: netip.MustParseAddr("ff02::1"), MAC: "33:33:00:00:00:01"})
	r.kernel.PutNeighbour(kernel.Neighbour{Link: 2, Address: address4(11, 9), MAC: old.MAC, Kind: kernel.Permanent})
	r.kernel.PutVXLANEntry(kernel.VXLANEntry{Link: 6, MAC: vtep.MAC("n2", model.IPv6)}) // to another port
	r.flushed("start", entriesOf(set, 2, 6)...)
	r.flushed("before the datastore is in sync")
	r.synced = true
	r.take(model.ResourceKey(model.KindNode, "n1"))
	r.flushed("in sync", remove+" "+old.MAC+" to elsewhere dev #4", remove+" 11.1.0.9 at  dev #4")
	if list, more := r.target.Repairs(); len(list) > 0 || more > 0 {
		t.Errorf("reported as repairs: %+v", list)
	}
}

// A change by another program is undone at its event, and reported. Events of the target's own changes cost nothing.
func TestEntriesAreRepaired(t *testing.T) {
	r := newRig(t, node(2), node(3))
	r.synced = true
	r.take()
	r.flush()
	reads, lists := r.kernel.Calls("VXLANEntry"), r.kernel.Calls("ListVXLANEntries")
	r.flushed("the events of its own changes")
	if r.woken < 8 || r.kernel.Calls("VXLANEntry") != reads || r.kernel.Calls("ListVXLANEntries") != lists {
		t.Errorf("woken %d times, %d reads, %d lists", r.woken, r.kernel.Calls("VXLANEntry")-reads,
			r.kernel.Calls("ListVXLANEntries")-lists)
	}
	mac := vtep.MAC("n2", model.IPv4)
	woken := r.woken
	r.kernel.DropVXLANEntry(kernel.VXLANEntry{Link: 4, MAC: mac})
	r.kernel.PutVXLANEntry(kernel.VXLANEntry{Link: 4, Neighbour: address4(11, 2), MAC: "66:00:00:00:00:09"})
	foreign := kernel.VXLANEntry{Link: 6, MAC: "66:00:00:00:00:09", Remote: netip.MustParseAddr("fd01::77")}
	r.kernel.PutVXLANEntry(foreign)
	r.flushed("three changes", append(entriesOf(set, 2, 4), remove+" "+foreign.MAC+" to elsewhere dev #6")...)
	if r.woken == woken || r.kernel.Calls("ListVXLANEntries") != lists {
		t.Errorf("not woken, or %d lists for three changes", r.kernel.Calls("ListVXLANEntries")-lists)
	}
	list, _ := r.target.Repairs()
	if want := (reconcile.Repair{Key: "neighbour 11.1.0.2 dev vxlan.calico", Found: "66:00:00:00:00:09",
		Wanted: mac}); len(list) != 3 || !slices.Contains(list, want) {
		t.Errorf("repairs are %+v", list)
	}
	r.kernel.DropVXLANEntry(kernel.VXLANEntry{Link: 4, MAC: mac})
	watches := r.kernel.Calls("WatchVXLANEntries")
	r.target.take(nil) // events were lost, or the watch has failed
	r.flushed("lost events", entriesOf(set, 2, 4)[0])
	if n := r.kernel.Calls("WatchVXLANEntries") - watches; n != 2 {
		t.Errorf("%d watches have begun again", n)
	}
	r.kernel.DropVXLANEntry(kernel.VXLANEntry{Link: 4, MAC: mac})
	r.flushed("after that", entriesOf(set, 2, 4)[0])
}

// The neighbours that the kernel removes with the hardware address, or when the device is down, are set again, as are
// all entries of a device that was made again. None of that is a repair.
func TestEntriesFollowTheDevice(t *testing.T) {
	r := newRig(t, node(2))
	r.synced = true
	r.take()
	r.flush()
	d := kernel.Device{Name: "vxlan.calico", Kind: "vxlan", VXLAN: kernel.VXLAN{VNI: 4096, Port: 4789,
		Local: netip.MustParseAddr("10.1.0.1"), MAC: "66:00:00:00:00:01"}}
	ensure := func() kernel.Link {
		l, err := r.kernel.EnsureDevice(d)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := ensure()
	r.target.DeviceChanged(l)
	r.flushed("another hardware address", entriesOf(set, 2, 4)[1])
	r.target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	r.flushed("its event")
	l.Up = false
	r.kernel.PutLink(l)
	for _, up := range []bool{false, true} {
		l.Up = up
		r.target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
	}
	r.kernel.PutLink(l)
	r.flushed("it was down", entriesOf(set, 2, 4)[1])
	d.VXLAN.VNI = 4097
	again := ensure()
	r.target.DeviceChanged(again)
	r.flushed("another VNI", fmt.Sprintf("%s %s to 10.1.0.2 dev #%d", set, vtep.MAC("n2", model.IPv4), again.Index),
		fmt.Sprintf("%s 11.1.0.2 at %s dev #%d", set, vtep.MAC("n2", model.IPv4), again.Index))
	r.target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: l}, {Type: kernel.EventLink, Link: again}})
	r.flushed("its events")
	mac := vtep.MAC("n2", model.IPv4)
	r.kernel.DropVXLANEntry(kernel.VXLANEntry{Link: again.Index, MAC: mac})
	r.flushed("watched again", fmt.Sprintf("%s %s to 10.1.0.2 dev #%d", set, mac, again.Index))
	if list, _ := r.target.Repairs(); len(list) != 1 {
		t.Errorf("reported as repairs: %+v", list)
	}
	r.kernel.DropLink(again.Index)
	r.target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: again}})
	r.flushed("it is gone")
	r.device(4)
	r.flushed("it comes", entriesOf(set, 2, 4)...)
	if list, _ := r.target.Repairs(); len(list) != 0 {
		t.Errorf("reported as repairs: %+v", list)
	}
}

// Of a large cluster, the cost is that of the change.
func TestTheCostIsThatOfTheChange(t *testing.T) {
	r := newRig(t)
	for i := 2; i <= 1000; i++ {
		n := node(i)
		n.Value.(*model.Node).Spec.IPv6VXLANTunnelAddr = ""
		r.set[n.Key] = n
	}
	r.synced = true
	r.take()
	r.flush()
	lists, links := r.kernel.Calls("ListVXLANEntries"), r.kernel.Calls("ListLinks")
	n := node(1001)
	n.Value.(*model.Node).Spec.IPv6VXLANTunnelAddr = ""
	r.put(n)
	r.flushed("one node more", entriesOf(set, 1001, 4)...)
	if n := r.kernel.Calls("ListVXLANEntries") - lists + r.kernel.Calls("ListLinks") - links; n > 0 {
		t.Errorf("%d lists", n)
	}
	r.put(r.set[model.ResourceKey(model.KindNode, "n7")]) // with a new status, for instance
	r.put(pool("p4", "10.244.0.0/16"))
	if r.target.Next() < time.Second {
		t.Error("a change of something else makes it decide again")
	}
}

// A node without a VTEP is a notice with its reason, up to ten of them.
func TestNodesWithoutAVTEP(t *testing.T) {
	r := newRig(t, node(2))
	for i := 10; i < 23; i++ {
		n := node(i)
		n.Value.(*model.Node).Spec.IPv4VXLANTunnelAddr = ""
		r.set[n.Key] = n
	}
	r.take()
	r.flush()
	list := r.target.Notices()
	if len(list) != 11 || list[0].Subject != "VXLAN to node n10" ||
		list[0].Text != "node n10 has published no address of vxlan.calico" ||
		list[10].Text != "3 further nodes cannot be reached" || !list[10].Since.Equal(r.now) {
		t.Errorf("%+v", list)
	}
	before := r.now
	r.now = r.now.Add(time.Second)
	for i := 11; i < 23; i++ {
		r.put(node(i))
	}
	r.flush()
	if list := r.target.Notices(); len(list) != 1 || !list[0].Since.Equal(before) {
		t.Errorf("%+v", list)
	}
	r.drop(model.KindIPPool, "p4")
	r.flush()
	if list := r.target.Notices(); len(list) != 0 {
		t.Errorf("nobody needs them any more: %+v", list)
	}
}

// While an entry or the list fails, its reason is known, and the others are set; it ends as without a failure.
func TestFailuresAreRepeated(t *testing.T) {
	for _, method := range []string{"ListVXLANEntries", "ListLinks", "WatchVXLANEntries", set, remove, "VXLANEntry"} {
		for nth := 1; nth <= 8; nth++ {
			r := newRig(t, node(2), node(3))
			r.kernel.PutVXLANEntry(kernel.VXLANEntry{Link: 4, MAC: "66:00:00:00:00:09", Remote: address4(10, 9)})
			r.kernel.Fail(method, nth, errors.New("no room"))
			r.synced = true
			step := func() {
				_, failures, err := r.target.Flush()
				if failures > 0 && !strings.Contains(fmt.Sprint(r.target.Notices()), "no room") {
					t.Errorf("%s %d: %d failures without a reason, %v", method, nth, failures, err)
				}
				r.now = r.now.Add(r.target.Next())
			}
			r.take()
			step()
			r.put(node(4))
			step()
			r.drop(model.KindNode, "n3")
			for range 5 {
				step()
			}
			four, _ := r.kernel.ListVXLANEntries(4)
			six, _ := r.kernel.ListVXLANEntries(6)
			if len(four) != 4 || len(six) != 4 {
				t.Errorf("%s %d: the entries are %v and %v", method, nth, four, six)
			}
		}
	}
}

// BenchmarkFlush measures a change of one of 5,000 nodes.
func BenchmarkFlush(b *testing.B) {
	r := newRig(b)
	for i := 2; i <= 5000; i++ {
		n := node(i)
		r.set[n.Key] = n
	}
	r.synced = true
	r.take()
	r.flush()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		n := node(2 + i%4000)
		n.Value.(*model.Node).Spec.BGP.IPv4Address = address4(byte(20+i/4000%2), 2+i%4000).String()
		r.put(n)
		if _, failures, err := r.target.Flush(); failures > 0 || err != nil {
			b.Fatal(failures, err)
		}
	}
}

// Whatever nodes come, change and go one by one, the desired entries are those that a new Target would have, also while
// nodes claim each other's addresses.
func TestFewChangesEndAsReadingEverything(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 5))
		r := newRig(t)
		r.take()
		for step := range 60 {
			n := node(2 + random.IntN(6))
			spec := &n.Value.(*model.Node).Spec
			switch random.IntN(6) {
			case 0:
				spec.IPv4VXLANTunnelAddr, spec.IPv6VXLANTunnelAddr = address4(11, 2+random.IntN(6)).String(), ""
			case 1:
				spec.BGP.IPv4Address = address4(10, 2+random.IntN(6)).String()
			case 2:
				spec.VXLANTunnelMACAddr = vtep.MAC("n3", model.IPv4)
			}
			if random.IntN(4) == 0 {
				r.drop(n.Key.Kind, n.Key.Name)
			} else {
				r.put(n)
			}
			if random.IntN(3) == 0 {
				r.flush()
			}
			want := map[key]value{}
			for _, o := range overlays() {
				for v := range r.host.VTEPs(o.Family).All() {
					if v.Node != "n1" {
						want[key{Device: o.Device, Neighbour: v.Tunnel}] = value{MAC: v.MAC}
						want[key{Device: o.Device, MAC: v.MAC}] = value{Remote: v.Address}
					}
				}
			}
			if r.flush(); !maps.Equal(r.target.Wanted(), want) {
				t.Fatalf("seed %d, step %d:\n%v\nwant\n%v", seed, step, r.target.Wanted(), want)
			}
		}
	}
}
