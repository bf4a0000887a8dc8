package wireguard

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

const (
	device   = "wireguard.cali"
	ownKey   = device + " 1"   // of which kerneltest makes the first key of the device
	table    = kernel.Table(1) // the lowest of routeTableRanges
	index    = 4               // of the device
	mark     = 0x200000
	priority = 99
)

// rig is a Target of node n1 on a kernel in memory, with a block of each node.
type rig struct {
	t      testing.TB
	kernel *kerneltest.Kernel
	target *Target
	host   *hoststate.Host
	set    model.Set
	now    time.Time
	keys   Keys
	// refused are prefixes that no route leads to another node.
	refused map[netip.Prefix]string
}

func newRig(t testing.TB, required bool, nodes ...*model.Object) *rig {
	r := &rig{t: t, kernel: kerneltest.New(), now: time.Unix(1e9, 0), set: model.NewSet(felix(true), pool(),
		node(1, ""))}
	for _, n := range nodes {
		r.set[n.Key] = n
	}
	r.kernel.PutLink(kernel.Link{Index: index, Name: device, Kind: "wireguard", MTU: 1440, Up: true, Running: true})
	r.start(required, true)
	return r
}

// start makes the target of a new process, which has read the datastore, but maybe not all blocks.
func (r *rig) start(required, synced bool) {
	r.begin(required)
	r.place()
	r.target.SetPlacesSynced(synced)
	r.take()
}

// place passes the blocks of nodes.
func (r *rig) place() {
	for i := 1; i < 10; i++ {
		r.target.Place(block(i), fmt.Sprintf("n%d", i))
	}
}

// begin makes the target of a new process.
func (r *rig) begin(required bool) {
	r.host = hoststate.New("n1", nil)
	r.target = New(Config{Kernel: r.kernel, Now: func() time.Time { return r.now }, Required: required,
		Refuse:     func(p netip.Prefix, _ string) string { return r.refused[p] },
		RefuseHost: func(p netip.Prefix, _ string, _ func(netip.Addr) bool) string { return r.refused[p] },
		Missing:    func() map[string]error { return nil }, Publish: func(k Keys) { r.keys = k }})
}

func pool() *model.Object {
	p := &model.IPPool{}
	p.Spec.CIDR = "10.244.0.0/16"
	return model.NewObject(model.ResourceKey(model.KindIPPool, "p4"), p)
}

func felix(on bool) *model.Object {
	f := &model.FelixConfiguration{}
	f.Spec.WireguardEnabled = &on
	return model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), f)
}

func node(i int, key string) *model.Object {
	n := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: fmt.Sprintf("192.0.2.%d/24", i)}}}
	n.CreationTimestamp = metav1.Unix(int64(i), 0)
	if key != "" {
		n.Status.WireguardPublicKey = kerneltest.PublicKey(key).String()
	}
	return model.NewObject(model.ResourceKey(model.KindNode, fmt.Sprintf("n%d", i)), n)
}

func block(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 26)
}

func (r *rig) take(changed ...model.Key) {
	r.host.Take(hoststate.State{Reader: r.set, Changed: changed, All: len(changed) == 0, DatastoreSynced: true,
		BGPSynced: true})
	r.target.SetState(r.host)
}

// takeLast has the target follow the state of an earlier run.
func (r *rig) takeLast(set model.Set) {
	r.host.Take(hoststate.State{Reader: set, All: true, Last: true})
	r.target.SetState(r.host)
}

func (r *rig) put(o *model.Object) {
	r.set[o.Key] = o
	r.take(o.Key)
}

