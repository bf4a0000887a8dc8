package policy

import (
	"net/netip"
	"slices"
	"testing"
)

// All readers share the objects of the tables: policy has the networks of one in its own order, and leaves them alone.
func TestNetworksOfAnObjectKeepTheirOrder(t *testing.T) {
	four, six := netip.MustParsePrefix("10.0.0.7/32"), netip.MustParsePrefix("fd00::7/128")
	nets := []netip.Prefix{six, four, six}
	if got := sortedNets(nets); !slices.Equal(got, []netip.Prefix{four, six}) {
		t.Errorf("%v", got)
	}
	if !slices.Equal(nets, []netip.Prefix{six, four, six}) {
		t.Errorf("the object has %v now", nets)
	}
}
