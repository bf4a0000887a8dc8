package speaker

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/model"
)

// between returns the desired state of one of the nodes "manx" and "other" when a BGPPeer of one names an address and a
// port of the other. No listen port is configured.
func between(me string, addrs map[string]netip.Addr, namer, named string, port uint16) bgp.Desired {
	off := false
	objects := []*model.Object{
		model.NewObject(model.ResourceKey(model.KindBGPConfiguration, "default"),
			&model.BGPConfiguration{Spec: model.BGPConfigurationSpec{NodeToNodeMeshEnabled: &off}}),
		model.NewObject(model.ResourceKey(model.KindBGPPeer, "p"), &model.BGPPeer{Spec: model.BGPPeerSpec{
			Node: namer, PeerIP: netip.AddrPortFrom(addrs[named], port).String(),
			ASNumber: numorstring.ASNumber(bgp.DefaultAS)}}),
	}
	for name, addr := range addrs {
		objects = append(objects, model.NewObject(model.ResourceKey(model.KindNode, name),
			&model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: addr.String() + "/24"}}}))
	}
	d := bgp.Compute(bgp.Input{Reader: model.NewSet(objects...), Node: me})
	d.Originated = []bgp.Origin{{Prefix: netip.PrefixFrom(addrs[me], 32),
		LocalPref: bgp.MaxPriority - bgp.NormalPriority}}
	return d
}

// TestPortOfAnotherNode: both nodes listen on 179, and the BGPPeer names the unused port 1790. In calico/node the
// reverse of the BGPPeer, which connects to 179, brings the session up, for any order of the addresses.
func TestPortOfAnotherNode(t *testing.T) {
	const low, high = "10.77.0.1", "10.77.0.2"
	for _, x := range []struct{ manx, other string }{{low, high}, {high, low}} {
		for _, namer := range []string{"manx", "other"} {
			for _, peer := range []string{"Manx", "BIRD"} {
				t.Run(fmt.Sprintf("%s beside %s, the BGPPeer of %s names the port", x.manx, peer, namer),
					func(t *testing.T) {
						t.Parallel()
						n := newBirdNet(t, []string{x.manx + "/24"}, []string{x.other + "/24"})
						addrs := map[string]netip.Addr{"manx": ip(x.manx), "other": ip(x.other)}
						named := map[string]string{"manx": "other", "other": "manx"}[namer]
						here := startChild(t, n.manx)
						if peer == "BIRD" {
							n.start(asCalico(x.other, x.manx, namer == "other"))
						} else {
							there := startChild(t, n.bird)
							there.set(between("other", addrs, namer, named, 1790))
							defer there.await("the session on the other side",
								func() bool { return there.sessions[ip(x.manx)].Phase == PhaseEstablished })
						}
						here.set(between("manx", addrs, namer, named, 1790))
						here.await("the session",
							func() bool { return here.sessions[ip(x.other)].Phase == PhaseEstablished })
						if peer == "BIRD" {
							n.await("show protocols all p", "Established")
						}
					})
			}
		}
	}
}

// asCalico is calico/node's configuration for a BGPPeer of one node: a session that connects at either end. It has the
// port only where the BGPPeer names it.
func asCalico(local, neighbor string, named bool) string {
	port := ""
	if named {
		port = " port 1790"
	}
	return strings.Replace(birdHead, "router id 10.77.0.2", "router id "+local, 1) +
		fmt.Sprintf("protocol bgp p from common { local %s as 64512; neighbor %s%s as 64512; multihop; ipv4 { import "+
			"all; export none; add paths on; }; }\n", local, neighbor, port)
}
