package route

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
)

// vxlanWorld is node n1, 10.1.0.5/24 and fd01::5/64, in a cluster of VXLAN pools, with a kernel that has the devices.
type vxlanWorld struct {
	*Target
	kernel *kerneltest.Kernel
	host   *hoststate.Host
	set    model.Set
	clock  time.Time

	gateway kernel.Route // another route of the host, if any
}

func newVXLANWorld(mode v3.VXLANMode) *vxlanWorld {
	w := &vxlanWorld{kernel: testKernel(), host: hoststate.New("n1", nil), set: model.Set{}, clock: time.Unix(1e9, 0)}
	w.kernel.PutLink(kernel.Link{Index: 9, Name: "vxlan-v6.calico", Up: true})
	w.Target = New(w.kernel, func() time.Time { return w.clock })
	w.pool("vx", "10.247.0.0/16", mode)
	w.pool("vx6", "fd47::/48", mode)
	w.pool("plain", "10.244.0.0/16", v3.VXLANModeNever)
	w.node("n1", "10.1.0.5/24", "fd01::5/64", "10.247.1.0", "fd47::1:0")
	w.node("n2", "10.1.0.6/24", "fd01::6/64", "10.247.2.0", "fd47::2:0")
	w.node("n3", "10.9.0.7/24", "fd09::7/64", "10.247.3.0", "fd47::3:0")
	w.take()
	return w
}

func (w *vxlanWorld) put(o *model.Object) {
	w.set[o.Key] = o
}

func (w *vxlanWorld) pool(name, cidr string, mode v3.VXLANMode) {
	p := &model.IPPool{}
	p.Spec.CIDR, p.Spec.VXLANMode = cidr, mode
	w.put(model.NewObject(model.ResourceKey(model.KindIPPool, name), p))
}

func (w *vxlanWorld) node(name, v4, v6, tunnel4, tunnel6 string) {
	n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: model.NodeSpec{
		BGP:                 &model.NodeBGPSpec{IPv4Address: v4, IPv6Address: v6},
		IPv4VXLANTunnelAddr: tunnel4, IPv6VXLANTunnelAddr: tunnel6}}
	w.put(model.NewObject(model.ResourceKey(model.KindNode, name), n))
}

// affinity is a block of n1.
func (w *vxlanWorld) affinity(cidr string) *model.Object {
	return model.NewObject(model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: "n1", CIDR: prefix(cidr)}),
		&model.BlockAffinity{State: model.StateConfirmed})
}

func (w *vxlanWorld) take(changed ...model.Key) {
	w.host.Take(hoststate.State{Reader: w.set, All: len(changed) == 0, Changed: changed, DatastoreSynced: true,
		BGPSynced: true})
	w.SetState(w.host)
}

func (w *vxlanWorld) place(list ...string) {
	var changes []Place
	for _, text := range list {
		p, node, _ := strings.Cut(text, " ")
		changes = append(changes, Place{Prefix: prefix(p), Node: node})
	}
	w.Place(changes)
	w.SetPlacesSynced(true)
}

// text is the desired route to a prefix, or the reason why there is none, with the phase of the kernel's.
func (w *vxlanWorld) text(p string) string {
	s := rowOf(w.Target, p)
	if s.Desired == "" {
		return s.Reason
	}
	if s.Phase != reconcile.Applied {
		return fmt.Sprintf("%s is %s (%s)", s.Desired, s.Phase, s.Reason)
	}
	return s.Desired
}

func (w *vxlanWorld) want(t *testing.T, rule, p, want string) {
	t.Helper()
	_, _, _ = w.Flush()
	if got := w.text(p); got != want {
		t.Errorf("%s: %s: %q\nwant %q", rule, p, got, want)
	}
}