// connect makes the interface cali1 of a workload.
func (r *rig) connect() {
	l := kernel.Link{Index: 9, Name: "cali1", Up: true}
	r.kernel.PutLink(l)
	r.target.SeeLink(l)
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

// later flushes after a time.
func (r *rig) later(d time.Duration) []string {
	r.now = r.now.Add(d)
	return r.flush()
}

func (r *rig) shake(key string) {
	r.t.Helper()
	if err := r.kernel.ShakeHands(device, kerneltest.PublicKey(key), r.now); err != nil {
		r.t.Fatal(err)
	}
}

// way returns how packets to the block of a node go, by the kernel's routes and rules.
func (r *rig) way(i int) string {
	r.t.Helper()
	rules, _ := r.kernel.ListRules()
	rules = slices.DeleteFunc(rules, func(x kernel.Rule) bool { return x.Priority == priority-1 })
	routes, _ := r.kernel.ListRoutes(table)
	if len(rules) != 1 || rules[0].Table != table || !rules[0].Not || rules[0].Mark != mark {
		return fmt.Sprintf("rules %v", rules)
	}
	for _, x := range routes {
		switch {
		case x.Dst != block(i):
		case x.Type == kernel.Unicast && x.NextHops[0].Link != index:
			return "by another device"
		default:
			return x.Type.String()
		}
	}
	return "no route"
}

func (r *rig) wantWay(what string, i int, want string) {
	r.t.Helper()
	if got := r.way(i); got != want {
		r.t.Errorf("%s: packets to n%d go by %q, want %q", what, i, got, want)
	}
}

// allowed returns the AllowedIPs of each peer of the device, by endpoint, without the address of the peer itself, which
// each of them has.
func (r *rig) allowed() map[string][]netip.Prefix {
	d, err := r.kernel.WireGuard(device)
	if err != nil {
		r.t.Fatal(err)
	}
	list := map[string][]netip.Prefix{}
	for _, p := range d.Peers {
		a := p.Endpoint.Addr()
		at := slices.Index(p.AllowedIPs, netip.PrefixFrom(a, a.BitLen()))
		if at < 0 {
			r.t.Errorf("%s may not send from its own address, but from %v", a, p.AllowedIPs)
			continue
		}
		p.AllowedIPs = slices.Delete(p.AllowedIPs, at, at+1)
		slices.SortFunc(p.AllowedIPs, netip.Prefix.Compare)
		list[p.Endpoint.String()] = p.AllowedIPs
	}
	return list
}

func (r *rig) reason(i int) string {
	for _, p := range r.target.Peers() {
		if p.Node == fmt.Sprintf("n%d", i) && p.Family == model.IPv4 {
			return p.Reason
		}
	}
	return ""
}

// A peer gets packets once there was a handshake; the rule comes last. A node without a key gets them in plain.
func TestPacketsAreEncryptedAfterAHandshake(t *testing.T) {
	r := newRig(t, false, node(2, "k2"), node(3, ""))
	log := r.flush()
	if at := slices.IndexFunc(log, func(s string) bool {
		return strings.HasPrefix(s, "add rule 99: not from all fwmark "+
			"0x200000/0x200000 lookup 1")
	}); at != len(log)-1 {
		t.Errorf("the rule is not last:\n%s", strings.Join(log, "\n"))
	}
	if want := kerneltest.PublicKey(ownKey); r.keys[model.IPv4] != want || len(r.keys) != 1 {
		t.Errorf("published %v, want %s", r.keys, want)
	}
	r.wantWay("before a handshake", 2, "throw")
	if got := r.reason(2); got != "plain: no handshake with n2 yet" {
		t.Error(got)
	}
	if next := r.target.Next(); next > proofEvery {
		t.Errorf("looks for a handshake after %s", next)
	}
	if a := r.allowed(); len(a) != 1 || !slices.Equal(a["192.0.2.2:51820"], []netip.Prefix{block(2)}) {
		t.Errorf("the peers are %v", a)
	}
	r.shake("k2")
	r.later(time.Second)
	for i, want := range []string{1: "throw", 2: "unicast", 3: "throw"} {
		if i > 0 {
			r.wantWay("after a handshake", i, want)
		}
	}
	r.now = r.now.Add(41 * time.Second)
	if got := r.reason(2); got != "encrypted, handshake 42 s ago, 0 B" {
		t.Error(got)
	}
	if got := r.reason(3); got != "plain: n3 publishes no key" {
		t.Error(got)
	}
	if d, _ := r.kernel.WireGuard(device); d.Peers[0].Keepalive != 0 || d.Port != 51820 || d.Mark != mark {
		t.Errorf("the device is %+v", d)
	}
	if log := r.later(time.Minute); len(log) > 0 {
		t.Errorf("without a change: %q", log)
	}
	notices := fmt.Sprint(r.target.Notices())
	if !strings.Contains(notices, "n3 publishes no key") || strings.Contains(notices, "n2") {
		t.Error(notices)
	}
}

// Who drops handshakes does not get packets in plain for long.
func TestAHandshakeIsNotAwaitedForLong(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.later(proof - time.Second)
	r.wantWay("before", 2, "throw")
	r.later(time.Second)
	r.later(0)
	r.wantWay("after", 2, "unicast")
	if got := r.reason(2); got != "encrypted, but no handshake yet: nothing arrives from 192.0.2.2:51820 at UDP port "+
		"51820" {
		t.Error(got)
	}
}

// A new process keeps the key, the peers and the routes, also to a peer that does not answer.
func TestARestartChangesNothing(t *testing.T) {
	r := newRig(t, false, node(2, "k2"), node(3, "k3"))
	r.flush()
	r.shake("k2")
	r.later(proof)
	r.later(0)
	r.wantWay("before", 3, "unicast")
	r.start(false, false)
	if log := r.flush(); len(log) > 0 {
		t.Errorf("before the blocks are known: %q", log)
	}
	r.target.SetPlacesSynced(true)
	if log := r.later(time.Second); len(log) > 0 {
		t.Errorf("afterwards: %q", log)
	}
	if r.keys[model.IPv4] != kerneltest.PublicKey(ownKey) {
		t.Errorf("the key is %v", r.keys)
	}
}

// A process that starts without the datastore encrypts as the one before, also if its last state is older than the
// keys, or than WireGuard itself. It publishes nothing.
func TestWithoutTheDatastoreAllStaysEncrypted(t *testing.T) {
	for name, old := range map[string]model.Set{
		"without keys":      model.NewSet(felix(true), pool(), node(1, ""), node(2, "")),
		"with former keys":  model.NewSet(felix(true), pool(), node(1, "k0"), node(2, "k0")),
		"without WireGuard": model.NewSet(felix(false), pool(), node(1, ""), node(2, "")),
		"as it is":          model.NewSet(felix(true), pool(), node(1, ownKey), node(2, "k2")),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, false, node(2, "k2"))
			r.flush()
			r.shake("k2")
			r.later(time.Second)
			r.wantWay("before", 2, "unicast")
			r.begin(false)
			r.keys = nil
			r.takeLast(old)
			if log := append(r.flush(), r.later(time.Minute)...); len(log) > 0 || r.keys != nil {
				t.Errorf("changes without the datastore: %q, published %v", log, r.keys)
			}
			r.shake("k2")
			r.take()
			if log := r.flush(); len(log) > 0 {
				t.Errorf("changes before the blocks are known: %q", log)
			}
			r.place()
			r.target.SetPlacesSynced(true)
			if log := append(r.flush(), r.later(time.Second)...); len(log) > 0 {
				t.Errorf("changes with it: %q", log)
			}
			if r.keys[model.IPv4] != kerneltest.PublicKey(ownKey) {
				t.Errorf("published %v", r.keys)
			}
		})
	}
}

