package pathmtu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
)

// network is what is behind a Target.
type network struct {
	*Target
	t       *testing.T
	host    *hoststate.Host
	set     model.Set
	clock   time.Time
	ways    map[netip.Addr]route.Way
	devices []overlay.Device
	changed []map[netip.Addr]int
	looks   int // how many ways were determined

	mu     sync.Mutex
	paths  map[netip.Addr]int
	probed map[netip.Addr]int // packets
	open   error
}

func newNetwork(t *testing.T) *network {
	n := &network{t: t, host: hoststate.New("n1", nil), set: model.Set{}, clock: time.Unix(1e9, 0),
		ways: map[netip.Addr]route.Way{}, paths: map[netip.Addr]int{}, probed: map[netip.Addr]int{}}
	loop := reconcile.NewLoop()
	loop.Background = func(f func()) { f() }
	n.Target = New(Config{
		Open: func(from, to netip.Addr) (Prober, error) {
			if from.Is6() != to.Is6() {
				t.Errorf("from %s to %s", from, to)
			}
			return prober{n, to}, n.open
		},
		Way: func(a netip.Addr) route.Way {
			n.looks++
			return n.ways[a]
		},
		Devices: func() []overlay.Device { return n.devices },
		Changed: func(m map[netip.Addr]int) { n.changed = append(n.changed, m) },
		Loop:    loop, Now: func() time.Time { return n.clock },
	})
	n.limiter.SetLimit(1e9)
	return n
}

type prober struct {
	*network
	to netip.Addr
}

func (p prober) Probe(_ context.Context, size int, _ time.Duration) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probed[p.to]++
	return size <= p.paths[p.to], nil
}

func (prober) Close() error { return nil }

// node adds or replaces a node that is reached by an interface with an MTU of 1500.
func (n *network) node(name, v4, v6 string, path int) {
	k := model.ResourceKey(model.KindNode, name)
	n.set[k] = model.NewObject(k, &model.Node{Spec: model.NodeSpec{
		BGP: &model.NodeBGPSpec{IPv4Address: v4, IPv6Address: v6}}})
	for _, text := range []string{v4, v6} {
		if p, err := netip.ParsePrefix(text); err == nil {
			n.ways[p.Addr()] = route.Way{Hops: []kernel.NextHop{{Link: 2}}, Link: 1500, MTU: 1500}
			n.paths[p.Addr()] = path
		}
	}
	n.take(k)
}

func (n *network) take(changed ...model.Key) {
	n.host.Take(hoststate.State{Reader: n.set, Changed: changed})
	n.SetState(n.host)
}

// remove removes a node.
func (n *network) remove(name string) {
	k := model.ResourceKey(model.KindNode, name)
	delete(n.set, k)
	n.take(k)
}

// last checks the sizes that were passed on last.
func (n *network) last(when string, want map[netip.Addr]int) {
	n.t.Helper()
	if len(n.changed) == 0 || !maps.Equal(n.changed[len(n.changed)-1], want) {
		n.t.Errorf("%s: passed on: %v, want %v", when, n.changed, want)
	}
}

// run lets time pass, and measures whatever is due.
func (n *network) run(d time.Duration) {
	n.t.Helper()
	for n.clock = n.clock.Add(d); ; {
		if _, _, err := n.Flush(); err != nil {
			n.t.Fatal(err)
		}
		if !n.busy {
			return
		}
	}
}