// Routes to the blocks and the borrowed addresses of other nodes, by IPAM.
func TestPlaced(t *testing.T) {
	const always, cross = v3.VXLANModeAlways, v3.VXLANModeCrossSubnet
	for _, c := range []struct {
		rule   string
		mode   v3.VXLANMode
		placed string // "prefix node"
		row    string // empty: the placed prefix
		want   string // the route, or the reason; empty: no row
	}{
		{"a block", always, "10.247.2.0/26 n2", "", "10.247.2.0/26 via 10.247.2.0 dev vxlan.calico onlink proto 80"},
		{"IPv6", always, "fd47::2:0/122 n2", "",
			"fd47::2:0/122 via fd47::2:0 dev vxlan-v6.calico onlink proto 80 metric 1024"},
		{"a borrowed address", always, "10.247.1.9/32 n3", "",
			"10.247.1.9/32 via 10.247.3.0 dev vxlan.calico onlink proto 80"},
		{"a borrowed tunnel address", always, "10.247.3.0/32 n3", "",
			"10.247.3.0/32 dev vxlan.calico proto 80 scope link"},
		{"IPv6 tunnel addresses have a route always", always, "10.247.2.0/26 n2", "fd47::2:0/128",
			"fd47::2:0/128 dev vxlan-v6.calico proto 80 metric 1024"},
		{"in one subnet", cross, "10.247.2.0/26 n2", "", "10.247.2.0/26 via 10.1.0.6 dev eth0 proto 80"},
		{"IPv6 in one subnet", cross, "fd47::2:0/122 n2", "",
			"fd47::2:0/122 via fd01::6 dev eth0 proto 80 metric 1024"},
		{"in another subnet", cross, "10.247.3.0/26 n3", "",
			"10.247.3.0/26 via 10.247.3.0 dev vxlan.calico onlink proto 80"},
		{"the own node's", always, "10.247.1.0/26 n1", "", ""},
		{"in a pool without VXLAN", always, "10.244.2.0/26 n2", "", ""},
		{"of an unknown node", always, "10.247.4.0/26 n4", "", "there is no node n4"},
	} {
		w := newVXLANWorld(c.mode)
		w.place(c.placed)
		w.want(t, c.rule, cmp.Or(c.row, strings.Fields(c.placed)[0]), c.want)
	}
}

// A node without a tunnel address is a reason, and so is one whose claim is an older node's.
func TestPlacedWithoutVTEP(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	w.place("10.247.2.0/26 n2", "10.247.3.0/26 n3", "10.247.5.0/26 n5")
	w.node("n2", "10.1.0.6/24", "", "", "")
	w.node("n5", "10.1.0.7/24", "", "10.247.3.0", "")
	w.take(model.ResourceKey(model.KindNode, "n2"), model.ResourceKey(model.KindNode, "n5"))
	w.want(t, "no tunnel address", "10.247.2.0/26", "node n2 has published no address of vxlan.calico")
	w.want(t, "the tunnel address of another", "10.247.5.0/26",
		"nodes n3 and n5 both claim 10.247.3.0 for VXLAN: the older one, n3, has it")
	w.want(t, "that other", "10.247.3.0/26", "10.247.3.0/26 via 10.247.3.0 dev vxlan.calico onlink proto 80")
	w.node("n2", "10.1.0.6/24", "", "10.247.2.7", "")
	w.take(model.ResourceKey(model.KindNode, "n2"))
	w.want(t, "published", "10.247.2.0/26", "10.247.2.0/26 via 10.247.2.7 dev vxlan.calico onlink proto 80")
	delete(w.set, model.ResourceKey(model.KindNode, "n3"))
	w.take(model.ResourceKey(model.KindNode, "n3"))
	w.want(t, "the older node is gone", "10.247.5.0/26",
		"10.247.5.0/26 via 10.247.3.0 dev vxlan.calico onlink proto 80")
	w.want(t, "its own block", "10.247.3.0/26", "there is no node n3")
}

