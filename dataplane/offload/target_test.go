package offload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
)

const device = model.DeviceVXLAN

// cluster is what is behind a Target. Packets are lost whose checksum is left to the hardware, while spoiled is set and
// the device has not been told to avoid that.
type cluster struct {
	*Target
	t       *testing.T
	host    *hoststate.Host
	set     model.Set
	clock   time.Time
	devices []overlay.Device
	ways    map[netip.Addr]route.Way
	by      map[netip.Addr]string // the interface to an address, if not the device
	silent  bool                  // no node answers
	spoiled bool
	useless bool // avoiding the offload does not help
	fails   error
	avoided map[string]bool
	probed  map[netip.Addr]int
}

func newCluster(t *testing.T, repair bool) *cluster {
	c := &cluster{t: t, host: hoststate.New("n0", nil), set: model.Set{}, clock: time.Unix(1e9, 0),
		by: map[netip.Addr]string{}, ways: map[netip.Addr]route.Way{}, probed: map[netip.Addr]int{},
		devices: []overlay.Device{{Name: device, Kind: overlay.KindVXLAN, Family: model.IPv4,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/32")}},
			{Name: model.DeviceIPIP, Kind: "ipip", Family: model.IPv4,
				Addresses: []netip.Prefix{netip.MustParsePrefix("10.8.0.1/32")}}}}
	loop := reconcile.NewLoop()
	loop.Background = func(f func()) { f() }
	c.Target = New(Config{Prober: prober{c}, Repair: repair, Release: "6.12.0", Loop: loop,
		Way:     func(a netip.Addr) route.Way { return c.ways[a] },
		Devices: func() []overlay.Device { return c.devices },
		Avoid:   func(m map[string]bool) { c.avoided = m },
		Now:     func() time.Time { return c.clock }})
	c.limiter.SetLimit(1e9)
	return c
}

type prober struct{ *cluster }

func (p prober) InterfaceTo(a netip.Addr, _ uint32) (string, bool, error) {
	if by, other := p.by[a]; other {
		return by, false, nil
	}
	if strings.HasPrefix(a.String(), "10.9.") {
		return device, false, nil
	}
	return "eth0", true, nil
}

func (p prober) Probe(_ context.Context, from, to netip.Addr, offload bool, _ time.Duration) (bool, error) {
	if p.probed[to]++; from.String() != "10.9.0.1" {
		p.t.Errorf("probed from %s", from)
	}
	return !p.silent && (!offload || !p.spoiled || p.avoided[device] && !p.cluster.useless), p.fails
}

func (prober) Hardware(name string) string { return "driver of " + name + ", kernel 6.12.0" }

// nodes adds n0, this host, to the last one.
func (c *cluster) nodes(last int) {
	c.set = maps.Clone(c.set)
	var keys []model.Key
	for i := range last + 1 {
		k := model.ResourceKey(model.KindNode, fmt.Sprintf("n%d", i))
		n := &model.Node{Spec: model.NodeSpec{IPv4VXLANTunnelAddr: fmt.Sprintf("10.9.0.%d", i+1),
			BGP: &model.NodeBGPSpec{IPv4Address: fmt.Sprintf("10.0.0.%d/24", i+1)}}}
		n.Name = k.Name
		c.set[k] = model.NewObject(k, n)
		keys = append(keys, k)
	}
	c.take(keys...)
	c.run(0) // the device gets its time
}

// override sets featureDetectOverride.
func (c *cluster) override(text string) {
	c.set = maps.Clone(c.set)
	k := model.ResourceKey(model.KindFelixConfiguration, "default")
	f := &model.FelixConfiguration{}
	f.Spec.FeatureDetectOverride = text
	c.set[k] = model.NewObject(k, f)
	c.take(k)
}

func (c *cluster) take(keys ...model.Key) {
	c.host.Take(hoststate.State{Reader: c.set, Changed: keys})
	c.SetState(c.host)
}

// run lets time pass, and measures whatever is due.
func (c *cluster) run(d time.Duration) {
	c.t.Helper()
	for c.clock = c.clock.Add(d); ; {
		if _, _, err := c.Flush(); err != nil {
			c.t.Fatal(err)
		}
		if !c.busy {
			return
		}
	}
}

// expect compares the devices that shall avoid the offload, the row, and parts of the notice; none for no notice.
func (c *cluster) expect(what string, avoided bool, row string, notice ...string) {
	c.t.Helper()
	if c.avoided[device] != avoided {
		c.t.Errorf("%s: avoided: %v", what, c.avoided)
	}
	var rows, texts []string
	for _, r := range c.Rows() {
		rows = append(rows, fmt.Sprint(r.Key, " ", r.Desired, " ", r.Actual, " ", r.Phase))
	}
	for _, n := range c.Notices() {
		texts = append(texts, n.Subject+": "+n.Text)
	}
	if !slices.Equal(rows, []string{device + " received " + row}) {
		c.t.Errorf("%s: rows: %q", what, rows)
	}
	if len(texts) > 1 || (len(texts) == 0) != (len(notice) == 0) {
		c.t.Fatalf("%s: notices: %q", what, texts)
	}
	for _, part := range notice {
		if !strings.Contains(texts[0], part) {
			c.t.Errorf("%s: %q lacks %q", what, texts[0], part)
		}
	}
}

func (c *cluster) packets() (n int) {
	for _, x := range c.probed {
		n += x
	}
	clear(c.probed)
	return n
}

const symptom = "device vxlan.calico: packets through it whose checksum is left to interface eth0 (driver of eth0, " +
	"kernel 6.12.0) do not get to node n"

// Lost packets are reported with the interface and the cure, and nothing else is done.
func TestReport(t *testing.T) {
	c := newCluster(t, false)
	c.nodes(1)
	c.spoiled = true
	c.expect("before the first measurement", false, " pending")
	c.run(2 * settle)
	c.expect("spoiled", false, "lost blocked", symptom+"1 (10.0.0.2), and those with a checksum of the kernel do",
		"ethtool -K vxlan.calico tx-checksum-ip-generic off", "ChecksumOffloadBroken=true", "--offload-check=repair")
	c.packets()
	c.run(every / 2)
	if n := c.packets(); n > 0 {
		t.Errorf("%d packets after half an hour", n)
	}
	c.silent = true
	c.run(every)
	c.expect("without answers", false, "lost blocked", symptom)
	c.silent, c.spoiled = false, false
	c.run(2 * every)
	c.expect("another card", false, "received applied")
}

// The kernel computes the checksums while that helps, until the settings decide.
func TestRepair(t *testing.T) {
	c := newCluster(t, true)
	c.nodes(1)
	c.run(2 * settle)
	c.expect("a good card", false, "received applied")
	c.spoiled = true
	c.ways[netip.MustParseAddr("10.0.0.2")] = route.Way{Hops: []kernel.NextHop{{Link: 3}}}
	c.RoutesChanged()
	c.run(0)
	c.expect("it has time to settle", false, "received applied")
	c.run(2 * settle)
	c.expect("spoiled", true, "lost blocked", symptom, "The kernel shall compute them now")
	c.run(2 * settle)
	c.expect("repaired", true, "received applied", symptom, "The kernel computes them now", "and they get there")
	c.run(2 * every)
	c.expect("it stays", true, "received applied", symptom)
	c.override("ChecksumOffloadBroken=false")
	c.expect("the setting", false, " pending")
	c.run(2 * settle)
	c.expect("the setting forbids it", false, "lost blocked", symptom, "featureDetectOverride of FelixConfiguration")
	c.override("")
	c.run(2 * settle)
	c.run(2 * settle)
	c.expect("repaired again", true, "received applied", symptom)
	c.devices = nil
	c.run(0)
	if len(c.avoided) > 0 {
		t.Errorf("without the device: %v", c.avoided)
	}
}

// A repair that does not help is undone, and not tried again by itself.
func TestRepairInVain(t *testing.T) {
	c := newCluster(t, true)
	c.nodes(1)
	c.spoiled, c.useless = true, true
	c.run(2 * settle)
	c.expect("spoiled", true, "lost blocked", symptom)
	c.run(2 * settle)
	c.expect("in vain", false, "lost blocked", symptom, "It did not help")
	c.run(2 * every)
	c.expect("not again", false, "lost blocked", "It did not help")
	c.useless = false
	c.Target.Retry()
	c.run(0)
	c.run(2 * settle)
	c.expect("on request", true, "received applied", symptom)
}

// A few nodes are probed, through the tunnel alone, less and less often while none answers.
func TestWhoIsAsked(t *testing.T) {
	c := newCluster(t, true)
	c.nodes(100)
	c.run(2 * settle)
	if n := c.packets(); n != enough {
		t.Errorf("%d packets where all answer", n)
	}
	c.silent = true
	c.Target.Retry()
	c.run(0)
	if n := c.packets(); n != mostProbed*2*attempts {
		t.Errorf("%d packets where none answers", n)
	}
	c.expect("none answers", false, "received applied")
	silent := 0
	for range 10 {
		c.run(every / 10)
		silent += c.packets()
	}
	if silent == 0 || silent > 4*mostProbed*2*attempts {
		t.Errorf("%d packets in an hour without answers", silent)
	}
	c = newCluster(t, true)
	c.nodes(3)
	c.by[netip.MustParseAddr("10.9.0.2")], c.by[netip.MustParseAddr("10.9.0.3")] = "eth0", "wireguard.cali"
	c.run(2 * settle)
	if want := map[netip.Addr]int{netip.MustParseAddr("10.9.0.4"): 1}; !maps.Equal(c.probed, want) {
		t.Errorf("probed: %v", c.probed)
	}
	c = newCluster(t, true)
	c.nodes(0)
	c.run(2 * settle)
	c.expect("alone", false, " pending")
	c.nodes(1)
	c.run(2 * settle)
	c.expect("another node", false, "received applied")
	c = newCluster(t, true)
	c.nodes(2)
	c.fails = errors.New("operation not permitted")
	c.run(2 * settle)
	if r := c.Rows(); len(r) != 1 || r[0].Reason != "operation not permitted" || r[0].Phase != reconcile.Pending {
		t.Errorf("%+v", r)
	}
}

// Nothing is sent if the settings forbid it, nor where another program makes the network of pods.
func TestOff(t *testing.T) {
	c := newCluster(t, true)
	c.config.Prober = nil
	c.nodes(2)
	c.run(2 * settle)
	c.run(2 * settle)
	d := newCluster(t, true)
	d.host.PolicyOnly = true
	d.nodes(2)
	d.run(2 * settle)
	d.run(2 * settle)
	if len(c.probed)+len(d.probed) > 0 {
		t.Errorf("probed %v, %v", c.probed, d.probed)
	}
}
