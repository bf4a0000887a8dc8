package overlay

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

func TestConflicts(t *testing.T) {
	pools := ippool.NewTable(
		ippool.Pool{Name: "b", CIDR: netip.MustParsePrefix("10.1.0.0/16"), VXLAN: ippool.CrossSubnet},
		ippool.Pool{Name: "a", CIDR: netip.MustParsePrefix("10.2.0.0/16"), VXLAN: ippool.Always},
		ippool.Pool{Name: "i", CIDR: netip.MustParsePrefix("10.3.0.0/16"), IPIP: ippool.Always},
		ippool.Pool{Name: "six", CIDR: netip.MustParsePrefix("fd10::/48"), VXLAN: ippool.Always})
	no, yes := false, true
	for _, c := range []struct {
		rule string
		set  func(*model.FelixConfigurationSpec)
		want string
	}{
		{"nothing is set", func(*model.FelixConfigurationSpec) {}, ""},
		{"what is needed", func(f *model.FelixConfigurationSpec) {
			f.VXLANEnabled, f.IPIPEnabled, f.VXLANPort, f.VXLANVNI = &yes, &yes, new(65535), new(1<<24-1)
		}, ""},
		{"switched off", func(f *model.FelixConfigurationSpec) { f.VXLANEnabled = &no },
			"vxlanEnabled: it is false, while pools need VXLAN (a, b): " +
				"the routes to other nodes that need it are blocked"},
		{"IPIP, too", func(f *model.FelixConfigurationSpec) { f.IPIPEnabled = &no },
			"ipipEnabled: it is false, while pools need IPIP (i): " +
				"the routes to other nodes that need it are blocked"},
		{"unreadable", func(f *model.FelixConfigurationSpec) {
			f.ExternalNodesCIDRList = &[]string{"10.9.0.1", "fd00::/8", "lvs"}
		}, `externalNodesList: "lvs" is neither an address nor a CIDR: it is not used`},
		{"too small", func(f *model.FelixConfigurationSpec) {
			f.VXLANMTU, f.VXLANMTUV6, f.IPIPMTU = new(100), new(1279), new(575)
		}, "ipipMTU: 575 is less than 576, which each host of IPv4 must take: the MTU is computed from the host's " +
			"instead. Set it to 0, or to 576 at least; " +
			"vxlanMTU: 100 is less than 576, which each host of IPv4 must take: the MTU is computed from the host's " +
			"instead. Set it to 0, or to 576 at least; " +
			"vxlanMTUV6: 1279 is less than 1280, which each host of IPv6 must take: the MTU is computed from the " +
			"host's instead. Set it to 0, or to 1280 at least"},
		{"small enough to work", func(f *model.FelixConfigurationSpec) {
			f.VXLANMTU, f.VXLANMTUV6, f.IPIPMTU = new(576), new(1280), new(0)
		}, ""},
		{"out of range", func(f *model.FelixConfigurationSpec) { f.VXLANPort, f.VXLANVNI = new(65536), new(0) },
			"vxlanPort: 65536 is out of range: 4789 is used; vxlanVNI: 0 is out of range: 4096 is used"},
	} {
		var got []string
		var f model.FelixConfigurationSpec
		c.set(&f)
		for _, x := range Conflicts(&f, pools) {
			got = append(got, fmt.Sprintf("%s: %s", x.Setting, x.Text))
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %q, want %q", c.rule, got, c.want)
		}
	}
	var f model.FelixConfigurationSpec
	f.VXLANEnabled = &no
	if list := Conflicts(&f, nil); list != nil {
		t.Errorf("without a pool: %v", list)
	}
}