// A change of the pool's mode replaces routes, and a route of BGP has its place where the pool has no VXLAN.
func TestPlacedFollowsThePool(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	w.place("10.247.2.0/26 n2")
	w.Learn([]locrib.Route{learned("10.247.2.0/26", 0, "10.1.0.6"), learned("10.247.9.0/26", 0, "10.1.0.6")})
	w.want(t, "VXLAN", "10.247.2.0/26", "10.247.2.0/26 via 10.247.2.0 dev vxlan.calico onlink proto 80")
	w.want(t, "BGP alone", "10.247.9.0/26",
		"routes to pool vx (vxlanMode) follow from IPAM's blocks, not from BGP")
	key := model.ResourceKey(model.KindIPPool, "vx")
	w.pool("vx", "10.247.0.0/16", v3.VXLANModeCrossSubnet)
	w.take(key)
	w.want(t, "CrossSubnet", "10.247.2.0/26", "10.247.2.0/26 via 10.1.0.6 dev eth0 proto 80")
	w.pool("vx", "10.247.0.0/16", v3.VXLANModeNever)
	w.take(key)
	w.want(t, "no VXLAN", "10.247.2.0/26", "10.247.2.0/26 via 10.1.0.6 dev eth0 proto bird")
	w.Learn([]locrib.Route{learned("10.247.2.0/26", 0)})
	w.want(t, "no VXLAN, no BGP", "10.247.2.0/26", "")
	w.pool("vx", "10.247.0.0/16", v3.VXLANModeAlways)
	w.take(key)
	w.want(t, "VXLAN again", "10.247.2.0/26", "10.247.2.0/26 via 10.247.2.0 dev vxlan.calico onlink proto 80")
	w.place("10.247.2.0/26 ")
	w.want(t, "released", "10.247.2.0/26", "")
}

// Routes on the device are adopted, whichever protocol they have, and those that no node has any more are removed once
// all blocks have been read.
func TestPlacedAdopts(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	felix := func(p, gateway string) kernel.Route {
		r := via(p, gateway, 8, kernel.ProtocolBoot)
		r.NextHops[0].OnLink = true
		return r
	}
	w.kernel.PutRoute(felix("10.247.2.0/26", "10.247.2.0"))
	w.kernel.PutRoute(felix("10.247.8.0/26", "10.247.8.0"))
	w.kernel.PutRoute(via("169.254.0.0/16", "", 8, kernel.ProtocolKernel))
	_, _, _ = w.Flush()
	if left := w.on(8); len(left) != 3 {
		t.Errorf("before the blocks are known, there are %q", left)
	}
	w.place("10.247.2.0/26 n2")
	w.want(t, "adopted", "10.247.2.0/26", "10.247.2.0/26 via 10.247.2.0 dev vxlan.calico onlink proto 80")
	if left, want := w.on(8), []string{"10.247.2.0/26", "169.254.0.0/16"}; !slices.Equal(left, want) {
		t.Errorf("there are %q, want %q", left, want)
	}
}

// on returns the prefixes of the kernel's routes through a link.
func (w *vxlanWorld) on(link int) (list []string) {
	routes, _ := w.kernel.ListRoutes(kernel.MainTable)
	for _, r := range routes {
		if len(r.NextHops) == 1 && r.NextHops[0].Link == link {
			list = append(list, r.Dst.String())
		}
	}
	slices.Sort(list)
	return list
}

// The device and its state, and a foreign route over it.
func TestPlacedWithoutDevice(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	w.place("10.247.2.0/26 n2")
	w.want(t, "up", "10.247.2.0/26", "10.247.2.0/26 via 10.247.2.0 dev vxlan.calico onlink proto 80")
	w.kernel.PutLink(kernel.Link{Index: 8, Name: "vxlan.calico"})
	w.Handle([]kernel.Event{{Type: kernel.EventLink, Link: kernel.Link{Index: 8, Name: "vxlan.calico"}}})
	w.want(t, "down", "10.247.2.0/26", "pool vx uses VXLAN, and interface vxlan.calico is not up (yet)")
	f := &model.FelixConfiguration{}
	off := false
	f.Spec.VXLANEnabled = &off
	key := model.ResourceKey(model.KindFelixConfiguration, "default")
	w.put(model.NewObject(key, f))
	w.take(key)
	w.want(t, "switched off", "10.247.2.0/26",
		"VXLAN is switched off (FelixConfiguration, vxlanEnabled: false); pool vx cannot be used on this node")
}

// The gateway of a block's route has a route of its own first: the kernel refuses a gateway that another device's route
// covers.
func TestTunnelAddressesComeFirst(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeCrossSubnet)
	w.place("fd47::2:0/122 n2")
	_, _, _ = w.Flush()
	w.kernel.Log() // up to here
	w.pool("vx6", "fd47::/48", v3.VXLANModeAlways)
	w.take(model.ResourceKey(model.KindIPPool, "vx6"))
	_, _, _ = w.Flush()
	w.want(t, "Always", "fd47::2:0/122",
		"fd47::2:0/122 via fd47::2:0 dev vxlan-v6.calico onlink proto 80 metric 1024")
	var order []netip.Prefix
	for _, line := range w.kernel.Log() {
		for _, p := range []string{"fd47::2:0/128", "fd47::2:0/122"} {
			if strings.Contains(line, p) {
				order = append(order, prefix(p))
			}
		}
	}
	if len(order) < 2 || order[0].Bits() != 128 {
		t.Errorf("the order is %v", order)
	}
}

