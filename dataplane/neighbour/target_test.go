package neighbour

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
	"github.com/manxnet/manx/datastore/model"
)

const (
	mac1, mac2 = "0a:00:00:00:00:01", "0a:00:00:00:00:02"
	pod4, pod6 = "10.244.1.7", "fd00:244::7"
)

var (
	cali1  = kernel.Link{Index: 3, Name: "cali1", Up: true, Running: true, MAC: "ee:ee:ee:ee:ee:ee"}
	uplink = kernel.Link{Index: 2, Name: "eth0", Up: true, Running: true, MAC: "0a:00:00:00:00:99"}
)

type rig struct {
	*testing.T
	kernel *kerneltest.Kernel
	target *Target
	now    time.Time
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func newRig(t *testing.T) *rig {
	r := &rig{T: t, kernel: kerneltest.New(), now: time.Unix(1000, 0)}
	r.kernel.PutLink(uplink)
	r.kernel.PutLink(cali1)
	r.target = New(r.kernel, func() time.Time { return r.now })
	return r
}

// workload makes a state in which cali1 belongs to a workload with these addresses, or to none.
func (r *rig) workload(networks ...string) {
	set := model.NewSet()
	if len(networks) > 0 {
		set = model.NewSet(model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "a"},
			&model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "here", InterfaceName: "cali1",
				IPNetworks: networks}}))
	}
	h := hoststate.New("here", nil)
	h.Take(hoststate.State{Reader: set, DatastoreSynced: true, BGPSynced: true})
	r.target.SetState(h)
}

func (r *rig) flush(want ...string) {
	r.Helper()
	if _, _, err := r.target.Flush(); err != nil {
		r.Fatal(err)
	}
	log := r.kernel.Log()
	slices.Sort(log)
	slices.Sort(want)
	if !slices.Equal(log, want) {
		r.Fatalf("changes are %q, want %q", log, want)
	}
}

func (r *rig) link(l kernel.Link) {
	r.kernel.PutLink(l)
	r.target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
}

func (r *rig) farEnd(mac string, port bool, addresses ...string) {
	e := kernel.FarEnd{MAC: mac, Port: port}
	for _, a := range addresses {
		e.Addresses = append(e.Addresses, addr(a))
	}
	r.kernel.PutFarEnd(cali1.Index, e)
}

const (
	at4, at6    = "neighbour " + pod4 + " dev #3 at ", "neighbour " + pod6 + " dev #3 at "
	group6      = "neighbour ff02::1:ff00:7 dev #3 at 33:33:ff:00:00:07"
	resolved4   = "neighbour " + pod4 + " dev #3 resolved"
	resolved6   = "neighbour " + pod6 + " dev #3 resolved"
	gateway     = "neighbour 10.1.0.1 dev #2 resolved"
	noGateway   = "no neighbour 10.1.0.1 dev #2"
	hop6        = "neighbour fd01::1 dev #2 resolved"
	hopGroup    = "neighbour ff02::1:ff00:1 dev #2 at 33:33:ff:00:00:01"
	routerLocal = "neighbour fe80::9 dev #2 resolved"
	derived     = "neighbour fe80::800:ff:fe00:1 dev #2 resolved" // of mac1
	localGroup  = "neighbour ff02::1:ff00:9 dev #2 at 33:33:ff:00:00:09"
)

// The entries of a workload have the hardware address of its end, follow it, and go with the workload.
func TestEntriesOfAWorkload(t *testing.T) {
	r := newRig(t)
	r.flush()
	r.farEnd(mac1, false, pod4, pod6)
	r.workload(pod4+"/32", pod6+"/128", "10.1.0.0/24")
	r.flush(at4+mac1, at6+mac1)
	r.farEnd(mac2, false, pod4, pod6) // without an event
	r.now = r.now.Add(r.target.Next())
	r.flush(at4+mac2, at6+mac2)
	if r.target.Next() > firstLook {
		t.Errorf("after a change the end is looked at again in %s", r.target.Next())
	}
	for range 10 { // nothing happens
		r.now = r.now.Add(r.target.Next())
		r.flush()
	}
	if next := r.target.Next(); next < time.Second {
		t.Errorf("without changes the end is looked at again in %s", next)
	}
	r.workload()
	r.flush("no neighbour "+pod4+" dev #3", "no neighbour "+pod6+" dev #3")
}