func (n *network) texts() (list []string) {
	for _, x := range n.Notices() {
		list = append(list, x.Subject+": "+x.Text)
	}
	return list
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// Paths are measured at the start, when the way is another one, and every hour. A smaller one is passed on, with a
// notice, until it has grown. A node that does not answer changes nothing.
func TestPaths(t *testing.T) {
	n := newNetwork(t)
	n.devices = []overlay.Device{{Name: "vxlan.calico", Family: model.IPv4, MTU: 1450, Overhead: 50,
		MTUName: "vxlanMTU"}}
	n.node("n1", "10.0.0.1/24", "", 0)
	n.node("n2", "10.0.0.2/24", "", 1500)
	n.node("n3", "10.0.0.3/24", "", 1400)
	three := addr("10.0.0.3")
	n.run(settle)
	n.last("at first", map[netip.Addr]int{three: 1400})
	const small = "path to node n3 (10.0.0.3): packets of up to 1400 bytes get there, and those of vxlan.calico have " +
		"up to 1500, with an MTU of 1450 and headers of 50. Routes to it have a smaller MTU meanwhile. Have the " +
		"network carry 1500 bytes, or set vxlanMTU to 1350"
	if got := n.texts(); !slices.Equal(got, []string{small}) {
		t.Errorf("notices: %q", got)
	}
	var rows []string
	for _, r := range n.Rows() {
		rows = append(rows, fmt.Sprint(r.Key, " ", r.Desired, " ", r.Actual, " ", r.Phase))
	}
	if !slices.Equal(rows, []string{"n2 10.0.0.2 1500 1500 applied", "n3 10.0.0.3 1500 1400 blocked"}) {
		t.Errorf("rows: %q", rows)
	}
	probed := n.probed[three]
	n.run(every / 2)
	if n.probed[three] != probed {
		t.Error("measured again after half an hour")
	}
	n.paths[three] = 0
	n.run(every)
	n.last("without answers", map[netip.Addr]int{three: 1400})
	if n.probed[three] == probed || !slices.Equal(n.texts(), []string{small}) {
		t.Errorf("without answers: %d packets, %q", n.probed[three], n.texts())
	}
	n.devices[0].MTU = 1350
	if got := n.texts(); len(got) > 0 {
		t.Errorf("with a device that fits: %q", got)
	}
	n.paths[three] = 1500
	n.ways[three] = route.Way{Hops: []kernel.NextHop{{Link: 3}}, Link: 1500, MTU: 1500}
	n.RoutesChanged()
	n.run(0)
	n.last("before it settles", map[netip.Addr]int{three: 1400})
	n.run(2 * settle)
	n.last("on another way", map[netip.Addr]int{})
	n.paths[three] = 1280
	n.Retry()
	n.run(0)
	n.last("measured again", map[netip.Addr]int{three: 1280})
	n.remove("n3")
	n.run(0)
	n.last("the node is gone", map[netip.Addr]int{})
}

// Without an overlay the packets of pods count.
func TestPathsOfPlainPools(t *testing.T) {
	n := newNetwork(t)
	n.node("n1", "10.0.0.1/24", "fd00::1/64", 0)
	n.node("n2", "", "fd00::2/64", 1450)
	n.run(settle)
	if got := n.texts(); len(got) != 1 || !strings.Contains(got[0], "packets of up to 1450 bytes get there, and those "+
		"of pods have up to 1500. Routes to it have a smaller MTU meanwhile. Have the network carry 1500 bytes, or "+
		"set the MTU of the interfaces between the nodes to 1450") {
		t.Errorf("%q", got)
	}
}

// Whoever writes Nodes has this host ask single other hosts alone, no more often than anybody else's.
func TestWhoIsAsked(t *testing.T) {
	n := newNetwork(t)
	n.node("n1", "10.0.0.1/24", "fd00::1/64", 1500)
	for i, a := range []string{"10.0.0.1/24", "127.0.0.1/8", "0.0.0.0/0", "224.0.0.5/24", "255.255.255.255/0",
		"169.254.169.254/16"} {
		n.node(fmt.Sprintf("bad%d", i), a, "", 1500)
	}
	for i, a := range []string{"fd00::1/64", "::1/128", "::/0", "ff02::1/64", "fe80::1/64", "::ffff:10.0.0.9/128"} {
		n.node(fmt.Sprintf("bad6%d", i), "", a, 1500)
	}
	n.node("n2", "10.0.0.2/24", "fd00::2/64", 1500)
	n.node("n2-again", "10.0.0.2/24", "", 1500)
	n.node("nowhere", "10.9.9.9/24", "", 1500)
	delete(n.ways, addr("10.9.9.9"))
	n.run(settle)
	want := map[netip.Addr]int{addr("10.0.0.2"): 1, addr("fd00::2"): 1}
	if !maps.Equal(n.probed, want) {
		t.Errorf("probed: %v, want %v", n.probed, want)
	}
}

// In a large cluster a node sends its packets at the rate that is permitted, however many paths are due.
func TestPacketsAreSpread(t *testing.T) {
	n := newNetwork(t)
	n.limiter.SetLimit(probesPerSecond)
	n.node("n1", "10.0.0.1/16", "", 0)
	for i := range 100 {
		n.node(fmt.Sprintf("node-%d", i), fmt.Sprintf("10.0.1.%d/16", i+1), "", 1500)
	}
	n.clock = n.clock.Add(settle)
	begin := time.Now()
	if _, _, err := n.Flush(); err != nil {
		t.Fatal(err)
	}
	// A part of the first token may be from before.
	if d := time.Since(begin); len(n.probed) != batch || d < (batch-2)*time.Second/probesPerSecond {
		t.Errorf("%d packets in %v", len(n.probed), d)
	}
}

// A host that may not ask says so once, and changes nothing.
func TestUnable(t *testing.T) {
	n := newNetwork(t)
	n.open = UnableError{errors.New("no socket")}
	n.node("n1", "10.0.0.1/24", "", 0)
	n.node("n2", "10.0.0.2/24", "", 1400)
	n.node("n3", "10.0.0.3/24", "", 1400)
	n.run(settle)
	if got := n.texts(); !slices.Equal(got, []string{"paths to nodes: what gets to the other nodes cannot be " +
		"measured: no socket"}) || len(n.changed) > 0 {
		t.Errorf("%q, passed on %v", got, n.changed)
	}
}

// The cost of a change is that of the nodes that differ, however many there are.
func TestOneNodeOfManyChanges(t *testing.T) {
	const nodes = 1000
	n := newNetwork(t)
	n.node("n1", "10.0.0.1/16", "fd00::1/64", 0)
	for i := range nodes {
		n.node(fmt.Sprintf("node-%d", i), fmt.Sprintf("10.0.%d.%d/16", 1+i/250, 1+i%250), "", 1500)
	}
	n.run(settle)
	looks := func(when string, want int, change func()) {
		t.Helper()
		n.looks = 0
		change()
		n.run(0)
		if n.looks != want {
			t.Errorf("%s: %d ways are determined, want %d", when, n.looks, want)
		}
	}
	looks("the other routes are new", nodes, n.RoutesChanged)
	looks("nothing", 0, func() {})
	looks("a node gets an address of IPv6", 1, func() { n.node("node-7", "10.0.1.8/16", "fd00::7/64", 1500) })
	looks("a node has another address", 1, func() { n.node("node-7", "10.0.9.9/16", "fd00::7/64", 1500) })
	looks("a node comes", 1, func() { n.node("new", "10.0.9.10/16", "", 1500) })
	looks("a node shares an address", 0, func() { n.node("a-new", "10.0.9.10/16", "", 1500) })
	looks("it goes", 0, func() { n.remove("a-new") })
	looks("a node is written without a difference", 0, func() { n.node("new", "10.0.9.10/16", "", 1500) })
	looks("a pod of this host", 0, func() {
		k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"}
		n.set[k] = model.NewObject(k, &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1",
			InterfaceName: "cali1"}})
		if n.take(k); !n.host.Concerned {
			t.Error("no pod of this host")
		}
	})
	n.run(2 * settle) // as measured
	if got := n.Rows(); len(got) != nodes+2 || got[0].Key != "new 10.0.9.10" || got[0].Actual != "1500" {
		t.Errorf("%d rows, the first one is %+v", len(got), got[0])
	}
	looks("the own address", 0, func() { n.node("n1", "10.0.0.2/16", "", 0) })
	paths := n.Target.paths
	if p := paths[addr("10.0.9.10")]; p == nil || p.from != addr("10.0.0.2") || len(paths) != nodes+1 {
		t.Errorf("%d paths, %+v", len(paths), p)
	}
}