// A new node costs the routes to its addresses, and a change of one the routes to it.
func TestPlacedCostsFollowTheChange(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	var list []string
	for i := range 1000 {
		name := fmt.Sprint("m", i)
		tunnel := fmt.Sprintf("10.247.%d.%d", 128+i/64, i%64*4)
		w.node(name, fmt.Sprintf("10.8.%d.%d/16", i/250, i%250+1), "", tunnel, "")
		list = append(list, tunnel+"/30 "+name)
	}
	w.take()
	w.place(list...)
	if steps, failures, err := w.Flush(); steps < 1000 || failures > 0 || err != nil {
		t.Fatal(steps, failures, err)
	}
	w.node("new", "10.8.9.1/16", "", "10.247.200.0", "")
	w.take(model.ResourceKey(model.KindNode, "new"))
	w.place("10.247.200.0/26 new")
	if steps, failures, err := w.Flush(); steps != 1 || failures > 0 || err != nil {
		t.Errorf("a new node: %d steps, %d failures, %v; want one step", steps, failures, err)
	}
	w.node("new", "10.8.9.1/16", "", "10.247.200.1", "")
	w.take(model.ResourceKey(model.KindNode, "new"))
	if steps, failures, err := w.Flush(); steps != 1 || failures > 0 || err != nil {
		t.Errorf("another tunnel address: %d steps, %d failures, %v; want one step", steps, failures, err)
	}
}