// The kernel resolves an address that the end in the workload's namespace does not have itself.
func TestAddressesBehindTheEndAreResolved(t *testing.T) {
	for name, put := range map[string]func(*rig){
		"the end is a port of a bridge":      func(r *rig) { r.farEnd(mac1, true, pod4, pod6) },
		"the end does not have it":           func(r *rig) { r.farEnd(mac1, false, "10.244.1.8") },
		"the end cannot be read":             func(r *rig) { r.kernel.Fail("FarEnd", 1, errors.New("injected")) },
		"the end has no hardware address":    func(r *rig) { r.farEnd("", false, pod4, pod6) },
		"there is no end, as with a macvtap": func(*rig) {},
	} {
		r := newRig(t)
		put(r)
		r.workload(pod4+"/32", pod6+"/128")
		t.Log(name)
		r.flush(resolved4, resolved6, group6)
		r.kernel.Heal()
		r.farEnd(mac1, false, pod4, pod6) // it is only now complete
		r.now = r.now.Add(firstLook)
		r.flush(at4+mac1, at6+mac1, "no neighbour ff02::1:ff00:7 dev #3")
	}
}

// What the kernel removes with an interface's state comes back with it; what it keeps is not set again.
func TestEntriesComeBackWithTheInterface(t *testing.T) {
	r := newRig(t)
	r.farEnd(mac1, false, pod4)
	r.workload(pod4+"/32", pod6+"/128")
	r.target.SetNextHops([]kernel.NextHop{{Gateway: addr("10.1.0.1"), Link: 2}, {Link: 2}})
	r.flush(at4+mac1, resolved6, group6, gateway)

	without := cali1
	without.Running = false
	r.now = r.now.Add(leastLook)
	r.link(without)
	r.flush("no neighbour ff02::1:ff00:7 dev #3")
	r.now = r.now.Add(leastLook)
	r.link(cali1)
	r.flush(resolved6, group6)

	without.Up = false
	r.now = r.now.Add(leastLook)
	r.link(without)
	r.flush()
	r.now = r.now.Add(leastLook)
	r.link(cali1)
	r.flush(at4+mac1, resolved6, group6)

	other := uplink
	other.MAC = mac2
	r.now = r.now.Add(leastLook)
	r.link(other)
	r.flush(gateway)

	r.kernel.DropLink(2)
	r.target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: other}})
	r.flush()
}

// Events that a workload causes lead to a bounded number of looks, the first at once.
func TestEventsOfAWorkloadAreBounded(t *testing.T) {
	r := newRig(t)
	r.farEnd(mac1, false, pod4)
	r.workload(pod4 + "/32")
	r.flush(at4 + mac1)
	r.now = r.now.Add(time.Second)
	before := r.kernel.Calls("FarEnd")
	r.farEnd(mac2, false, pod4)
	for i := range 8000 { // in one second
		l := cali1
		l.Running = i%2 == 1
		r.link(l)
		if i == 0 {
			r.flush(at4 + mac2)
		}
		r.now = r.now.Add(time.Second / 8000)
		r.flush()
	}
	if looks := r.kernel.Calls("FarEnd") - before; looks > 12 {
		t.Errorf("8,000 events lead to %d looks", looks)
	}
}

// Next hops are resolved, with the link-local address from which a router asks. Others' entries stay.
func TestNextHops(t *testing.T) {
	r := newRig(t)
	r.kernel.PutNeighbour(kernel.Neighbour{Link: 2, Address: addr("10.1.0.9"), MAC: mac1, Kind: kernel.Permanent})
	r.kernel.PutNeighbour(kernel.Neighbour{Link: 2, Address: addr("fd01::1"), MAC: mac1})
	r.kernel.PutNeighbour(kernel.Neighbour{Link: 2, Address: addr("fe80::9"), MAC: mac1})
	r.kernel.PutNeighbour(kernel.Neighbour{Link: 2, Address: addr("fe80::8"), MAC: mac2}) // is no next hop's
	r.workload()
	hops := []kernel.NextHop{{Gateway: addr("10.1.0.1"), Link: 2}, {Gateway: addr("10.1.0.9"), Link: 2},
		{Gateway: addr("fd01::1"), Link: 2}}
	if !r.target.SetNextHops(hops) || r.target.SetNextHops(slices.Clone(hops)) {
		t.Error("a change is not reported, or the same next hops are")
	}
	r.flush(gateway, hop6, hopGroup, routerLocal, localGroup, derived)
	if next := r.target.Next(); next > settled {
		t.Errorf("the hardware addresses of new next hops are read in %s", next)
	}
	r.target.SetNextHops(hops[2:])
	r.flush(noGateway)
	r.target.SetNextHops(nil)
	r.now = r.now.Add(checkEvery)
	r.flush("no neighbour fd01::1 dev #2", "no neighbour fe80::9 dev #2", "no neighbour fe80::800:ff:fe00:1 dev #2",
		"no neighbour ff02::1:ff00:1 dev #2", "no neighbour ff02::1:ff00:9 dev #2")
	all, _ := r.kernel.ListNeighbours()
	if !slices.Contains(all, kernel.Neighbour{Link: 2, Address: addr("10.1.0.9"), MAC: mac1, Kind: kernel.Permanent}) {
		t.Errorf("another program's entry is gone: %+v", all)
	}
}

