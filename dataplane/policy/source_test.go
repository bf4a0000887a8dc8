package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// A workload's packet to a loopback address would reach programs that listen at the host's 127.0.0.1.
func TestWorkloadsDoNotReachLoopbackAddresses(t *testing.T) {
	c := Build(Config{Node: testNode}, model.NewSet(pod("default", "w", "10.0.0.1", nil)), nil)
	for _, x := range []struct {
		iface, destination string
		want               bool
	}{
		{"caliw", "127.0.0.1", false}, {"caliw", "127.255.255.254", false}, {"caliother", "127.0.0.1", false},
		{"caliw", "126.255.255.255", true}, {"caliw", "128.0.0.0", true}, {"lo", "127.0.0.1", true},
		{"eth0", "127.0.0.1", true}, // the kernel drops it there
	} {
		p := ruleset.Packet{In: x.iface, Source: netip.MustParseAddr("10.0.0.1"),
			Destination: netip.MustParseAddr(x.destination), Protocol: 6, SourcePort: 1025, DestinationPort: 80}
		if got := c.Table().Eval(nil, ruleset.Prerouting, p, nil).Accepted(); got != x.want {
			t.Errorf("from %s to %s: %v, want %v", x.iface, x.destination, got, x.want)
		}
	}
}

// Fragments of workloads are checked before the kernel keeps them: their rate in the workload's chain, then their
// source.
func TestFragmentsOfWorkloads(t *testing.T) {
	c := Build(Config{Node: testNode, Fragments: Fragments{70, 9000}},
		model.NewSet(pod("default", "w", "10.0.0.1", nil)), nil)
	own, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.9")
	host := &ruleset.Host{ReturnInterface: func(a netip.Addr) string {
		return map[netip.Addr]string{own: "caliw", other: "eth0"}[a]
	}}
	for _, x := range []struct {
		iface string
		from  netip.Addr
		want  string // the chain that drops it
	}{{"caliw", own, ""}, {"caliw", other, sourceCheck}, {"caliother", own, early}, {"eth0", other, ""}} {
		p := ruleset.Packet{In: x.iface, Source: x.from, Destination: netip.MustParseAddr("192.0.2.1"), Protocol: 17,
			Fragment: true}
		var trace ruleset.Trace
		got := c.Table().Eval(host, ruleset.Prerouting, p, &trace)
		limited := slices.ContainsFunc(trace.Steps, func(s ruleset.Step) bool { return s.Chain == "early/caliw" })
		if got.Chain != x.want || limited != (x.iface == "caliw") {
			t.Errorf("from %s by %s: dropped by %q, limited: %v\n%s", x.from, x.iface, got.Chain, limited, &trace)
		}
		p.Fragment = false
		if got := c.Table().Eval(host, ruleset.Prerouting, p, &trace); got.Chain == early {
			t.Errorf("a whole packet from %s is dropped as a fragment", x.iface)
		}
	}
	if b := c.Table().Chain("prerouting-source").Base; b.Priority >= -400 {
		t.Errorf("fragments are checked at %d, when the kernel keeps them", b.Priority)
	}
	rules := c.Table().Chain("early/caliw").Rules
	if len(rules) != 2 || rules[0].Over != (ruleset.Limit{Packets: 70, Burst: 70}) ||
		rules[1].Over != (ruleset.Limit{Bytes: 9000}) {
		t.Errorf("the limits are %+v", rules)
	}
	c.Update(model.NewSet())
	if c.Table().Chain("early/caliw") != nil {
		t.Error("the chain of a workload that left stays")
	}
}