// Whoever writes Nodes or blocks takes over no route that this host needs.
func TestPlacedTakesNothingOver(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	_, _, _ = w.Flush()
	w.pool("vx", "10.0.0.0/8", v3.VXLANModeAlways) // also around the host's network
	w.put(w.affinity("10.247.1.0/26"))
	w.node("bad4", "127.0.0.1/8", "", "10.247.4.0", "")
	w.node("bad5", "10.9.0.8/24", "", "224.0.0.5", "")
	w.node("bad6", "10.9.0.9/24", "", "10.1.0.5", "")
	w.node("bad7", "10.9.0.10/24", "", "10.1.0.1", "")
	w.node("bad8", "10.3.0.5/24", "", "10.247.8.0", "")
	w.node("bad9", "10.9.0.11/24", "", "10.246.1.1", "")
	w.take()
	w.SetServers(map[netip.Addr]string{addr("10.77.0.1"): "a name server"})
	for _, c := range []struct{ rule, placed, want string }{
		{"everything", "0.0.0.0/0 n2", ""},
		{"in no pool", "192.0.2.0/26 n2", ""},
		{"around the pool", "10.0.0.0/7 n2", ""},
		{"around the gateway", "10.1.0.0/26 n2", "10.1.0.1 is a gateway of this host"},
		{"the gateway", "10.1.0.1/32 n2", "10.1.0.1 is a gateway of this host"},
		{"a server", "10.77.0.1/32 n2", "10.77.0.1 is the address of a name server"},
		{"an own address", "10.3.0.5/32 n2", "10.3.0.5 is an address of this node"},
		{"in an own block", "10.247.1.16/28 n2",
			"10.247.1.16/28 is in block 10.247.1.0/26, which belongs to this node"},
		{"an own block", "10.247.1.0/26 n2", "blackhole 10.247.1.0/26 proto bird"},
		{"a node", "10.9.0.7/32 n2", "10.9.0.7 is the address of node n3"},
		{"around another node", "10.9.0.0/29 n2",
			"10.9.0.7 is the address of node n3, and packets to it do not go to node n2"},
		{"around its own node", "10.9.0.0/29 n3",
			"node n3 has the address 10.9.0.7, which is in 10.9.0.0/29 itself: the tunnel would lead through itself"},
		{"a node at a loopback address", "10.247.4.0/26 bad4",
			"node bad4 has the address 127.0.0.1 in its Node (spec.bgp), which is no host's"},
		{"a tunnel at a group's address", "10.247.5.0/26 bad5",
			"node bad5 has published 224.0.0.5 as that of vxlan.calico, which is no host's. Its manxd or calico-node " +
				"publishes another one while it runs"},
		{"the tunnel at this node's address", "10.247.6.0/26 bad6",
			"node bad6 has published 10.1.0.5, which is the address of node n1, as its tunnel address"},
		{"the tunnel at the gateway's address: a name on the device alone", "10.247.7.0/26 bad7",
			"10.247.7.0/26 via 10.1.0.1 dev vxlan.calico onlink proto 80"},
		{"a node at this host's address", "10.247.8.0/26 bad8",
			"node bad8 has the address 10.3.0.5, which is this host's"},
		{"the tunnel at another address of this host", "10.247.9.0/26 bad9",
			"node bad9 has published 10.246.1.1, which is this host's, as its tunnel address; pool vx cannot " +
				"be used on this node"},
	} {
		w.place(c.placed)
		w.want(t, c.rule, strings.Fields(c.placed)[0], c.want)
	}
	w.place("10.9.5.0/26 n2")
	const way = "10.9.5.0/26 via 10.247.2.0 dev vxlan.calico onlink proto 80"
	w.want(t, "around nobody", "10.9.5.0/26", way)
	w.node("late", "10.9.5.9/24", "", "", "")
	w.take(model.ResourceKey(model.KindNode, "late"))
	w.want(t, "a node comes", "10.9.5.0/26",
		"10.9.5.9 is the address of node late, and packets to it do not go to node n2")
	w.node("late", "10.9.6.9/24", "", "", "")
	w.take(model.ResourceKey(model.KindNode, "late"))
	w.want(t, "it goes elsewhere", "10.9.5.0/26", way)
	w.place("10.9.5.0/26 ")
	w.want(t, "released", "10.9.5.0/26", "")
	if links := w.on(2); !slices.Equal(links, []string{"0.0.0.0/0", "10.1.0.0/24", "fd01::/64"}) {
		t.Errorf("routes of the host are %q", links)
	}
	if links := w.on(8); !slices.Equal(links, []string{"10.247.7.0/26"}) {
		t.Errorf("routes through VXLAN are %q", links)
	}
}

// Each input of a decision makes it again.
func TestPlacedFollowsItsInputs(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeCrossSubnet)
	w.place("10.247.3.0/26 n3", "10.247.2.16/28 n2", "10.247.3.7/32 n3", "fd47::3:0/128 n2")
	const far = "10.247.3.0/26 via 10.247.3.0 dev vxlan.calico onlink proto 80"
	w.want(t, "at first", "10.247.3.0/26", far)
	w.want(t, "the tunnel address of one node among the addresses of another", "fd47::3:0/128",
		"fd47::3:0/128 dev vxlan-v6.calico proto 80 metric 1024")
	own := kernel.Address{Link: 2, Prefix: prefix("10.9.0.7/32")}
	w.Handle([]kernel.Event{{Type: kernel.EventAddress, Address: own}})
	w.want(t, "the node's address is the host's", "10.247.3.0/26",
		"node n3 has the address 10.9.0.7, which is this host's")
	w.Handle([]kernel.Event{{Type: kernel.EventAddressGone, Address: own}})
	w.want(t, "the host's no more", "10.247.3.0/26", far)

	w.SetServers(map[netip.Addr]string{addr("10.247.3.7"): "a name server"})
	w.want(t, "a server", "10.247.3.7/32", "10.247.3.7 is the address of a name server")
	w.SetServers(nil)
	w.want(t, "a server no more", "10.247.3.7/32", "10.247.3.7/32 via 10.247.3.0 dev vxlan.calico onlink proto 80")
	w.kernel.PutAddress(kernel.Address{Link: 2, Prefix: prefix("10.247.3.7/32")})
	w.Resync()
	w.clock = w.clock.Add(time.Hour)
	w.want(t, "an address of the host that was read", "10.247.3.7/32", "10.247.3.7 is an address of this node")

	block := w.affinity("10.247.2.0/26")
	w.put(block)
	w.take(block.Key)
	w.want(t, "in an own block", "10.247.2.16/28",
		"10.247.2.16/28 is in block 10.247.2.0/26, which belongs to this node")
	delete(w.set, block.Key)
	w.take(block.Key)
	const near = "10.247.2.16/28 via 10.1.0.6 dev eth0 proto 80"
	w.want(t, "the block is gone", "10.247.2.16/28", near)

	c := w.rules.config
	c.Node4 = prefix("10.1.0.5/32")
	w.Configure(c)
	w.want(t, "another length of the own subnet", "10.247.2.16/28",
		"10.247.2.16/28 via 10.247.2.0 dev vxlan.calico onlink proto 80")
	c.WorkloadProtocol = 99
	w.Configure(c)
	w.want(t, "another protocol", "10.247.2.16/28", "10.247.2.16/28 via 10.247.2.0 dev vxlan.calico onlink proto 99")

	w.node("n3", "", "fd09::7/64", "", "")
	w.take(model.ResourceKey(model.KindNode, "n3"))
	w.Handle([]kernel.Event{{Type: kernel.EventLink, Link: kernel.Link{Index: 8, Name: "vxlan.calico"}}})
	_, _, _ = w.Flush()
	if w.rules.hops[addr("10.9.0.7")] != nil || w.rules.hops[addr("10.1.0.6")] == nil {
		t.Error("the resolution of the address of a node that has none any more is kept, or one in use is not")
	}
	if w.place("10.247.2.16/28 "); len(w.placed) != 3 {
		t.Errorf("there are %v", w.placed)
	}
}

