package endpointstatus

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

func key(namespace, name string) model.Key {
	return model.Key{Kind: model.KindWorkloadEndpoint, Namespace: namespace, Name: name}
}

func TestFileNamesAreCalicos(t *testing.T) {
	for _, c := range []struct{ namespace, name, want string }{
		{"shop", "node--1-k8s-web--0-eth0", "k8s shop%2Fweb-0 eth0"},
		{"default", "n-cni-1234567890abcdef-eth0", "cni default%2F1234567890abcdef eth0"},
		{"openstack", "n-openstack-vm%1-tap0", "openstack openstack%2Fvm%251 tap0"},
		{"x", "n-k8s-a.b-eth0", "k8s x%2Fa.b eth0"},
		{"x", "nodashes", ""},
	} {
		have, err := FileName(key(c.namespace, c.name))
		if have != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s/%s: %q, %v; want %q", c.namespace, c.name, have, err, c.want)
		}
		if err == nil && !isFileName(have) {
			t.Errorf("%q is not taken for a file of ours", have)
		}
	}
}

// A name that leads out of the folder, or confuses a reader of the list, is no file name. Only addresses are written as
// content.
func TestNamesAndContentsAreChecked(t *testing.T) {
	mac := "02:00:00:00:00:01"
	for _, c := range []struct{ namespace, name, mac string }{
		{"..", "n-k8s-web-eth0", mac},
		{".", "n-k8s-web-eth0", mac},
		{"", "n-k8s-web-eth0", mac},
		{"a/b", "n-k8s-web-eth0", mac},
		{"shop", "n-k8s-..-eth0", mac},
		{"shop", "n-k8s-../../etc/passwd-eth0", mac},
		{"shop", "n-k8s-web-eth0/x", mac},
		{"shop", "n-k8s-we\nb-eth0", mac},
		{"shop", "n-k8s-we\x00b-eth0", mac},
		{"shop", "n-k8s-we\x1b[2Jb-eth0", mac},
		{"shop", "n-../x-web-eth0", mac},
		{"shop", "n-k8s-" + strings.Repeat("x", 300) + "-eth0", mac},
		{"shop", "n-k8s-web-eth0", "02:00\n"},
	} {
		if e, err := newEndpoint(key(c.namespace, c.name), 1, "cali1", c.mac, nil); err == nil {
			t.Errorf("%q %q %q makes the file %q with %s", c.namespace, c.name, c.mac, e.file, e.content)
		}
	}
}

func TestContentIsCalicos(t *testing.T) {
	e, err := newEndpoint(key("shop", "n-k8s-web-eth0"), 1, "cali1", "02:00:00:00:00:01",
		[]netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("fd00::1/128")})
	want := `{"ifaceName":"cali1","mac":"02:00:00:00:00:01","ipv4Nets":["10.0.0.1/32"],"ipv6Nets":["fd00::1/128"]}`
	if err != nil || e.content != want {
		t.Errorf("%s, %v; want %s", e.content, err, want)
	}
}

func TestFileNeedsPolicyAndEveryRoute(t *testing.T) {
	prefix := netip.MustParsePrefix
	endpoint := func(revision int64, addresses ...netip.Prefix) Endpoint {
		e, err := newEndpoint(key("shop", "n-k8s-web-eth0"), revision, "cali1", "02:00:00:00:00:01", addresses)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	v4, v6 := prefix("10.0.0.1/32"), prefix("fd00::1/128")
	// policy returns the policy of the interfaces, computed from a snapshot with these versions of the workload.
	policy := func(interfaces map[string]bool, versions ...int64) *Policy {
		set := model.Set{}
		for _, v := range versions {
			k := key("shop", "n-k8s-web-eth0")
			set[k] = &model.Object{Key: k, Revision: v}
		}
		return &Policy{set, interfaces}
	}
	programmed := map[string]bool{"cali1": true}
	for name, c := range map[string]struct {
		endpoint Endpoint
		policy   *Policy
		routes   []netip.Prefix
		want     bool
	}{
		"policy and both routes": {endpoint(7, v4, v6), policy(programmed, 7),
			[]netip.Prefix{v4, v6}, true},
		"nobody programs policy": {endpoint(7, v4), nil, []netip.Prefix{v4}, true},
		"no policy yet":          {endpoint(7, v4), policy(nil, 7), []netip.Prefix{v4}, false},
		"policy of the container before": {endpoint(7, v4), policy(programmed, 6), []netip.Prefix{v4},
			false},
		"policy of another version": {endpoint(7, v4), policy(programmed, 8), []netip.Prefix{v4},
			false},
		"policy without the workload":  {endpoint(7, v4), policy(programmed), []netip.Prefix{v4}, false},
		"policy that is not known yet": {endpoint(7, v4), &Policy{}, []netip.Prefix{v4}, false},
		"no route":                     {endpoint(7, v4), policy(programmed, 7), nil, false},
		"one of two routes": {endpoint(7, v4, v6), policy(programmed, 7), []netip.Prefix{v4},
			false},
		"without addresses it cannot be programmed": {endpoint(7), policy(programmed, 7), nil, false},
	} {
		have := decide([]Endpoint{c.endpoint}, func(e Endpoint) bool { return c.policy == nil || c.policy.has(e) },
			func(e Endpoint, p netip.Prefix) bool { return slices.Contains(c.routes, p) })
		want := map[string]string{}
		if c.want {
			want["k8s shop%2Fweb eth0"] = c.endpoint.content
		}
		if !maps.Equal(have, want) {
			t.Errorf("%s: %v, want %v", name, have, want)
		}
	}
}