// What Felix has left is taken over, whatever protocols it wrote, and what is not wanted goes.
func TestFelixIsAdopted(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	for _, x := range []kernel.Rule{
		{Priority: priority, Mark: mark, Mask: mark, Not: true, Table: table, Protocol: kernel.ProtocolBoot},
		{Priority: 77, Mark: mark, Mask: mark, Not: true, Table: table, Protocol: kernel.ProtocolBoot},
		{Priority: 78, Mark: 51820, Mask: 0xffffffff, Not: true, Table: 51820}, // of wg-quick
	} {
		if err := r.kernel.AddRule(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.kernel.DeleteRule(kernel.Rule{Priority: priority, Mark: mark, Mask: mark, Not: true, Table: table,
		Protocol: kernel.ProtocolCalico}); err != nil {
		t.Fatal(err)
	}
	gone, foreign := netip.MustParsePrefix("10.244.77.0/26"), netip.MustParsePrefix("198.51.100.0/24")
	r.kernel.ApplyRoutes([]kernel.RouteOp{
		{Verb: kernel.AddRoute, Route: kernel.Route{Dst: gone, Table: table, Type: kernel.Unicast,
			Protocol: kernel.ProtocolBoot, NextHops: []kernel.NextHop{{Link: index}}}},
		{Verb: kernel.AddRoute, Route: kernel.Route{Dst: foreign, Table: table, Type: kernel.Unicast,
			Protocol: kernel.ProtocolStatic, NextHops: []kernel.NextHop{{Link: index - 3}}}}})
	if err := r.kernel.ChangePeers(device, []wireguard.Change{{Key: kerneltest.PublicKey("k9"),
		Add: []netip.Prefix{gone}}}); err != nil {
		t.Fatal(err)
	}
	r.start(false, true)
	log := strings.Join(r.flush(), "\n")
	rules, _ := r.kernel.ListRules()
	routes, _ := r.kernel.ListRoutes(table)
	added, deleted := strings.Index(log, "add rule 99:"), strings.Index(log, "delete rule 99:")
	if len(rules) != 2 || slices.ContainsFunc(rules, func(x kernel.Rule) bool { return x.Priority == 77 }) ||
		added < 0 || deleted < added {
		t.Errorf("the rules are %v after\n%s", rules, log)
	}
	if slices.ContainsFunc(routes, func(x kernel.Route) bool { return x.Dst == gone }) ||
		!slices.ContainsFunc(routes, func(x kernel.Route) bool { return x.Dst == foreign }) {
		t.Errorf("the routes are %v", routes)
	}
	if a := r.allowed(); len(a) != 1 || len(a["192.0.2.2:51820"]) != 1 {
		t.Errorf("the peers are %v", a)
	}
	r.encryptHosts(true)
	r.flush()
	if _, err := Cleanup(r.kernel); err != nil {
		t.Error(err)
	}
	rules, _ = r.kernel.ListRules()
	routes, _ = r.kernel.ListRoutes(table)
	if len(rules) != 1 || rules[0].Priority != 78 || len(routes) != 1 || routes[0].Dst != foreign {
		t.Errorf("after cleanup: %v, %v", rules, routes)
	}
}

// Prefixes move between peers in one step; one that nobody has any more is taken away without touching others.
func TestAllowedIPsFollowTheBlocks(t *testing.T) {
	r := newRig(t, false, node(2, "k2"), node(3, "k3"))
	r.flush()
	r.shake("k2")
	r.shake("k3")
	r.later(time.Second)
	borrowed := netip.MustParsePrefix("10.244.2.9/32")
	r.target.Place(borrowed, "n3")
	log := r.later(time.Second)
	if len(log) != 2 || !strings.Contains(log[0], "adds [10.244.2.9/32]") ||
		!strings.Contains(log[1], "10.244.2.9/32 dev") {
		t.Errorf("a borrowed address: %q", log)
	}
	r.target.Place(borrowed, "n2")
	if log := r.later(time.Second); len(log) != 1 || !strings.Contains(log[0], "adds [10.244.2.9/32]") {
		t.Errorf("it moves: %q", log)
	}
	r.target.Place(borrowed, "")
	log = r.later(time.Second)
	if len(log) != 2 || !strings.HasPrefix(log[0], "delete 10.244.2.9/32") || !strings.Contains(log[1], "no more") {
		t.Errorf("it goes: %q", log)
	}
	r.put(node(3, "other")) // after a boot of the host
	log = r.later(time.Second)
	if len(log) != 2 || !strings.Contains(log[0], "10.244.3.0/26") ||
		!strings.HasPrefix(log[1], "remove peer "+kerneltest.PublicKey("k3").String()) {
		t.Errorf("another key: %q", log)
	}
	r.wantWay("another key", 3, "unicast")
	r.put(node(3, ""))
	r.later(time.Second)
	r.wantWay("no key any more", 3, "throw")
}

// A peer with another key gets a packet at once, which begins a handshake, until there was one.
func TestAnotherKeyIsProvenAtOnce(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	keepalive := func() time.Duration {
		d, _ := r.kernel.WireGuard(device)
		return d.Peers[0].Keepalive
	}
	for _, c := range []struct {
		key   string
		shake bool
	}{{"second", true}, {"third", false}} {
		r.put(node(2, c.key))
		r.flush()
		if got, next := keepalive(), r.target.Next(); got != proofKeepalive || next > proofEvery {
			t.Errorf("%s: packets each %s, the next look in %s", c.key, got, next)
		}
		r.wantWay(c.key, 2, "unicast")
		r.later(proofEvery)
		if c.shake {
			r.shake(c.key)
		} else {
			r.now = r.now.Add(proof)
		}
		for range 2 { // a look, and what follows from it
			r.later(proofEvery)
		}
		if got := keepalive(); got != 0 {
			t.Errorf("%s: packets each %s afterwards", c.key, got)
		}
	}
}

// The kernel has packets follow a peer to where its authenticated ones come from: that stays while the session is
// alive, unless the Node has another address.
func TestPeersRoam(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	roam := func(to string) {
		err := r.kernel.ChangePeers(device, []wireguard.Change{{Key: kerneltest.PublicKey("k2"),
			Endpoint: netip.MustParseAddrPort(to)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, at string) {
		t.Helper()
		d, _ := r.kernel.WireGuard(device)
		if got := d.Peers[0].Endpoint.String(); got != at {
			t.Errorf("%s: packets go to %s, want %s", what, got, at)
		}
	}
	roam("198.51.100.9:7777")
	if log := r.later(10 * time.Second); len(log) > 0 {
		t.Errorf("behind a translation: %q", log)
	}
	on := felix(true)
	on.Value.(*model.FelixConfiguration).Spec.WireguardPersistentKeepAlive = &metav1.Duration{Duration: time.Minute}
	r.put(on)
	r.later(time.Second)
	want("another setting", "198.51.100.9:7777")
	r.later(rejectAfter)
	want("the session is over", "192.0.2.2:51820")
	r.shake("k2")
	roam("198.51.100.9:7777")
	r.later(10 * time.Second)
	moved := node(2, "k2")
	moved.Value.(*model.Node).Spec.BGP.IPv4Address = "192.0.2.200/24"
	r.put(moved)
	r.later(time.Second)
	want("another address in the Node", "192.0.2.200:51820")
}

// What another program changes is put back with the next comparison, also a device that was deleted.
func TestChangesOfOthersAreRepaired(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	foreign := wireguard.Change{Key: kerneltest.PublicKey("k9"), Add: []netip.Prefix{block(2)}}
	if err := r.kernel.ChangePeers(device, []wireguard.Change{foreign}); err != nil {
		t.Fatal(err)
	}
	if err := r.kernel.SetWireGuard(device, wireguard.Settings{Port: 1}); err != nil {
		t.Fatal(err)
	}
	rules, _ := r.kernel.ListRules()
	_ = r.kernel.DeleteRule(rules[0])
	r.later(10 * time.Second)
	if a := r.allowed(); len(a) != 1 || !slices.Equal(a["192.0.2.2:51820"], []netip.Prefix{block(2)}) {
		t.Errorf("the peers are %v", a)
	}
	if d, _ := r.kernel.WireGuard(device); d.Port != 51820 || d.Mark != mark ||
		d.PublicKey != kerneltest.PublicKey(ownKey) {
		t.Errorf("the device is %+v", d)
	}
	r.wantWay("a rule was deleted", 2, "unicast")
	r.kernel.DropLink(index)
	r.target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: kernel.Link{Index: index, Name: device}}})
	r.flush()
	r.wantWay("without the device", 2, "throw")
	if got := r.reason(2); got != "plain: there is no device wireguard.cali yet" {
		t.Error(got)
	}
	l := kernel.Link{Index: index, Name: device, Kind: "wireguard", Up: true}
	r.kernel.PutLink(l)
	r.target.SeeLink(l)
	r.flush()
	if r.keys[model.IPv4] == kerneltest.PublicKey(ownKey) || r.keys[model.IPv4].IsZero() {
		t.Errorf("the new device has the key %v", r.keys)
	}
	r.wantWay("a new device", 2, "unicast")
}

// When the settings end it, nothing more is encrypted, and the key is withdrawn. The device, with its peers, stays
// until the others had time to hear of it.
func TestDisable(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.put(node(1, ownKey))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	r.put(felix(false))
	if log := r.flush(); len(log) != 1 || len(r.keys) > 0 {
		t.Errorf("at once: %q, published %v", log, r.keys)
	}
	r.wantWay("at once", 2, "throw")
	if log := r.later(time.Minute); len(log) > 0 {
		t.Errorf("the key is still there: %q", log)
	}
	r.put(node(1, ""))
	if log := r.later(linger - time.Second); len(log) > 0 || r.target.Next() > time.Second {
		t.Errorf("soon after: %q", log)
	}
	log := r.later(time.Second)
	links, _ := r.kernel.ListLinks()
	routes, _ := r.kernel.ListRoutes(table)
	if len(links) != 1 || len(routes) > 0 || !strings.HasPrefix(log[0], "delete rule") ||
		log[len(log)-1] != "delete "+device {
		t.Errorf("links %v, routes %v after\n%s", links, routes, strings.Join(log, "\n"))
	}
	if rows := r.target.Rows(); len(rows) > 0 {
		t.Errorf("%+v", rows)
	}
}

// A node whose network another program makes withdraws the key of an earlier run, and then removes its device, rule and
// routes: nothing would follow the pods of other nodes any more.
func TestPolicyOnly(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.put(node(1, ownKey))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	r.wantWay("before", 2, "unicast")
	r.begin(false)
	r.host.PolicyOnly = true
	r.keys = Keys{model.IPv4: kerneltest.PublicKey(ownKey)}
	r.take()
	if r.flush(); len(r.keys) > 0 {
		t.Errorf("published %v", r.keys)
	}
	r.put(node(1, ""))
	r.later(linger)
	r.later(time.Second)
	links, _ := r.kernel.ListLinks()
	routes, _ := r.kernel.ListRoutes(table)
	rules, _ := r.kernel.ListRules()
	if len(links) != 1 || len(routes) > 0 || len(rules) > 0 {
		t.Errorf("links %v, routes %v, rules %v", links, routes, rules)
	}
}

// A node that withdraws its key is received from as before until it had time to hear of the change, unless another node
// has its addresses.
func TestPeersLeave(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	r.put(node(2, ""))
	if log := r.flush(); len(log) != 1 || !strings.HasPrefix(log[0], "replace throw 10.244.2.0/26") {
		t.Errorf("at once: %q", log)
	}
	r.later(linger - time.Millisecond)
	if d, _ := r.kernel.WireGuard(device); len(d.Peers) != 1 || len(d.Peers[0].AllowedIPs) == 0 {
		t.Errorf("soon after: %+v", d)
	}
	if next := r.target.Next(); next > time.Millisecond {
		t.Errorf("the next step is in %s", next)
	}
	r.later(time.Millisecond)
	if d, _ := r.kernel.WireGuard(device); len(d.Peers) != 0 {
		t.Errorf("in the end: %+v", d)
	}
}

// With encryption required nothing goes in plain, from the first step on.
func TestRequired(t *testing.T) {
	r := newRig(t, true, node(2, "k2"), node(3, ""))
	r.flush()
	for i, want := range map[int]string{1: "throw", 2: "unicast", 3: "unreachable"} {
		r.wantWay("required", i, want)
	}
	if got := r.reason(3); got != "refused: n3 publishes no key" {
		t.Error(got)
	}
	r.kernel.DropLink(index)
	r.target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: kernel.Link{Index: index, Name: device}}})
	r.flush()
	r.wantWay("without the device", 2, "unreachable")
}

