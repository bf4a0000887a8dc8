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

// With the address of its node, a workload's connection to the BGP port of another node would come from a configured
// peer.
func TestBGPOfWorkloadsIsNotMasqueraded(t *testing.T) {
	own, node, peer := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("172.16.0.1"),
		netip.MustParseAddr("172.16.0.2")
	objects := model.NewSet(pod("default", "w", "10.0.0.1", nil), nodeAt(1, "172.16.0.1/24"),
		nodeAt(2, "172.16.0.2/24"), model.NewObject(model.ResourceKey(model.KindIPPool, "pool"),
			&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.0.0.0/16", NATOutgoing: true}}))
	ports := func(name string, port uint16) *model.Object {
		b := &model.BGPConfiguration{}
		b.Spec.ListenPort = port
		return model.NewObject(model.ResourceKey(model.KindBGPConfiguration, name), b)
	}
	objects = model.NewSet(append(slices.Collect(maps.Values(objects)), ports("default", 1790), ports("node.b", 1791),
		ports("node.c", 1791), ports("of-nobody", 1792))...)
	c := Build(Config{Node: testNode}, objects, nil)
	host := &ruleset.Host{SourceFor: func(string, netip.Addr) netip.Addr { return node },
		IsLocal: func(a netip.Addr) bool { return a == node }}
	for _, x := range []struct {
		name        string
		destination netip.Addr
		protocol    uint8
		port        uint16
		want        netip.Addr
	}{
		{"BGP to a node", peer, 6, 179, own},
		{"the cluster's listenPort", peer, 6, 1790, own},
		{"a node's listenPort", peer, 6, 1791, own},
		{"that of an object which is ignored", peer, 6, 1792, node},
		{"another port", peer, 6, 80, node},
		{"another protocol", peer, 17, 179, node},
		{"BGP to a router outside", netip.MustParseAddr("192.0.2.1"), 6, 179, node},
	} {
		p := ruleset.Packet{In: "caliw", Out: "eth0", Source: own, Destination: x.destination, Protocol: x.protocol,
			SourcePort: 1025, DestinationPort: x.port}
		if got := c.Table().Eval(host, ruleset.Postrouting, p, nil); !got.Accepted() || got.Packet.Source != x.want {
			t.Errorf("%s: %+v, want from %s", x.name, got, x.want)
		}
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
