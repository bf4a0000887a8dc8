package model

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestPaths(t *testing.T) {
	for _, c := range []struct {
		rule, path string
		want       Key
		back       bool // the key formats back to the path
	}{
		{"cluster resource", "/calico/resources/v3/projectcalico.org/bgppeers/tor-1", Key{Kind: KindBGPPeer, Name: "tor-1"}, true},
		{"namespaced resource", "/calico/resources/v3/projectcalico.org/workloadendpoints/default/n-k8s-p-eth0",
			Key{Kind: KindWorkloadEndpoint, Namespace: "default", Name: "n-k8s-p-eth0"}, true},
		{"IPv4 block", "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26", Key{Kind: KindIPAMBlock, Name: "10.0.0.64/26"}, true},
		{"IPv6 block", "/calico/ipam/v2/assignment/ipv6/block/fd00:9::40-122", Key{Kind: KindIPAMBlock, Name: "fd00:9::40/122"}, true},
		{"block in another spelling", "/calico/ipam/v2/assignment/ipv6/block/FD00:9:0::40-122", Key{Kind: KindIPAMBlock, Name: "fd00:9::40/122"}, false},
		{"host with dashes", "/calico/ipam/v2/host/node-1/ipv4/block/10.0.0.64-26", Key{Kind: KindBlockAffinity, Name: "host/node-1/10.0.0.64/26"}, true},
		{"virtual owner", "/calico/ipam/v2/virtual/load-balancer/ipv6/block/fd00::-122", Key{Kind: KindBlockAffinity, Name: "virtual/load-balancer/fd00::/122"}, true},
		{"handle keeps its case", "/calico/ipam/v2/handle/k8s-pod-network.AbC", Key{Kind: KindIPAMHandle, Name: "k8s-pod-network.AbC"}, true},
		{"configuration", "/calico/ipam/v2/config", IPAMConfigKey, true},
	} {
		t.Run(c.rule, func(t *testing.T) {
			k, ok, err := ParseEtcdPath(c.path)
			if !ok || err != nil || k != c.want {
				t.Fatalf("%s: %+v, %v, %v", c.path, k, ok, err)
			}
			if path, err := EtcdPath(k); err != nil || (path == c.path) != c.back {
				t.Errorf("%s became %s, %v", c.path, path, err)
			}
		})
	}
}

func TestPathsOfNoUse(t *testing.T) {
	for _, path := range []string{
		"/calico/resources/v3/projectcalico.org/blockaffinities/x",                // no part of IPAM
		"/calico/resources/v3/projectcalico.org/remoteclusterconfigurations/west", // of another product
		"/calico/resources/v3/projectcalico.org/nodes",
		"/calico/ipam/v2/host/node-1", // marker of old releases
		"/calico/ipam/v2/config/x",
		"/calico/felix/v2/no-region/host/h1/status",
		"/calico/", "/", "",
	} {
		if k, ok, err := ParseEtcdPath(path); ok || err != nil {
			t.Errorf("%s: %v, %v, %v", path, k, ok, err)
		}
	}
}

func TestPathsThatCannotBeRead(t *testing.T) {
	for path, kind := range map[string]Kind{
		"/calico/resources/v3/projectcalico.org/nodes/":                 KindNode,
		"/calico/resources/v3/projectcalico.org/nodes/a/b":              KindNode,
		"/calico/resources/v3/projectcalico.org/workloadendpoints/a":    KindWorkloadEndpoint,
		"/calico/resources/v3/projectcalico.org/workloadendpoints/a/":   KindWorkloadEndpoint,
		"/calico/resources/v3/projectcalico.org/workloadendpoints//a":   KindWorkloadEndpoint,
		"/calico/ipam/v2/assignment/ipv4/block/10.0.0.1-26":             KindIPAMBlock,
		"/calico/ipam/v2/assignment/ipv6/block/10.0.0.0-26":             KindIPAMBlock,
		"/calico/ipam/v2/assignment/ipv4/10.0.0.0-26":                   KindIPAMBlock,
		"/calico/ipam/v2/host/n/ipv4/block/10.0.0.0":                    KindBlockAffinity,
		"/calico/ipam/v2/host//ipv4/block/10.0.0.0-26":                  KindBlockAffinity,
		"/calico/ipam/v2/virtual/load-balancer/ipv6/block/10.0.0.0-122": KindBlockAffinity,
		"/calico/ipam/v2/handle/":                                       KindIPAMHandle,
	} {
		k, ok, err := ParseEtcdPath(path)
		if !ok || err == nil || k.Kind != kind || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, %v, %v", path, k, ok, err)
		}
	}
}

func TestKeysThatHaveNoPath(t *testing.T) {
	for _, k := range []Key{
		{Kind: "Foo", Name: "x"},
		{Kind: KindNode},
		{Kind: KindNode, Name: "a/b"},
		{Kind: KindNode, Namespace: "ns", Name: "a"},
		{Kind: KindWorkloadEndpoint, Name: "a"},
		{Kind: KindIPAMBlock, Name: "x"},
		{Kind: KindBlockAffinity, Name: "host/n"},
		{Kind: KindBlockAffinity, Name: "cloud/n/10.0.0.0/26"},
	} {
		if path, err := EtcdPath(k); err == nil {
			t.Errorf("%v got %s", k, path)
		}
	}
}

func TestPrefixesHoldAllPathsOfAKind(t *testing.T) {
	for _, s := range readLines[stored](t, "objects.jsonl") {
		k, _, _ := ParseEtcdPath(s.Key)
		for _, owner := range []string{"", k.Namespace} {
			prefixes, err := EtcdPrefixes(k.Kind, owner)
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, p := range prefixes {
				found = found || strings.HasPrefix(s.Key, p)
			}
			if !found {
				t.Errorf("%s is not in %v", s.Key, prefixes)
			}
		}
	}
}

func FuzzParseEtcdPath(f *testing.F) {
	for _, s := range readLines[stored](f, "objects.jsonl") {
		f.Add(s.Key)
	}
	f.Fuzz(func(t *testing.T, path string) {
		k, ok, err := ParseEtcdPath(path)
		if !ok || err != nil {
			return
		}
		again, err := EtcdPath(k)
		if err != nil {
			t.Fatalf("%q gave %+v: %v", path, k, err)
		}
		if k2, ok, err := ParseEtcdPath(again); !ok || err != nil || k2 != k {
			t.Fatalf("%q gave %+v, which gave %q and %+v, %v", path, k, again, k2, err)
		}
	})
}

func BenchmarkParseEtcdPath100kKeys(b *testing.B) {
	paths := make([]string, 0, 100_000)
	for i := range 25_000 {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 10), byte(i >> 2), byte(i << 6)}), 26)
		for _, k := range []Key{
			{Kind: KindWorkloadEndpoint, Namespace: "ns", Name: fmt.Sprintf("node-k8s-pod%d-eth0", i)},
			BlockKey(block), AffinityKey(Affinity{Type: AffinityHost, Host: "node-1", CIDR: block}), HandleKey(fmt.Sprint(i)),
		} {
			path, err := EtcdPath(k)
			if err != nil {
				b.Fatal(err)
			}
			paths = append(paths, path)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range paths {
			if _, ok, err := ParseEtcdPath(p); !ok || err != nil {
				b.Fatal(p, err)
			}
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	for b.Loop() {
		if _, ok := Lookup(KindIPAMConfig); !ok {
			b.Fatal("unknown")
		}
	}
}
