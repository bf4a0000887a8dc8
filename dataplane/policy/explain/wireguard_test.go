package explain

import (
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
)

// With wireguardHostEncryptionEnabled packets to a node itself are encrypted, but for BGP and the datastore.
func TestEncryptedWayToAHost(t *testing.T) {
	for _, c := range []struct {
		source string
		port   uint16
		on     bool
		next   string
	}{
		{"pod/default/a", 10250, true, "dev wireguard.cali"},
		{"pod/default/a", 10250, false, "the node's other routes"},
		{"pod/default/a", 2379, true, "dev wireguard.cali"}, {"node/n1", 10250, true, "dev wireguard.cali"},
		{"node/n1", 179, true, "the node's other routes"}, {"node/n1", 2380, true, "the node's other routes"},
	} {
		one, two := node("n1", model.NodeBGPSpec{IPv4Address: "10.0.0.1/24"}),
			node("n2", model.NodeBGPSpec{IPv4Address: "10.0.0.2/24"})
		one.Value.(*model.Node).Status.WireguardPublicKey = "k1"
		two.Value.(*model.Node).Status.WireguardPublicKey = "k2"
		felix := &model.FelixConfiguration{}
		felix.Spec.WireguardEnabled, felix.Spec.WireguardHostEncryptionEnabled = new(true), &c.on
		answer, err := Explain(Computed(model.NewSet(one, two, pod("a", "n1", podA4+"/32"),
			model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix)), policy.Config{}),
			Question{Source: c.source, Destination: "node/n2", Flow: Flow{Protocol: protoTCP, Port: c.port}})
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Routes[0].Next; got != c.next {
			t.Errorf("%+v: %q, %v", c, got, answer.Notes)
		}
	}
}

// An explanation says whether the packet is encrypted, and why it is not if one of the nodes encrypts.
func TestEncryptedWay(t *testing.T) {
	for _, c := range []struct {
		rule     string
		own, far string // keys
		next     string
		note     string
	}{
		{"no keys", "", "", "via 10.0.0.2", ""},
		{"both", "k1", "k2", "dev wireguard.cali", "WireGuard encrypts it between the nodes n1 and n2, which both " +
			"publish a key"},
		{"not the other one", "k1", "", "via 10.0.0.2", "it is not encrypted between the nodes: n2 publishes no key " +
			"for WireGuard"},
		{"not the own one", "", "k2", "via 10.0.0.2", "it is not encrypted between the nodes: n1 publishes no key " +
			"for WireGuard"},
	} {
		one, two := node("n1", model.NodeBGPSpec{IPv4Address: "10.0.0.1/24"}),
			node("n2", model.NodeBGPSpec{IPv4Address: "10.0.0.2/24"})
		one.Value.(*model.Node).Status.WireguardPublicKey = c.own
		two.Value.(*model.Node).Status.WireguardPublicKey = c.far
		answer, err := Explain(Computed(model.NewSet(one, two, pod("a", "n1", podA4+"/32"),
			pod("b", "n2", podB4+"/32")), policy.Config{}), Question{Source: "pod/default/a",
			Destination: "pod/default/b"})
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(answer.Notes, "\n")
		if next := answer.Routes[0].Next; next != c.next || !strings.Contains(notes, c.note) ||
			c.note == "" && strings.Contains(notes, "WireGuard") {
			t.Errorf("%s: %q, notes %s", c.rule, next, notes)
		}
	}
}
