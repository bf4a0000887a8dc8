package overlay

import (
	"net/netip"
	"testing"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// A node has an overlay while a pool of its family needs it, unless the settings decide.
func TestUsed(t *testing.T) {
	yes, no := true, false
	second := ipip
	second.Encapsulation, second.Family = ippool.VXLAN, model.IPv6
	four, six := netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd10::/48")
	for _, c := range []struct {
		rule         string
		on           *bool
		pool         ippool.Pool
		ipip, second bool
	}{
		{"no encapsulation", nil, ippool.Pool{CIDR: four}, false, false},
		{"IPIP", nil, ippool.Pool{CIDR: four, IPIP: ippool.CrossSubnet}, true, false},
		{"VXLAN for IPv4", nil, ippool.Pool{CIDR: four, VXLAN: ippool.Always}, false, false},
		{"VXLAN for IPv6", nil, ippool.Pool{CIDR: six, VXLAN: ippool.Always}, false, true},
		{"switched off", &no, ippool.Pool{CIDR: four, IPIP: ippool.Always}, false, false},
		{"switched on", &yes, ippool.Pool{CIDR: four}, true, true},
	} {
		var f model.FelixConfigurationSpec
		f.IPIPEnabled = c.on
		pools := ippool.NewTable(c.pool)
		if a, b := ipip.Used(&f, pools), second.Used(&f, pools); a != c.ipip || b != c.second {
			t.Errorf("%s: %t, %t, want %t, %t", c.rule, a, b, c.ipip, c.second)
		}
		if why := Disabled(&f)[ipip.Device]; (why != nil) != (c.on == &no) {
			t.Errorf("%s: disabled: %v", c.rule, why)
		}
	}
}