// With the address of its node, a workload's packets would come from a configured BGP peer, or from one end of a BFD
// session or of a tunnel.
func TestPacketsOfTheNodeItselfAreNotBorrowed(t *testing.T) {
	own, node, peer := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("172.16.0.1"),
		netip.MustParseAddr("172.16.0.2")
	felix := &model.FelixConfiguration{}
	felix.Spec.VXLANPort, felix.Spec.WireguardListeningPort = new(4790), new(51900)
	objects := model.NewSet(pod("default", "w", "10.0.0.1", nil), nodeAt(1, "172.16.0.1/24"),
		nodeAt(2, "172.16.0.2/24"), model.NewObject(model.ResourceKey(model.KindIPPool, "pool"),
			&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.0.0.0/16", NATOutgoing: true}}),
		model.NewObject(model.ResourceKey(model.KindBGPPeer, "tor"),
			&model.BGPPeer{Spec: model.BGPPeerSpec{PeerIP: "192.0.2.9:1793"}}),
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))
	ports := func(name string, port uint16) *model.Object {
		b := &model.BGPConfiguration{}
		b.Spec.ListenPort = port
		return model.NewObject(model.ResourceKey(model.KindBGPConfiguration, name), b)
	}
	objects = model.NewSet(append(slices.Collect(maps.Values(objects)), ports("default", 1790), ports("node.b", 1791),
		ports("node.c", 1791), ports("of-nobody", 1792))...)
	c := Build(Config{Node: testNode}, objects, nil)
	host := &ruleset.Host{SourceFor: func(string, netip.Addr) netip.Addr { return node }}
	check := func(name string, p ruleset.Packet, borrowed bool) {
		t.Helper()
		want := own
		if borrowed {
			want = node
		}
		for _, iface := range []string{"caliw", "eth1"} { // of another node's workload
			p.In, p.Out, p.Source = iface, "eth0", own
			if got := c.Table().Eval(host, ruleset.Postrouting, p, nil); !got.Accepted() || got.Packet.Source != want {
				t.Errorf("%s, by %s: %+v, want from %s", name, iface, got, want)
			}
		}
	}
	router := netip.MustParseAddr("192.0.2.1")
	for _, x := range []struct {
		name        string
		destination netip.Addr
		protocol    uint8
		port        uint16
		borrowed    bool // translated
	}{
		{"BGP to a node", peer, 6, 179, false},
		{"BGP to a router", router, 6, 179, false},
		{"the cluster's listenPort", peer, 6, 1790, false},
		{"a node's listenPort", router, 6, 1791, false},
		{"the port of an object which is ignored", peer, 6, 1792, true},
		{"the port of a peer", router, 6, 1793, false},
		{"another port", peer, 6, 80, true},
		{"another protocol", peer, 17, 179, true},
		{"BFD", router, 17, 3784, false},
		{"multihop BFD to a node", peer, 17, 4784, false},
		{"VXLAN", router, 17, 4789, false},
		{"the cluster's VXLAN", router, 17, 4790, false},
		{"etcd of a node", peer, 6, 2380, false},
		{"etcd elsewhere", router, 6, 2380, true},
		{"WireGuard of a node", peer, 17, 51900, false},
		{"the standard port of WireGuard", peer, 17, 51820, true},
		{"WireGuard elsewhere", router, 17, 51900, true},
		{"ICMP", router, 1, 0, true},
		{"SCTP", router, 132, 7, true},
		{"GRE", router, 47, 0, false},
		{"AH", router, 51, 0, false},
		{"VRRP", router, 112, 0, false},
	} {
		check(x.name, ruleset.Packet{Destination: x.destination, Protocol: x.protocol, SourcePort: 1025,
			DestinationPort: x.port}, x.borrowed)
	}
	for port, borrowed := range map[uint16]bool{179: false, 1793: false, 511: false, 512: true, 1794: true} {
		check(fmt.Sprint("from port ", port), ruleset.Packet{Destination: router, Protocol: 6, SourcePort: port,
			DestinationPort: 40000}, borrowed)
	}
}

