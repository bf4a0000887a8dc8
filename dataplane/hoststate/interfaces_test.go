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
	none, unread, routes := Underlay{}, Underlay{Unread: true}, Underlay{MTU: 8000}
	for _, c := range []struct {
		rule, pattern string
		links         map[string]kernel.Link
		underlay      Underlay
		want          int
	}{
		{"the smallest uplink that is up", "", links, none, 1500},
		{"no uplink", "", nil, none, 1460},
		{"a pattern of the cluster", "^bond", links, none, 8000},
		{"one that is not valid", "(", links, none, 1500},
		{"routes to the nodes, whatever the names", "", links, routes, 8000},
		{"a pattern before the routes", "^eth", links, routes, 9000},
		{"a pattern without an interface", "^wg", links, routes, 1460},
		{"routes that are not read yet", "", links, unread, 0},
		{"a pattern needs none", "^bond", links, unread, 8000},
	} {
		h := New("here", nil)
		h.Felix.MTUIfacePattern, h.Underlay = c.pattern, c.underlay
		if got := h.UplinkMTU(c.links); got != c.want {
			t.Errorf("%s: %d, want %d", c.rule, got, c.want)
		}
	}
}