// A node that is reached through tunl0 has an entry there, without a hardware address, and one on the uplink. The
// entries of a VXLAN device are another target's.
func TestNextHopsThroughATunnel(t *testing.T) {
	r := newRig(t)
	tunnel := kernel.Link{Index: 5, Name: "tunl0", Kind: "ipip", Up: true, Running: true, NoARP: true}
	r.kernel.PutLink(tunnel)
	r.kernel.PutLink(kernel.Link{Index: 6, Name: "wg0", Kind: "wireguard", Up: true, Running: true, NoARP: true})
	r.kernel.PutLink(kernel.Link{Index: 7, Name: "vxlan.calico", Kind: "vxlan", Up: true, Running: true})
	r.kernel.PutNeighbour(kernel.Neighbour{Link: 7, Address: addr("10.244.9.1"), MAC: mac1, Kind: kernel.Permanent,
		Own: true})
	r.workload()
	r.target.SetNextHops([]kernel.NextHop{{Gateway: addr("10.1.0.1"), Link: 5}, {Gateway: addr("10.1.0.1"), Link: 2},
		{Gateway: addr("10.9.0.1"), Link: 6}, {Gateway: addr("10.244.9.1"), Link: 7}})
	r.flush(gateway, "neighbour 10.1.0.1 dev #5 unresolved")
	r.target.Resync()
	r.flush()
}

// Entries of an earlier run are adopted. Leftovers are removed once in sync, but not those that a CNI plugin has made
// for a workload which is still unknown here.
func TestEntriesOfAnEarlierRun(t *testing.T) {
	for _, known := range []bool{true, false} {
		r := newRig(t)
		for _, n := range []kernel.Neighbour{
			{Link: 3, Address: addr(pod4), MAC: mac1, Kind: kernel.Permanent, Own: true},
			{Link: 2, Address: addr("10.1.0.1"), MAC: mac2, Kind: kernel.Resolved, Own: true},
			{Link: 2, Address: addr("10.1.0.2"), MAC: mac2, Kind: kernel.Resolved, Own: true},
		} {
			r.kernel.PutNeighbour(n)
		}
		r.farEnd(mac1, false, pod4)
		if r.workload(); known {
			r.workload(pod4 + "/32")
		}
		r.target.SetNextHops([]kernel.NextHop{{Gateway: addr("10.1.0.1"), Link: 2}})
		r.flush("no neighbour 10.1.0.2 dev #2")
	}
}

// A full table is reported for a while, with the remedy.
func TestOverflowIsReported(t *testing.T) {
	r := newRig(t)
	r.kernel.PutOverflows(kernel.Overflows{7, 7}) // before the start
	r.flush()
	if n := r.target.Notices(); len(n) != 0 {
		t.Errorf("an overflow of long ago is reported: %+v", n)
	}
	r.kernel.PutOverflows(kernel.Overflows{7, 19})
	r.now = r.now.Add(checkEvery)
	r.flush()
	n := r.target.Notices()
	if len(n) != 1 || n[0].Subject != "net/ipv6/neigh/default/gc_thresh3" || !strings.Contains(n[0].Text, "12 new") {
		t.Errorf("%+v", n)
	}
	r.now = r.now.Add(remembered + time.Second)
	if n := r.target.Notices(); len(n) != 0 {
		t.Errorf("the notice stays: %+v", n)
	}
}
