package bgp

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

func TestDrainFollowsTheNodesAnnotations(t *testing.T) {
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        Drain
	}{
		{"in service", nil, DrainNone},
		{"ordered", map[string]string{model.AnnotationDrain: "x"}, DrainDraining},
		{"ordered and withdrawn", map[string]string{model.AnnotationDrain: "x", model.AnnotationDrained: "y"},
			DrainWithdrawn},
		{"called back", map[string]string{model.AnnotationDrained: "y"}, DrainDraining},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &model.Node{}
			n.Annotations = tc.annotations
			c := &cluster{me: &node{object: n}}
			if got := c.drain(); got != tc.want {
				t.Errorf("drain() = %q, want %q", got, tc.want)
			}
		})
	}
}

// A drained peer is named by an address; a BGPPeer's name means all its sessions.
func TestDrainOfPeersFollowsTheNodesAnnotations(t *testing.T) {
	lines := []string{v4node("n2", "10.0.0.2"),
		`peer tor-1 {"peerIP":"10.0.0.100","asNumber":65000}`, `peer tor-2 {"peerIP":"10.0.0.101","asNumber":65000}`}
	objects := world(t, append(lines, v4node("n1", "10.0.0.1"))...)
	me := model.Get[model.Node](model.NewSet(objects...), model.ResourceKey(model.KindNode, "n1"))
	me.Annotations = map[string]string{model.AnnotationDrainPeers: "10.0.0.100, ::ffff:10.0.0.2, 10.0.0.99, tor-2",
		model.AnnotationDrainedPeers: "10.0.0.2,10.0.0.101"}
	d := Compute(Input{Reader: model.NewSet(objects...), Node: "n1"})
	have := map[string]model.DrainPhase{}
	for _, s := range d.Sessions {
		have[s.Address.String()] = s.Drain
		if s.IsDrained() != (s.Drain != model.InService) {
			t.Errorf("%s: %q", s.Address, s.Drain)
		}
	}
	want := map[string]model.DrainPhase{"10.0.0.2": model.Drained, "10.0.0.100": model.Draining,
		"10.0.0.101": model.InService}
	if !maps.Equal(have, want) {
		t.Errorf("have %v, want %v", have, want)
	}
	wantNotices(t, d,
		`Node/n1: 10.0.0.99 is to be drained, but is no peer of this node: manxctl node undrain n1 --peer 10.0.0.99 ends that`,
		`Node/n1: annotation manx.io/drain-peers: "tor-2" is ignored: want the address of a BGP peer`)

	addresses := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	drain, err := PeersToDrain(d.Sessions, []string{"tor-2", "10.0.0.2", "::ffff:10.0.0.2"})
	if err != nil || !slices.Equal(drain, addresses("10.0.0.2", "10.0.0.101")) {
		t.Errorf("to drain: %v, %v", drain, err)
	}
	const peers = `the peers are 10.0.0.100 (tor-1), 10.0.0.101 (tor-2), 10.0.0.2 (mesh)`
	if _, err := PeersToDrain(d.Sessions, []string{"10.0.0.99"}); err == nil ||
		err.Error() != `there is no peer "10.0.0.99": `+peers {
		t.Errorf("to drain: %v", err)
	}
	undrain, err := PeersToUndrain(d.Sessions, addresses("10.0.0.99"), []string{"10.0.0.99", "tor-1"})
	if err != nil || !slices.Equal(undrain, addresses("10.0.0.99", "10.0.0.100")) {
		t.Errorf("to undrain: %v, %v", undrain, err)
	}
}
