package hoststate

import (
	"testing"

	"github.com/manxnet/manx/dataplane/kernel"
)

func TestUplinkMTU(t *testing.T) {
	links := map[string]kernel.Link{
		"lo": {Name: "lo", MTU: 65536, Up: true}, "eth0": {Name: "eth0", MTU: 9000, Up: true},
		"ens4": {Name: "ens4", MTU: 1500, Up: true}, "cali1": {Name: "cali1", MTU: 1000, Up: true},
		"eth1": {Name: "eth1", MTU: 1280}, "bond0": {Name: "bond0", MTU: 8000, Up: true},
	}
	const byPattern = "the interfaces that match mtuIfacePattern take"
	none, unread, routes := Underlay{}, Underlay{Unread: true}, Underlay{MTU: 8000}
	for _, c := range []struct {
		rule, pattern string
		links         map[string]kernel.Link
		underlay      Underlay
		want          int
		source        string
	}{
		{"the smallest uplink that is up", "", links, none, 1500,
			"the interfaces that look like uplinks take"},
		{"no uplink", "", nil, none, 1460,
			"no interfaces that look like uplinks are up, so that the MTU of the host counts as"},
		{"a pattern of the cluster", "^bond", links, none, 8000, byPattern},
		{"one that is not valid", "(", links, none, 1500, "the interfaces that look like uplinks take"},
		{"routes to the nodes, whatever the names", "", links, routes, 8000,
			"the links and routes to other nodes take"},
		{"a pattern before the routes", "^eth", links, routes, 9000, byPattern},
		{"a pattern without an interface", "^wg", links, routes, 1460,
			"no interfaces that match mtuIfacePattern are up, so that the MTU of the host counts as"},
		{"routes that are not read yet", "", links, unread, 0, ""},
		{"a pattern needs none", "^bond", links, unread, 8000, byPattern},
	} {
		h := New("here", nil)
		h.Felix.MTUIfacePattern, h.Underlay = c.pattern, c.underlay
		if got, source := h.UplinkMTU(c.links); got != c.want || source != c.source {
			t.Errorf("%s: %q %d, want %q %d", c.rule, source, got, c.source, c.want)
		}
	}
}
