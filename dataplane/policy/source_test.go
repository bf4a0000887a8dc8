package policy

import (
	"net/netip"
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