// A size belongs to the way on which it was measured. On another one it holds until an answer comes, or none has come
// twice, and never beyond what that way itself takes.
func TestSizeOfAnotherWay(t *testing.T) {
	n := newNetwork(t)
	n.node("n1", "10.0.0.1/24", "", 0)
	n.node("n2", "10.0.0.2/24", "", 1400)
	n.run(settle)
	two := addr("10.0.0.2")
	old := map[netip.Addr]int{two: 1400}
	n.last("at first", old)
	move := func(hop, mtu int) {
		n.ways[two] = route.Way{Hops: []kernel.NextHop{{Link: hop}}, Link: 1500, MTU: mtu}
		n.RoutesChanged()
		n.run(0)
		n.run(2 * settle)
	}
	n.paths[two] = 0
	n.run(2 * every)
	n.run(2 * every)
	n.run(2 * every)
	n.last("no answers on the same way", old)
	n.ways[two] = route.Way{}
	n.RoutesChanged()
	n.run(0)
	n.last("no way", map[netip.Addr]int{})
	move(2, 1500)
	n.run(2 * every)
	n.last("the same way comes back", old)
	move(3, 1500)
	n.last("no answer on another way", old)
	move(3, 1300)
	n.last("a way that takes less itself", map[netip.Addr]int{two: 1300})
	if got := n.Rows(); got[0].Actual != "1300" {
		t.Errorf("%+v", got)
	}
	move(4, 1500)
	n.last("no answer on a third way", old)
	n.run(2 * retryFirst)
	n.last("still none", map[netip.Addr]int{})
	if got := n.Rows(); got[0].Phase != reconcile.Pending || got[0].Actual != "" ||
		got[0].Reason != "it answers no ICMP echo request of 1280 bytes" {
		t.Errorf("%+v", got)
	}
}

// Each of several next hops is a part of the way.
func TestSeveralNextHops(t *testing.T) {
	n := newNetwork(t)
	n.node("n1", "10.0.0.1/24", "", 0)
	n.node("n2", "10.0.0.2/24", "", 1500)
	two := addr("10.0.0.2")
	for _, second := range []int{3, 4} {
		n.ways[two] = route.Way{Hops: []kernel.NextHop{{Link: 2}, {Link: second}}, Link: 1500, MTU: 1500}
		n.RoutesChanged()
		n.run(0)
		n.run(2 * settle)
	}
	if n.probed[two] != 2 {
		t.Errorf("%d packets, want one for each second next hop", n.probed[two])
	}
}