// Whatever call fails, its reason is known, no packet is led to a peer that is not there, and the end is as without.
func TestFailuresAreRepeated(t *testing.T) {
	for _, method := range []string{"WireGuard", "SetWireGuard", "ChangePeers", "DropAllowedIPs", "ListRules",
		"AddRule", "DeleteRule", "ListRoutes", "ListLinks", "ApplyRoutes"} {
		for nth := 1; nth <= 6; nth++ {
			r := newRig(t, false, node(2, "k2"), node(3, ""))
			r.kernel.Fail(method, nth, errors.New("no room"))
			step := func() {
				_, failures, err := r.target.Flush()
				if failures > 0 && !strings.Contains(fmt.Sprint(r.target.Notices()), "no room") {
					t.Errorf("%s %d: %d failures without a reason, %v", method, nth, failures, err)
				}
				if r.way(2) == "unicast" && !slices.Contains(r.allowed()["192.0.2.2:51820"], block(2)) {
					t.Errorf("%s %d: packets to n2 are led to nobody", method, nth)
				}
				r.now = r.now.Add(r.target.Next())
			}
			for range 4 {
				step()
			}
			_ = r.kernel.ShakeHands(device, kerneltest.PublicKey("k2"), r.now)
			r.put(node(3, "k3"))
			r.target.Place(netip.MustParsePrefix("10.244.2.9/32"), "n3")
			for range 4 {
				step()
			}
			r.target.Place(netip.MustParsePrefix("10.244.2.9/32"), "")
			for range 80 {
				step()
			}
			if a := r.allowed(); len(a) != 2 || len(a["192.0.2.2:51820"]) != 1 || len(a["192.0.2.3:51820"]) != 1 {
				t.Errorf("%s %d: the peers are %v", method, nth, a)
			}
			for i, want := range map[int]string{1: "throw", 2: "unicast", 3: "unicast"} {
				r.wantWay(fmt.Sprint(method, " ", nth), i, want)
			}
			for _, row := range r.target.Driver.Rows() {
				if row.Phase != reconcile.Applied {
					t.Errorf("%s %d: %+v", method, nth, row)
				}
			}
		}
	}
}

