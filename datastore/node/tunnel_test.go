package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
	"github.com/manxnet/manx/ipam"
)

const resources = "/calico/resources/v3/projectcalico.org/"

// tunnelTest is one etcd with one node, "n".
type tunnelTest struct {
	*testing.T
	store  *etcd.Store
	client *clientv3.Client
	alloc  *ipam.Allocator
}

func newTunnelTest(t *testing.T) tunnelTest {
	server := etcdtest.Start(t)
	store := server.Store(t)
	x := tunnelTest{T: t, store: store, client: server.Client(t), alloc: ipam.New(store, nil, nil)}
	x.put("nodes/n",
		`{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"n","labels":{"rack":"r1"},"future":"kept"},"spec":{"bgp":{"ipv4Address":"192.0.2.1/24","futureBGP":7},"futureSpec":{"a":1}},"status":{}}`)
	return x
}

func (x tunnelTest) put(path, raw string) {
	x.Helper()
	if _, err := x.client.Put(context.Background(), resources+path, raw); err != nil {
		x.Fatal(err)
	}
}

func (x tunnelTest) rawValue(path string) string {
	x.Helper()
	r, err := x.client.Get(context.Background(), resources+path)
	if err != nil || len(r.Kvs) != 1 {
		x.Fatalf("%s: %v, %v", path, r, err)
	}
	return string(r.Kvs[0].Value)
}

// revision is etcd's own: it grows with each write of any client.
func (x tunnelTest) revision() int64 {
	x.Helper()
	r, err := x.client.Get(context.Background(), "none")
	if err != nil {
		x.Fatal(err)
	}
	return r.Header.Revision
}

func (x tunnelTest) pool(name, cidr string, change ...func(*model.IPPoolSpec)) {
	x.Helper()
	p := &model.IPPool{
		TypeMeta:   metav1.TypeMeta{Kind: "IPPool", APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: model.IPPoolSpec{CIDR: cidr, IPIPMode: v3.IPIPModeAlways, VXLANMode: v3.VXLANModeNever,
			NodeSelector: "all()"},
	}
	for _, c := range change {
		c(&p.Spec)
	}
	raw, err := codec.Encode(model.NewObject(model.ResourceKey(model.KindIPPool, name), p))
	if err != nil {
		x.Fatal(err)
	}
	x.put("ippools/"+name, string(raw))
}

func (x tunnelTest) tunnels(types ...TunnelType) *Tunnels {
	if len(types) == 0 {
		types = []TunnelType{tunnelIPIP}
	}
	return &Tunnels{Store: x.store, IPAM: x.alloc, Node: "n", Types: types, Log: zap.NewNop()}
}

func (x tunnelTest) ensure() {
	x.Helper()
	if err := x.tunnels().Ensure(context.Background()); err != nil {
		x.Fatal(err)
	}
}

// address returns the IPIP tunnel address that the Node has.
func (x tunnelTest) address() string {
	x.Helper()
	n, err := x.tunnels().readNode(context.Background())
	if err != nil {
		x.Fatal(err)
	}
	return tunnelIPIP.get(n)
}

// addressesOf lists the addresses of a handle, as text.
func (x tunnelTest) addressesOf(handle string) string {
	x.Helper()
	addrs, err := x.alloc.IPsByHandle(context.Background(), handle)
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		x.Fatal(err)
	}
	var text []string
	for _, a := range addrs {
		text = append(text, a.String())
	}
	return strings.Join(text, " ")
}

func (x tunnelTest) expect(address string) {
	x.Helper()
	if got := x.address(); got != address {
		x.Errorf("the Node has tunnel address %q, want %q", got, address)
	}
	if got := x.addressesOf("ipip-tunnel-addr-n"); got != address {
		x.Errorf("the handle has %q, want %q", got, address)
	}
}