// A change of one BGPConfiguration reads no other, and a port counts as long as one of them has it.
func TestAListenPortCostsOnePort(t *testing.T) {
	r := &countingReader{Set: model.Set{}}
	put := func(name string, port uint16) *model.Object {
		b := &model.BGPConfiguration{}
		b.Spec.ListenPort = port
		o := model.NewObject(model.ResourceKey(model.KindBGPConfiguration, name), b)
		r.Set[o.Key] = o
		return o
	}
	for i := range 1000 {
		put(fmt.Sprintf("node.%d", i), 1000+uint16(i))
	}
	c := Build(Config{Node: testNode}, r, nil)
	c.Table().TakeChanges()
	listed := func(port uint16) bool { return c.Table().Contains(bgpPortsSet, portElement(port)) }
	for _, step := range []struct {
		name string
		node string
		port uint16 // 0: the object goes
		all  bool
		want map[uint16]bool
	}{
		{"another port", "node.7", 2000, false, map[uint16]bool{1007: false, 2000: true}},
		{"a second node", "node.8", 2000, false, map[uint16]bool{1008: false, 2000: true}},
		{"the first goes", "node.7", 0, false, map[uint16]bool{2000: true}},
		{"the second goes, unnoticed at first", "node.8", 0, true, map[uint16]bool{2000: false, 1009: true}},
		{"the port of nodes without one", "node.9", 179, false, map[uint16]bool{1009: false, 179: true}},
		{"its object goes", "node.9", 0, false, map[uint16]bool{179: true}},
	} {
		o := put(step.node, step.port)
		if step.port == 0 {
			delete(r.Set, o.Key)
		}
		r.read = 0
		if step.all {
			c.Update(r)
		} else if c.Update(r, o.Key); r.read > 1 {
			t.Errorf("%s: %d objects are read", step.name, r.read)
		}
		for port, want := range step.want {
			if got := listed(port); got != want {
				t.Errorf("%s: port %d counts: %t, want %t", step.name, port, got, want)
			}
		}
	}
}

// An ICMP error that quotes a packet of a known connection is related to it for the kernel, whoever sends it.
func TestErrorsOfWorkloadsAreAboutTheirOwnConnections(t *testing.T) {
	addr := netip.MustParseAddr
	w := pod("default", "w", "10.0.0.1", map[string]string{"speaks": "bgp"})
	spec := &w.Value.(*model.WorkloadEndpoint).Spec
	spec.IPNetworks = append(spec.IPNetworks, "fd00::1/128")
	spec.AllowSpoofedSourcePrefixes = []string{"192.0.2.0/24"}
	spoofing := &model.FelixConfiguration{}
	spoofing.Spec.WorkloadSourceSpoofing = "Any"
	peer := func(selector string) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindBGPPeer, "local"),
			&model.BGPPeer{Spec: model.BGPPeerSpec{LocalWorkloadSelector: selector, ASNumber: 65000}})
	}
	objects := model.NewSet(w, pod("default", "v", "10.0.0.2", nil))
	c := Build(Config{Node: testNode}, objects, nil)
	own4, own6, other4, other6 := addr("10.0.0.1"), addr("fd00::1"), addr("10.0.0.2"), addr("fd00::2")
	outside4, outside6 := addr("192.0.2.1"), addr("2001:db8::1")
	check := func(t *testing.T, routes bool) {
		t.Helper()
		for _, x := range []struct {
			name     string
			protocol uint8
			kind     uint8
			client   netip.Addr
			server   netip.Addr // behind translation
			want     bool
		}{
			{"about its own connection", 1, 3, own4, outside4, true},
			{"about its own connection, IPv6", 58, 2, own6, outside6, true},
			{"as the server", 1, 3, outside4, own4, true},
			{"as the server, IPv6", 58, 1, outside6, own6, true},
			{"about others", 1, 3, other4, outside4, routes},
			{"about others, IPv6", 58, 1, outside6, other6, routes},
			{"redirect", 1, 5, own4, outside4, false},
			{"of a helper", 17, 0, other4, outside4, true},
		} {
			p := ruleset.Packet{In: "caliw", Out: "caliv", Source: own4, Destination: other4, Protocol: x.protocol,
				ICMPType: x.kind, State: ruleset.ConnRelated, ConnSource: x.client, ConnReplySource: x.server}
			if x.client.Is6() {
				p.Source, p.Destination = own6, other6
			}
			if got := c.Table().Eval(nil, ruleset.Forward, p, nil); got.Accepted() != x.want {
				t.Errorf("%s: %+v, want %t", x.name, got, x.want)
			}
			if p.In, p.Out = "eth0", "caliw"; !c.Table().Eval(nil, ruleset.Forward, p, nil).Accepted() {
				t.Errorf("%s does not get in to the workload", x.name)
			}
		}
	}
	update := func(o *model.Object) {
		objects[o.Key] = o
		c.Update(objects, o.Key)
	}
	check(t, false)
	update(peer("speaks == 'ospf'"))
	check(t, false)
	update(peer("speaks == 'bgp'"))
	check(t, true)
	update(peer(""))
	check(t, false)
	update(model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), spoofing))
	check(t, true)
}