// A block that was placed before its node had a tunnel waits for the route to the tunnel address.
func TestTunnelAddressesComeFirstAlsoLater(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	w.node("n4", "10.1.0.8/24", "fd01::8/64", "", "")
	w.take(model.ResourceKey(model.KindNode, "n4"))
	_, _, _ = w.Flush()
	w.kernel.Log() // up to here
	w.place("fd47::4:0/122 n4")
	w.node("n4", "10.1.0.8/24", "fd01::8/64", "", "fd47::4:0")
	w.take(model.ResourceKey(model.KindNode, "n4"))
	_, _, _ = w.Flush()
	log := strings.Join(w.kernel.Log(), "\n")
	tunnel, block := strings.Index(log, "fd47::4:0/128"), strings.Index(log, "fd47::4:0/122")
	if tunnel < 0 || block < tunnel {
		t.Errorf("the order is %s", log)
	}
}

// A node whose address is this host's gets its routes once it is the host's no more.
func TestPlacedAtAnOwnAddressFirst(t *testing.T) {
	w := newVXLANWorld(v3.VXLANModeAlways)
	own := kernel.Address{Link: 2, Prefix: prefix("10.9.0.7/32")}
	w.kernel.PutAddress(own)
	w.place("10.247.3.0/26 n3")
	w.want(t, "own", "10.247.3.0/26", "node n3 has the address 10.9.0.7, which is this host's")
	_ = w.kernel.DeleteAddress(own)
	w.Handle([]kernel.Event{{Type: kernel.EventAddressGone, Address: own}})
	w.want(t, "own no more", "10.247.3.0/26", "10.247.3.0/26 via 10.247.3.0 dev vxlan.calico onlink proto 80")
}

// An address that another node has by IPAM is the local workload's, unless that one is moving away.
func TestPlacedWhileAWorkloadLeaves(t *testing.T) {
	for phase, want := range map[livemigration.Phase]string{
		livemigration.None:    "10.247.1.9/32 dev cali1 proto 80 scope link metric 1024",
		livemigration.Leaving: "10.247.1.9/32 via 10.247.3.0 dev vxlan.calico onlink proto 80",
	} {
		w := newVXLANWorld(v3.VXLANModeAlways)
		c := w.rules.config
		c.WorkloadPrefixes = []string{"cali"}
		c.Endpoints = []Endpoint{{Name: "default/a", Interface: "cali1", Addresses: prefixes("10.247.1.9/32")}}
		w.Configure(c)
		w.SetMoves(Moves{"default/a": phase})
		w.place("10.247.1.9/32 n3")
		w.want(t, fmt.Sprint("phase ", phase), "10.247.1.9/32", want)
	}
}
