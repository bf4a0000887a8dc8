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
	for _, c := range []struct {
		rule, pattern string
		links         map[string]kernel.Link
		want          int
	}{
		{"the smallest uplink that is up", "", links, 1500},
		{"no uplink", "", nil, 1460},
		{"a pattern of the cluster", "^bond", links, 8000},
		{"one that is not valid", "(", links, 1500},
	} {
		h := New("here", nil)
		h.Felix.MTUIfacePattern = c.pattern
		if got := h.UplinkMTU(c.links); got != c.want {
			t.Errorf("%s: %d, want %d", c.rule, got, c.want)
		}
	}
}
