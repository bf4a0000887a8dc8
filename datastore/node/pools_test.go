package node

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

func TestFreeIPv4(t *testing.T) {
	prefixes := func(texts ...string) (ps []netip.Prefix) {
		for _, text := range texts {
			ps = append(ps, netip.MustParsePrefix(text))
		}
		return ps
	}
	all := []string{"192.168.1.1/24"}
	for i := range 16 {
		all = append(all, netip.AddrFrom4([4]byte{172, byte(16 + i), 0, 1}).String()+"/24")
	}
	for _, tc := range []struct {
		rule  string
		inUse []string
		want  string
	}{
		{"nothing in the way", []string{"10.0.0.1/8"}, "192.168.0.0/16"},
		{"a host address in the usual one", []string{"192.168.7.7/24"}, "172.16.0.0/16"},
		{"the first of the next", []string{"192.168.7.7/24", "172.16.0.1/16", "172.17.0.1/16"}, "172.18.0.0/16"},
		{"a subnet around it counts", []string{"192.0.0.1/8"}, "172.16.0.0/16"},
		{"when all overlap, at least no address inside", []string{"192.168.1.1/16", "172.16.0.1/12"}, "172.17.0.0/16"},
		{"nothing is left", all, "set CALICO_IPV4POOL_CIDR"},
	} {
		got, err := freeIPv4(prefixes(tc.inUse...))
		if s := got.String(); s != tc.want && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %s, %v", tc.rule, got, err)
		}
	}
}

func TestDefaultPool(t *testing.T) {
	for _, tc := range []struct {
		rule   string
		family Family
		config PoolConfig
		want   string // "" for none
		err    string
	}{
		{rule: "IPv4 defaults", family: IPv4, want: "192.168.0.0/16 block 26 nat true export true ipip Never vxlan " +
			"Never all()"},
		{rule: "IPv6 as configured", family: IPv6, config: PoolConfig{CIDR: "FD00:1::5/48", NATOutgoing: "yes",
			DisableBGPExport: "True", BlockSize: 116, VXLAN: "cross-subnet"},
			want: "fd00:1::/48 block 116 nat true export false ipip Never vxlan CrossSubnet all()"},
		{rule: "IPIP", family: IPv4, config: PoolConfig{CIDR: "10.244.0.0/16", IPIP: "CrossSubnet", NATOutgoing: "F",
			NodeSelector: "has(x)"}, want: "10.244.0.0/16 block 26 nat false export true ipip CrossSubnet vxlan " +
			"Never has(x)"},
		{rule: "off", family: IPv4, config: PoolConfig{IPIP: "off", VXLAN: "ALWAYS"},
			want: "192.168.0.0/16 block 26 nat true export true ipip Never vxlan Always all()"},
		{rule: "none", family: IPv4, config: PoolConfig{CIDR: "none"}},
		{rule: "wrong family", family: IPv4, config: PoolConfig{CIDR: "fd00::/48"},
			err: `CIDR "fd00::/48": want an IPv4`},
		{rule: "block size", family: IPv4, config: PoolConfig{BlockSize: 19}, err: "block size 19: want 20 to 32"},
		{rule: "too small", family: IPv4, config: PoolConfig{CIDR: "10.0.0.0/28"}, err: "smaller than one block"},
		{rule: "mode", family: IPv4, config: PoolConfig{IPIP: "sometimes"}, err: `IPIP mode "sometimes"`},
		{rule: "IPIP for IPv6", family: IPv6, config: PoolConfig{IPIP: "Always"}, err: "no IPIP for IPv6"},
		{rule: "selector", family: IPv4, config: PoolConfig{NodeSelector: "(("}, err: `node selector "(("`},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			p, err := defaultPool(&Config{Pool4: tc.config, Pool6: tc.config}, tc.family, nil)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil || showPool(p) != tc.want {
				t.Errorf("got %s, %v", showPool(p), err)
			}
		})
	}
}

func showPool(p *model.IPPool) string {
	if p == nil {
		return ""
	}
	s := p.Spec
	word := map[bool]string{true: "true", false: "false"}
	return strings.Join([]string{s.CIDR, "block", map[int]string{26: "26", 122: "122", 116: "116"}[s.BlockSize], "nat",
		word[s.NATOutgoing], "export", word[!s.DisableBGPExport],
		"ipip", string(s.IPIPMode), "vxlan", string(s.VXLANMode), s.NodeSelector}, " ")
}

func TestRandomIPv6PoolIsUniqueLocal(t *testing.T) {
	a, b := uniqueLocal(), uniqueLocal()
	if a == b || !netip.MustParsePrefix("fd00::/8").Contains(a.Addr()) || a.Bits() != 48 || a != a.Masked() {
		t.Error(a, b)
	}
}