func TestTunnelAddressIsAssignedKeptAndReleased(t *testing.T) {
	x := newTunnelTest(t)
	x.ensure()
	x.expect("") // no pool
	x.pool("plain", "10.1.0.0/24", func(p *model.IPPoolSpec) { p.IPIPMode = v3.IPIPModeNever })
	x.pool("elsewhere", "10.2.0.0/24", func(p *model.IPPoolSpec) { p.NodeSelector = "rack == 'r2'" })
	x.pool("pods", "10.3.0.0/24", func(p *model.IPPoolSpec) {
		p.AllowedUses = []v3.IPPoolAllowedUse{v3.IPPoolAllowedUseWorkload}
	})
	x.ensure()
	x.expect("") // none of them is for an IPIP tunnel of this node

	x.pool("ipip", "10.4.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29; p.IPIPMode = v3.IPIPModeCrossSubnet })
	x.ensure()
	x.expect("10.4.0.0")
	attrs, err := x.alloc.GetAssignmentAttributes(context.Background(), netip.MustParseAddr("10.4.0.0"))
	if err != nil || attrs.Attrs["node"] != "n" || attrs.Attrs["type"] != "ipipTunnelAddress" || len(attrs.Attrs) != 2 {
		t.Errorf("attributes %v, %v", attrs, err)
	}
	for _, kept := range []string{`"future":"kept"`, `"futureBGP":7`, `"futureSpec":{"a":1}`, `"rack":"r1"`} {
		if !strings.Contains(x.rawValue("nodes/n"), kept) {
			t.Errorf("%s was lost from the Node: %s", kept, x.rawValue("nodes/n"))
		}
	}

	before := x.revision()
	x.ensure()
	if after := x.revision(); after != before {
		t.Errorf("nothing changed, and yet there were %d writes", after-before)
	}

	x.pool("ipip", "10.4.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29; p.IPIPMode = v3.IPIPModeNever })
	x.pool("other", "10.5.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29 })
	x.ensure()
	x.expect("10.5.0.0")

	x.pool("other", "10.5.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29; p.Disabled = true })
	x.ensure()
	x.expect("")
}

func TestTunnelAddressOfOthersIsNotTaken(t *testing.T) {
	for _, c := range []struct {
		name   string
		handle string
		attrs  map[string]string
		want   string // the new tunnel address
		keeps  bool   // the other keeps the old address
	}{
		{"assigned to a pod", "k8s-pod-network.1", map[string]string{"node": "n", "pod": "p"}, "10.4.0.0", true},
		{"assigned to another node's tunnel", "ipip-tunnel-addr-m",
			map[string]string{"node": "m", "type": "ipipTunnelAddress"}, "10.4.0.0", true},
		{"assigned to a handle without attributes", "somebody", nil, "10.4.0.0", true},
		{"assigned without handle by an old version", "", nil, "10.4.0.5", false},
		{"assigned to us", "ipip-tunnel-addr-n", map[string]string{"node": "n", "type": "ipipTunnelAddress"},
			"10.4.0.5", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTunnelTest(t)
			x.pool("ipip", "10.4.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29 })
			old := netip.MustParseAddr("10.4.0.5")
			if err := x.alloc.AssignIP(context.Background(), ipam.AddressRequest{Address: old, Host: "n",
				Handle: c.handle, Attrs: c.attrs}); err != nil {
				t.Fatal(err)
			}
			x.put("nodes/n",
				`{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"n"},"spec":{"bgp":{"ipv4IPIPTunnelAddr":"10.4.0.5"}}}`)
			x.ensure()
			x.expect(c.want)
			if c.keeps && x.addressesOf(c.handle) != "10.4.0.5" {
				t.Errorf("handle %s has %q now", c.handle, x.addressesOf(c.handle))
			}
		})
	}
}

// An address that was assigned before the process died, and an address of a Node that IPAM has not assigned.
func TestTunnelAddressAfterAnInterruption(t *testing.T) {
	x := newTunnelTest(t)
	x.pool("ipip", "10.4.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29 })
	if _, err := x.tunnels().assign(context.Background(), tunnelIPIP,
		[]netip.Prefix{netip.MustParsePrefix("10.4.0.0/29")}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.tunnels().assign(context.Background(), tunnelIPIP,
		[]netip.Prefix{netip.MustParsePrefix("10.4.0.0/29")}); err != nil {
		t.Fatal(err)
	}
	x.ensure()
	x.expect("10.4.0.0") // and the second is released
	if _, err := x.alloc.ReleaseByHandle(context.Background(), "ipip-tunnel-addr-n"); err != nil {
		t.Fatal(err)
	}
	x.ensure()
	x.expect("10.4.0.2") // the queue is first in, first out: 10.4.0.1 went to its end before
}

// interferingStore is a store in which something happens before the Node is written.
type interferingStore struct {
	datastore.Store
	before func() error
}

func (m *interferingStore) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	if o.Key.Kind == model.KindNode && m.before != nil {
		if err := m.before(); err != nil {
			return nil, err
		}
	}
	return m.Store.Update(ctx, o)
}

func TestTunnelAddressSurvivesAConcurrentNodeWrite(t *testing.T) {
	x := newTunnelTest(t)
	x.pool("ipip", "10.4.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29 })
	m := &interferingStore{Store: x.store}
	m.before = func() error {
		x.put("nodes/n",
			`{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"n","labels":{"new":"label"}},"spec":{}}`)
		m.before = nil
		return nil
	}
	tunnels := x.tunnels()
	tunnels.Store = m
	if err := tunnels.Ensure(context.Background()); err != nil {
		t.Fatal(err)
	}
	x.expect("10.4.0.0")
	if !strings.Contains(x.rawValue("nodes/n"), `"new":"label"`) {
		t.Errorf("the other write is lost: %s", x.rawValue("nodes/n"))
	}
}

func TestTunnelAddressIsReleasedIfTheNodeCannotBeWritten(t *testing.T) {
	x := newTunnelTest(t)
	x.pool("ipip", "10.4.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29 })
	tunnels := x.tunnels()
	tunnels.Store = &interferingStore{Store: x.store, before: func() error { return datastore.ErrUnavailable }}
	if err := tunnels.Ensure(context.Background()); !errors.Is(err, datastore.ErrUnavailable) {
		t.Fatalf("error %v", err)
	}
	x.expect("")
}

func TestTunnelAddressFollowsPoolsWhileRunning(t *testing.T) {
	x := newTunnelTest(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tables := datastore.NewTables(zap.NewNop(), "")
	ended := make(chan error, 2)
	go func() { ended <- tables.Run(ctx, x.store, model.KindNode, model.KindIPPool) }()
	tunnels := x.tunnels()
	tunnels.Linger = 100 * time.Millisecond
	go func() { ended <- tunnels.Run(ctx, tables) }()

	x.pool("ipip", "10.4.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29 })
	x.await(ctx, tables, "10.4.0.0")
	// a writer without support for tunnels
	x.put("nodes/n", `{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"n"},"spec":{}}`)
	x.await(ctx, tables, "10.4.0.0")
	x.pool("ipip", "10.4.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize = 29; p.IPIPMode = v3.IPIPModeNever })
	x.await(ctx, tables, "") // without a change of an object, when its time has come
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	}
}

// An address that no pool needs any more stays for a while, for nodes that still send by the tunnel, unless its pool is
// gone.
func TestTunnelAddressLingers(t *testing.T) {
	x := newTunnelTest(t)
	tunnels := x.tunnels()
	tunnels.Linger = time.Hour
	ensure := func(want string) {
		t.Helper()
		if err := tunnels.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.expect(want)
	}
	small := func(p *model.IPPoolSpec) { p.BlockSize = 29 }
	never := func(p *model.IPPoolSpec) { p.BlockSize, p.IPIPMode = 29, v3.IPIPModeNever }
	x.pool("ipip", "10.4.0.0/29", small)
	ensure("10.4.0.0")
	if !tunnels.due().IsZero() {
		t.Error("an address that is needed is to be released")
	}
	x.pool("ipip", "10.4.0.0/29", never)
	ensure("10.4.0.0")
	if due := time.Until(tunnels.due()); due < time.Minute || due > time.Hour {
		t.Errorf("it is released in %v", due)
	}
	x.pool("ipip", "10.4.0.0/29", small)
	ensure("10.4.0.0")
	if !tunnels.due().IsZero() {
		t.Error("an address that is needed again is to be released")
	}
	x.pool("ipip", "10.4.0.0/29", never)
	ensure("10.4.0.0")
	tunnels.unneeded["IPIP"] = time.Now().Add(-time.Hour)
	ensure("")
	ensure("")
	if !tunnels.due().IsZero() {
		t.Error("an address that is gone is to be released")
	}
	x.pool("ipip", "10.4.0.0/29", small)
	ensure("10.4.0.1") // the queue of free addresses
	x.pool("ipip", "10.5.0.0/29", never)
	ensure("")
}

// WireGuard's device has an address of a pool, unless the node's own packets are encrypted, by FelixConfiguration or by
// the settings of the host.
func TestWireguardTunnelAddress(t *testing.T) {
	x := newTunnelTest(t)
	x.pool("pods", "10.4.0.0/29", func(p *model.IPPoolSpec) { p.BlockSize, p.IPIPMode = 29, v3.IPIPModeNever })
	x.put("nodes/n", `{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"n"},"spec":{},"status":`+
		`{"wireguardPublicKey":"bm8ga2V5"}}`)
	for _, c := range []struct {
		felix, environment string
		want               bool
	}{{"false", "", true}, {"true", "", false}, {"false", "", true}, {"false", "true", false},
		{"true", "false", true}} {
		x.put("felixconfigurations/default", `{"kind":"FelixConfiguration","apiVersion":"projectcalico.org/v3",`+
			`"metadata":{"name":"default"},"spec":{"wireguardHostEncryptionEnabled":`+c.felix+`}}`)
		tunnels := x.tunnels(tunnelWireguard)
		tunnels.EncryptsHosts = func(r model.Reader) bool {
			local := felixconfig.NewLocal([]string{"FELIX_WIREGUARDHOSTENCRYPTIONENABLED=" + c.environment}, "", "")
			return *felixconfig.Merge(r, "n", local).WireguardHostEncryptionEnabled
		}
		if err := tunnels.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		n, err := tunnels.readNode(t.Context())
		if err != nil || (tunnelWireguard.get(n) != "") != c.want ||
			(x.addressesOf("wireguard-tunnel-addr-n") != "") != c.want {
			t.Errorf("%+v: %+v, %v", c, n.Spec.Wireguard, err)
		}
	}
}

// await waits until the Node in the tables has the address.
func (x tunnelTest) await(ctx context.Context, tables *datastore.Tables, address string) {
	x.Helper()
	s := tables.Snapshot()
	for {
		n := model.Get[model.Node](s, model.ResourceKey(model.KindNode, "n"))
		if n != nil && tunnelIPIP.get(n) == address && s.Revision() > 0 && x.address() == address {
			return
		}
		var err error
		if s, err = tables.Wait(ctx, s); err != nil {
			x.Fatalf("waiting for tunnel address %q: %v", address, err)
		}
	}
}

// From the pools and nodes that Calico had, all tunnel addresses become those that Calico assigned, and the Nodes are
// written as Calico wrote them.
func TestTunnelAddressesAreCalicos(t *testing.T) {
	x := newTunnelTest(t)
	for _, r := range jsonlines.Read[struct{ Op, Key, Raw string }](t, "testdata/tunnel-history.jsonl") {
		path := strings.TrimPrefix(r.Key, resources)
		name, isNode := strings.CutPrefix(path, "nodes/")
		if !isNode || r.Op == "create" {
			x.put(path, r.Raw)
			continue
		}
		tunnels := &Tunnels{Store: x.store, IPAM: x.alloc, Node: name, Types: tunnelTypes, Log: zap.NewNop()}
		if err := tunnels.Ensure(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := x.rawValue(path); got != r.Raw {
			t.Errorf("%s:\n want %s\n have %s", path, r.Raw, got)
		}
	}
}

// Nothing is assigned while the datastore is locked: a migration would lose it.
func TestNoTunnelAddressWhileLocked(t *testing.T) {
	x := newTunnelTest(t)
	x.pool("p", "10.1.0.0/16")
	lock := func(ready string) {
		x.put("clusterinformations/default", `{"kind":"ClusterInformation","apiVersion":"projectcalico.org/v3",`+
			`"metadata":{"name":"default"},"spec":{"datastoreReady":`+ready+`}}`)
	}
	lock("false")
	before := x.revision()
	if err := x.tunnels().Ensure(t.Context()); !errors.Is(err, errLocked) || x.revision() != before {
		t.Errorf("locked: %v, and %d writes", err, x.revision()-before)
	}
	lock("true")
	x.ensure()
	if x.address() == "" {
		t.Error("unlocked: no address")
	}
}

// Where pods get their addresses from the node's pod CIDRs, the tunnel of VXLAN has the first address of one that is in
// a pool with VXLAN, and IPAM has nothing of it.
func TestTunnelAddressOfPodCIDR(t *testing.T) {
	x := newTunnelTest(t)
	const node = `{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"n"},` +
		`"spec":{"bgp":{"ipv4Address":"192.0.2.1/24"}},"status":{"podCIDRs":[%s]}}`
	tunnels := x.tunnels(tunnelVXLAN, tunnelVXLANV6)
	tunnels.PodCIDR, tunnels.Linger = true, time.Hour
	expect := func(rule, four, six string) {
		t.Helper()
		if err := tunnels.Ensure(t.Context()); err != nil {
			t.Fatalf("%s: %v", rule, err)
		}
		n, err := tunnels.readNode(t.Context())
		if err != nil || n.Spec.IPv4VXLANTunnelAddr != four || n.Spec.IPv6VXLANTunnelAddr != six {
			t.Errorf("%s: %+v, %v; want %q and %q", rule, n.Spec, err, four, six)
		}
	}
	mode := func(name, cidr string, mode v3.VXLANMode) {
		x.pool(name, cidr, func(p *model.IPPoolSpec) { p.IPIPMode, p.VXLANMode = v3.IPIPModeNever, mode })
	}
	x.put("nodes/n", fmt.Sprintf(node, `"10.4.3.0/24","fd00:4:0:3::/64"`))
	expect("without a pool", "", "")
	mode("other", "10.9.0.0/16", v3.VXLANModeAlways)
	expect("a pool of other addresses", "", "")
	mode("four", "10.4.0.0/16", v3.VXLANModeAlways)
	expect("IPv4", "10.4.3.1", "")
	mode("six", "fd00:4::/48", v3.VXLANModeCrossSubnet)
	expect("both", "10.4.3.1", "fd00:4:0:3::1")
	mode("six", "fd00:4::/48", v3.VXLANModeNever)
	expect("the address lingers", "10.4.3.1", "fd00:4:0:3::1")
	tunnels.Linger = time.Nanosecond
	expect("and goes", "10.4.3.1", "")
	x.put("nodes/n", fmt.Sprintf(node, ``))
	expect("a node without pod CIDRs", "", "")
	if blocks, _, err := x.store.List(t.Context(), model.KindIPAMBlock, ""); err != nil || len(blocks) > 0 {
		t.Errorf("IPAM has %v, %v", blocks, err)
	}
}
