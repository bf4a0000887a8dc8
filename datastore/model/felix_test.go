package model

import (
	"strings"
	"testing"
	"time"
)

func TestFelixRules(t *testing.T) {
	for _, x := range []struct {
		spec  FelixConfigurationSpec
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
	} {
		f := &FelixConfiguration{Spec: x.spec}
		f.Name = "default"
		err := NewObject(ResourceKey(KindFelixConfiguration, "default"), f).PrepareCreate(time.Now())
		if (err == nil) != (x.wrong == "") || err != nil && !strings.Contains(err.Error(), x.wrong+" = ") {
			t.Errorf("%+v: %v, want %q to be wrong", x.spec, err, x.wrong)
		}
	}
}

func felixActions(nftables, iptables, toHost string) (s FelixConfigurationSpec) {
	s.NftablesFilterDenyAction, s.IptablesFilterDenyAction, s.DefaultEndpointToHostAction = nftables, iptables, toHost
	return s
}

func felixFolder(prefix string) (s FelixConfigurationSpec) {
	s.EndpointStatusPathPrefix = prefix
	return s
}