// A peer that the kernel refuses keeps no packets to others from being encrypted, and gets none itself.
func TestRefusedPeer(t *testing.T) {
	r := newRig(t, false, node(2, "k2"), node(3, "k3"))
	r.kernel.RefusePeer(kerneltest.PublicKey("k3"))
	flush := func(d time.Duration) (failures int) {
		r.now = r.now.Add(d)
		_, failures, _ = r.target.Flush()
		return failures
	}
	if flush(0) == 0 {
		t.Error("no failure")
	}
	r.shake("k2")
	for range 20 {
		flush(time.Second)
	}
	r.wantWay("taken", 2, "unicast")
	r.wantWay("refused", 3, "throw")
	if got := fmt.Sprint(r.target.Notices()); !strings.Contains(got, "invalid argument") {
		t.Error(got)
	}
	r.kernel.RefusePeer(wireguard.Key{})
	for range 80 {
		flush(time.Second)
	}
	r.wantWay("taken in the end", 3, "unicast")
}

// Required encryption is none for a family that is not switched on, and a notice says so where there are pods of it.
func TestRequiredOfAFamilyThatIsOff(t *testing.T) {
	r := newRig(t, true, node(2, "k2"))
	open := func() (subjects []string) {
		r.flush()
		for _, n := range r.target.Notices() {
			if strings.HasPrefix(n.Subject, "--wireguard-required") {
				subjects = append(subjects, n.Subject)
			}
		}
		return subjects
	}
	if got := open(); len(got) > 0 {
		t.Errorf("all families with pools are encrypted: %q", got)
	}
	pool := &model.IPPool{}
	pool.Spec.CIDR = "fd10::/48"
	r.put(model.NewObject(model.ResourceKey(model.KindIPPool, "p6"), pool))
	if got := open(); !slices.Equal(got, []string{"--wireguard-required (IPv6)"}) {
		t.Errorf("with a pool of IPv6: %q", got)
	}
	r.put(felix(false))
	if got := open(); len(got) != 2 {
		t.Errorf("switched off: %q", got)
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1288490189: "1.2 GiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// A prefix that holds what this host needs has no way, as soon as that is known, and the notice says why.
func TestRefusedByTheRoutes(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	r.wantWay("a block", 2, "unicast")
	r.refused = map[netip.Prefix]string{block(2): "10.244.2.1 is a gateway of this host"}
	r.target.DecideAgain()
	r.flush()
	if d, _ := r.kernel.WireGuard(device); slices.Contains(d.Peers[0].AllowedIPs, block(2)) {
		t.Errorf("the peer may have it: %+v", d)
	}
	routes, _ := r.kernel.ListRoutes(table)
	if slices.ContainsFunc(routes, func(k kernel.Route) bool { return k.Dst == block(2) }) {
		t.Errorf("the routes are %v", routes)
	}
	if list := r.target.Notices(); !slices.ContainsFunc(list, func(n reconcile.Notice) bool {
		return strings.Contains(n.Text, "10.244.2.1 is a gateway of this host")
	}) {
		t.Errorf("the notices are %+v", list)
	}
}

// An address of a workload of this host stays here, whichever node a block of IPAM names, from the claim on.
func TestOwnWorkloadsStay(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	pod := netip.MustParsePrefix("10.244.1.5/32")
	r.connect()
	r.target.input.here = []local{{pod, "cali1"}}
	r.target.Place(pod, "n2")
	r.flush()
	if d, _ := r.kernel.WireGuard(device); slices.Contains(d.Peers[0].AllowedIPs, pod) {
		t.Errorf("n2 may send as the workload: %+v", d)
	}
	routes, _ := r.kernel.ListRoutes(table)
	if i := slices.IndexFunc(routes, func(k kernel.Route) bool { return k.Dst == pod }); i < 0 ||
		routes[i].Type != kernel.Throw {
		t.Errorf("the routes are %v", routes)
	}
}

// Of IPv6 only what a longer route would encrypt has a throw route: the packet filter of Linux 7.3 finds no way back to
// an address that has one.
func TestThrowRoutesOfIPv6(t *testing.T) {
	r := newRig(t, false)
	r.kernel.PutLink(kernel.Link{Index: 5, Name: "wg-v6.cali", Kind: "wireguard", MTU: 1420, Up: true, Running: true})
	p := &model.IPPool{}
	p.Spec.CIDR = "fd10::/64"
	f, n := felix(true), node(2, "k2")
	f.Value.(*model.FelixConfiguration).Spec.WireguardEnabledV6 = new(true)
	n.Value.(*model.Node).Spec.BGP.IPv6Address = "fd01::2/64"
	n.Value.(*model.Node).Status.WireguardPublicKeyV6 = kerneltest.PublicKey("k6").String()
	for _, o := range []*model.Object{f, n, model.NewObject(model.ResourceKey(model.KindIPPool, "p6"), p)} {
		r.set[o.Key] = o
	}
	r.start(false, true)
	for prefix, name := range map[string]string{"fd10::/122": "n1", "fd10::40/122": "n2", "fd10::41/128": "n1",
		"fd10::80/122": "n3"} {
		r.target.Place(netip.MustParsePrefix(prefix), name)
	}
	r.flush()
	if err := r.kernel.ShakeHands("wg-v6.cali", kerneltest.PublicKey("k6"), r.now); err != nil {
		t.Fatal(err)
	}
	r.later(proof)
	r.later(time.Second)
	got := map[string]string{}
	routes, _ := r.kernel.ListRoutes(table)
	for _, k := range routes {
		if k.Dst.Addr().Is6() {
			got[k.Dst.String()] = k.Type.String()
		}
	}
	if want := map[string]string{"fd10::40/122": "unicast", "fd10::41/128": "throw"}; !maps.Equal(got, want) {
		t.Errorf("the routes are %v, want %v", got, want)
	}
}

// A workload whose interface is not there, and one that claims a node's address, take nothing from other nodes: what
// they claim stays encrypted.
func TestClaimsWithoutAnInterface(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	claim := func(networks ...string) *model.Object {
		w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1", InterfaceName: "cali1",
			IPNetworks: networks}}
		return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"}, w)
	}
	way := func(p string) string {
		routes, _ := r.kernel.ListRoutes(table)
		i := slices.IndexFunc(routes, func(k kernel.Route) bool { return k.Dst == netip.MustParsePrefix(p) })
		if i < 0 {
			return "none"
		}
		return routes[i].Type.String()
	}
	r.put(claim("10.244.2.5/32", "192.0.2.2/32"))
	if log := r.later(time.Second); len(log) > 0 {
		t.Errorf("without an interface: %q", log)
	}
	r.connect()
	r.flush()
	d, _ := r.kernel.WireGuard(device)
	if way("10.244.2.5/32") != "throw" || way("192.0.2.2/32") != "none" ||
		!slices.Contains(d.Peers[0].AllowedIPs, netip.MustParsePrefix("192.0.2.2/32")) {
		t.Errorf("with it: the pod %s, the node %s, %+v", way("10.244.2.5/32"), way("192.0.2.2/32"), d.Peers)
	}
	_ = r.kernel.DeleteLink(9)
	r.target.LoseLink("cali1")
	if r.flush(); way("10.244.2.5/32") != "none" {
		t.Errorf("without it again: %s", way("10.244.2.5/32"))
	}
}