// From outside, a packet with the address of a workload of this node would be taken for that workload's by policy.
func TestPacketsFromOutsideWithAnAddressOfThisNode(t *testing.T) {
	addr := netip.MustParseAddr
	w := pod("default", "w", "10.0.0.1", nil)
	spec := &w.Value.(*model.WorkloadEndpoint).Spec
	spec.IPNetworks = append(spec.IPNetworks, "fd00::1/128")
	claim := pod("default", "claim", "192.0.2.1", nil) // of an address to which no route leads through its interface
	links := map[string][]netip.Addr{"eth0": {addr("172.16.0.1"), addr("fd16::1"), addr("fd16::9"), addr("fe80::1")},
		"lo": {addr("::1")}}
	host := &ruleset.Host{ReturnInterface: func(a netip.Addr) string {
		if a == addr("10.0.0.1") || a == addr("fd00::1") {
			return "caliw"
		}
		return "eth0"
	}, IsLocal: func(a netip.Addr) bool { return a == addr("fd16::1") || a == addr("fd16::2") }}
	objects := model.NewSet(w, claim)
	for _, trusted := range []bool{false, true} {
		c := Build(Config{Node: testNode, TrustOutside: trusted}, objects, links)
		for _, x := range []struct {
			name, iface, source, destination string
			want                             bool
		}{
			{"a workload", "eth0", "10.0.0.1", "10.0.0.2", trusted},
			{"a workload, IPv6", "eth0", "fd00::1", "fd00::2", trusted},
			{"a workload, through a tunnel", "tunl0", "10.0.0.1", "10.0.0.2", trusted},
			{"the workload itself", "caliw", "10.0.0.1", "10.0.0.2", true},
			{"the host itself", "lo", "fd16::1", "fd16::1", true},
			{"the host from outside", "eth0", "fd16::1", "fd00::1", trusted},
			{"an address that just left the host", "eth0", "fd16::9", "fd00::1", true},
			{"the host's own to a group", "eth0", "fd16::1", "ff02::fb", true},
			{"a link-local address", "eth0", "fe80::1", "ff02::1", true},
			{"another workload", "eth0", "10.0.0.9", "10.0.0.1", true},
			{"an address that a workload claims without a route", "eth0", "192.0.2.1", "10.0.0.1", true},
			{"nobody", "eth0", "::", "ff02::1", true},
		} {
			p := ruleset.Packet{In: x.iface, Source: addr(x.source), Destination: addr(x.destination), Protocol: 17}
			if got := c.Table().Eval(host, ruleset.Prerouting, p, nil); got.Accepted() != x.want {
				t.Errorf("%s, trusted %t: %+v", x.name, trusted, got)
			}
		}
	}
	c := Build(Config{Node: testNode}, objects, links)
	delete(objects, w.Key)
	c.Update(objects, w.Key)
	c.SetInterfaces(map[string][]netip.Addr{"eth0": {addr("fd16::2")}})
	c.Settle()
	for source, want := range map[string]bool{"fd00::1": true, "fd16::1": true, "fd16::2": false} {
		p := ruleset.Packet{In: "eth0", Source: addr(source), Destination: addr("fd00::9"), Protocol: 17}
		if got := c.Table().Eval(host, ruleset.Prerouting, p, nil).Accepted(); got != want {
			t.Errorf("from %s after the change: %t", source, got)
		}
	}
}
