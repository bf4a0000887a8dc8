package node

import (
	"strings"
	"testing"
)

// Pods get addresses of the families in which their node has one.
func TestFamiliesOfPods(t *testing.T) {
	for rule, c := range map[string]struct {
		config Config
		v4, v6 bool
	}{
		"IPv4 is the default":              {v4: true},
		"both":                             {Config{IP: "autodetect", IP6: "autodetect"}, true, true},
		"IPv6 alone":                       {Config{IP: "none", IP6: "fd00::1"}, false, true},
		"no IPv6":                          {Config{IP: "autodetect", IP6: "none"}, true, false},
		"no pool of IPv6":                  {Config{IP6: "autodetect", Pool6: PoolConfig{CIDR: "none"}}, true, false},
		"no IPv6 in the kernel":            {Config{IP6: "autodetect", NoIPv6: true}, true, false},
		"an IPv4 address that others give": {Config{IP: "none"}, true, false},
	} {
		if v4, v6 := c.config.PodFamilies(); v4 != c.v4 || v6 != c.v6 {
			t.Errorf("%s: IPv4 %t, IPv6 %t", rule, v4, v6)
		}
	}
}

func TestSettingsThatCanNeverWork(t *testing.T) {
	for rule, c := range map[string]struct {
		config Config
		want   []string // parts of the error; none: there is no error
	}{
		"defaults":                {},
		"address":                 {config: Config{IP: "10.0.0.1/24", IP6: "fd00::1"}},
		"words":                   {config: Config{IP: "autodetect", IP6: "none"}},
		"method of the family":    {config: Config{IP6: "autodetect", IP6Method: "interface=eth.*,ens.*"}},
		"method that is not used": {config: Config{IP: "10.0.0.1", IPMethod: "foo", IP6Method: "foo"}},
		"AS number with a dot":    {config: Config{AS: "64512.1"}},
		"no address": {Config{IP: "300.1.1.1"},
			[]string{"IP:", `"300.1.1.1"`, "ADDRESS/LENGTH, autodetect or none"}},
		"address of the other family": {Config{IP: "fd00::1"}, []string{"IP:", "IPv4"}},
		"unknown method": {Config{IPMethod: "foo"},
			[]string{"IP_AUTODETECTION_METHOD", `"foo"`, "first-found"}},
		"invalid expression": {Config{IP: "autodetect", IPMethod: "interface=("},
			[]string{"IP_AUTODETECTION_METHOD", "interface=("}},
		"unknown method for IPv6": {Config{IP6: "autodetect", IP6Method: "cidr=10"},
			[]string{"IP6_AUTODETECTION_METHOD", "cidr=10"}},
		"AS": {Config{AS: "abc"}, []string{`AS = "abc"`, "HIGH.LOW"}},
		"name": {Config{Name: NameSources{Configured: "Not_A_Name!"}},
			[]string{`"Not_A_Name!"`, "set NODENAME"}},
		"AS 0": {Config{AS: "0"}, []string{`AS = "0"`}},
		"pool": {Config{Pool4: PoolConfig{CIDR: "bad"}},
			[]string{"default IPv4 pool", `"bad"`}},
		"pool mode": {Config{Pool4: PoolConfig{IPIP: "sometimes"}},
			[]string{`"sometimes"`, "CrossSubnet"}},
		"pool that no pool contradicts": {Config{NoDefaultPools: true, Pool6: PoolConfig{CIDR: "fd00::/48"}},
			[]string{"NO_DEFAULT_POOLS", "fd00::/48"}},
		"each mistake, not just the first": {Config{IP: "x", AS: "y", Pool6: PoolConfig{BlockSize: 1}},
			[]string{`"x"`, `"y"`, "block size 1"}},
	} {
		t.Run(rule, func(t *testing.T) {
			err := c.config.Check()
			if err != nil && len(c.want) == 0 || err == nil && len(c.want) > 0 {
				t.Fatalf("error %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}
