package bgp

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// A session with a router on another subnet than its source address has a notice, whatever its state.
func TestSourceOnAnotherSubnet(t *testing.T) {
	subnets := func(list ...string) (all []netip.Prefix) {
		for _, p := range list {
			all = append(all, netip.MustParsePrefix(p))
		}
		return all
	}
	for _, c := range []struct {
		name      string
		node      string // its address
		peer      string
		connected []netip.Prefix
		notice    string
	}{
		{"a second uplink", "10.10.0.12/24", `{"peerIP":"10.10.1.1","asNumber":65100}`,
			subnets("10.10.0.0/24", "10.10.1.0/24"),
			"10.10.1.1 is on 10.10.1.0/24, to which this host is connected, but the session uses the address of the " +
				"Node, 10.10.0.12, which is on 10.10.0.0/24"},
		{"the kernel chooses", "10.10.0.12/24", `{"peerIP":"10.10.1.1","asNumber":65100,"sourceAddress":"None"}`,
			subnets("10.10.0.0/24", "10.10.1.0/24"), ""},
		{"one subnet", "10.10.0.12/24", `{"peerIP":"10.10.0.1","asNumber":65100}`,
			subnets("10.10.0.0/24", "10.10.1.0/24"), ""},
		{"behind a router", "10.10.0.12/24", `{"peerIP":"10.20.0.1","asNumber":65100}`,
			subnets("10.10.0.0/24", "10.10.1.0/24"), ""},
		{"an address of the host alone", "192.0.2.12/32", `{"peerIP":"10.10.1.1","asNumber":65100}`,
			subnets("10.10.0.0/24", "10.10.1.0/24", "192.0.2.12/32"), ""},
		{"a subnet inside another", "10.10.0.12/16", `{"peerIP":"10.10.1.1","asNumber":65100}`,
			subnets("10.10.0.0/16", "10.10.1.0/24"), ""},
		{"another node", "10.10.0.12/24", `{"peerIP":"10.10.1.2","asNumber":64512}`,
			subnets("10.10.0.0/24", "10.10.1.0/24"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := world(t, `node a {"bgp":{"ipv4Address":"`+c.node+`"}}`,
				`node b {"bgp":{"ipv4Address":"10.10.1.2/24"}}`, `peer p `+c.peer,
				`config default {"nodeToNodeMeshEnabled":false}`)
			d := Compute(Input{Reader: model.NewSet(objects...), Node: "a", Connected: c.connected})
			text := ""
			for _, n := range d.Notices {
				text += n.Object + " " + n.Reason
			}
			if c.notice == "" && text != "" || !strings.Contains(text, c.notice) {
				t.Errorf("notices %q, want %q", text, c.notice)
			}
		})
	}
}
