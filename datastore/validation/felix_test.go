package validation_test

import (
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

func TestFelixRules(t *testing.T) {
	for _, x := range []struct {
		spec  model.FelixConfigurationSpec
		wrong string // field
	}{
		{felixActions("Reject", "DROP", "RETURN"), ""},
		{felixActions("drop", "reject", "Accept"), ""},
		{felixActions("", "", ""), ""},
		{felixActions("Refuse", "", ""), "spec.nftablesFilterDenyAction"},
		{felixActions("", "Accept", ""), "spec.iptablesFilterDenyAction"},
		{felixActions("", "", "Reject"), "spec.defaultEndpointToHostAction"},
		{felixFolder("/run/calico"), ""},
		{felixFolder("none"), ""},
		{felixFolder("run/calico"), "spec.endpointStatusPathPrefix"},
		{felixPrefix("cali,tap_0-"), ""},
		{felixPrefix("cali, tap"), ""},
		{felixPrefix("cali/bad"), "spec.interfacePrefix"},
		{felixPrefix("cali,,tap"), "spec.interfacePrefix"},
		{felixPrefix("cali*"), "spec.interfacePrefix"},
		{felixPrefix(strings.Repeat("c", 15)), ""},
		{felixPrefix(strings.Repeat("c", 16)), "spec.interfacePrefix"},
		{felixVXLAN(1, 1, 0), ""},
		{felixVXLAN(65535, 1<<24-1, 65535), ""},
		{felixVXLAN(0, 1, 0), "spec.vxlanPort"},
		{felixVXLAN(65536, 1, 0), "spec.vxlanPort"},
		{felixVXLAN(4789, 0, 0), "spec.vxlanVNI"},
		{felixVXLAN(4789, 1<<24, 0), "spec.vxlanVNI"},
		{felixVXLAN(4789, 1, -1), "spec.vxlanMTU"},
		{felixNodes("10.9.0.1", "10.8.0.0/16", "fd00::1"), ""},
		{felixNodes("10.9.0.1", "lvs.example.com"), "spec.externalNodesList[1]"},
	} {
		f := &model.FelixConfiguration{Spec: x.spec}
		f.Name = "default"
		key := model.ResourceKey(model.KindFelixConfiguration, "default")
		err := codec.PrepareCreate(model.NewObject(key, f), time.Now())
		if (err == nil) != (x.wrong == "") || err != nil && !strings.Contains(err.Error(), x.wrong+" = ") {
			t.Errorf("%+v: %v, want %q to be wrong", x.spec, err, x.wrong)
		}
	}
}

func felixActions(nftables, iptables, toHost string) (s model.FelixConfigurationSpec) {
	s.NftablesFilterDenyAction, s.IptablesFilterDenyAction, s.DefaultEndpointToHostAction = nftables, iptables, toHost
	return s
}

func felixNodes(list ...string) (s model.FelixConfigurationSpec) {
	s.ExternalNodesCIDRList = &list
	return s
}

func felixFolder(prefix string) (s model.FelixConfigurationSpec) {
	s.EndpointStatusPathPrefix = prefix
	return s
}

func felixPrefix(prefix string) (s model.FelixConfigurationSpec) {
	s.InterfacePrefix = prefix
	return s
}

func felixVXLAN(port, vni, mtu int) (s model.FelixConfigurationSpec) {
	s.VXLANPort, s.VXLANVNI, s.VXLANMTU, s.VXLANMTUV6 = &port, &vni, &mtu, &mtu
	return s
}