// A device that could not be read keeps its key, also at a start.
func TestAFailedReadKeepsTheKey(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	before, _ := r.kernel.WireGuard(device)
	r.start(false, true)
	r.kernel.Fail("WireGuard", r.kernel.Calls("WireGuard")+1, errors.New("EMFILE"))
	if _, _, err := r.target.Flush(); err == nil {
		t.Error("no failure")
	}
	r.kernel.Heal()
	r.now = r.now.Add(5 * time.Millisecond) // the device is read again after a second, and an event comes before
	_, _, _ = r.target.Flush()
	if after, _ := r.kernel.WireGuard(device); before.PublicKey != after.PublicKey {
		t.Errorf("the key is %s, and was %s", after.PublicKey, before.PublicKey)
	}
	r.later(time.Second)
	if after, _ := r.kernel.WireGuard(device); before.PublicKey != after.PublicKey || len(after.Peers) != 1 {
		t.Errorf("afterwards: %+v", after)
	}
}

// Threads are switched once there is a peer, as the kernel wants it; a kernel without them has a notice.
func TestThreads(t *testing.T) {
	r := newRig(t, false, node(3, ""))
	threaded := func(on bool) {
		o := felix(true)
		o.Value.(*model.FelixConfiguration).Spec.WireguardThreadingEnabled = &on
		r.put(o)
	}
	want := func(what string, threads wireguard.Threads) {
		t.Helper()
		if d, _ := r.kernel.WireGuard(device); d.Threads != threads {
			t.Errorf("%s: %v, want %v", what, d.Threads, threads)
		}
	}
	threaded(true)
	r.flush()
	r.later(10 * time.Second)
	want("without a peer", wireguard.ThreadsOff)
	r.put(node(3, "k3"))
	r.flush()
	r.later(time.Second)
	want("with a peer", wireguard.ThreadsOn)
	r.later(proof)
	r.later(0)
	if log := r.later(time.Minute); len(log) > 0 {
		t.Errorf("without a change: %q", log)
	}
	if err := r.kernel.SetThreads(device, false); err != nil {
		t.Fatal(err)
	}
	r.later(10 * time.Second)
	want("another program switches them off", wireguard.ThreadsOn)
	threaded(false)
	r.flush()
	r.later(10 * time.Second)
	want("switched off", wireguard.ThreadsOff)
	if err := r.kernel.SetThreads(device, true); err != nil {
		t.Fatal(err)
	}
	r.put(felix(true))
	r.flush()
	r.later(10 * time.Second)
	want("not set: as the kernel has it", wireguard.ThreadsOn)
	if err := r.kernel.ForgetThreads(device); err != nil {
		t.Fatal(err)
	}
	r.later(10 * time.Second)
	threaded(true)
	r.flush()
	r.later(10 * time.Second)
	if list := r.target.Notices(); !slices.ContainsFunc(list, func(n reconcile.Notice) bool {
		return n.Subject == "wireguardThreadingEnabled"
	}) {
		t.Errorf("the notices are %+v", list)
	}
}
