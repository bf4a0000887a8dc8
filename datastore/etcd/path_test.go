package etcd_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

func TestPaths(t *testing.T) {
	for _, c := range []struct {
		rule, path string
		want       model.Key
		back       bool // the key formats back to the path
	}{
		{"cluster resource", "/calico/resources/v3/projectcalico.org/bgppeers/tor-1",
			model.Key{Kind: model.KindBGPPeer, Name: "tor-1"}, true},
		{"namespaced resource", "/calico/resources/v3/projectcalico.org/workloadendpoints/default/n-k8s-p-eth0",
			model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "n-k8s-p-eth0"}, true},
		{"IPv4 block", "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26",
			model.Key{Kind: model.KindIPAMBlock, Name: "10.0.0.64/26"}, true},
		{"IPv6 block", "/calico/ipam/v2/assignment/ipv6/block/fd00:9::40-122",
			model.Key{Kind: model.KindIPAMBlock, Name: "fd00:9::40/122"}, true},
		{"block in another spelling", "/calico/ipam/v2/assignment/ipv6/block/FD00:9:0::40-122",
			model.Key{Kind: model.KindIPAMBlock, Name: "fd00:9::40/122"}, false},
		{"host with dashes", "/calico/ipam/v2/host/node-1/ipv4/block/10.0.0.64-26",
			model.Key{Kind: model.KindBlockAffinity, Name: "host/node-1/10.0.0.64/26"}, true},
		{"virtual owner", "/calico/ipam/v2/virtual/load-balancer/ipv6/block/fd00::-122",
			model.Key{Kind: model.KindBlockAffinity, Name: "virtual/load-balancer/fd00::/122"}, true},
		{"handle keeps its case", "/calico/ipam/v2/handle/k8s-pod-network.AbC",
			model.Key{Kind: model.KindIPAMHandle, Name: "k8s-pod-network.AbC"}, true},
		{"configuration", "/calico/ipam/v2/config", model.IPAMConfigKey, true},
	} {
		t.Run(c.rule, func(t *testing.T) {
			k, ok, err := etcd.ParsePath(c.path)
			if !ok || err != nil || k != c.want {
				t.Fatalf("%s: %+v, %v, %v", c.path, k, ok, err)
			}
			if path, err := etcd.Path(k); err != nil || (path == c.path) != c.back {
				t.Errorf("%s became %s, %v", c.path, path, err)
			}
		})
	}
}

// recordedPaths returns the paths that Calico's own programs wrote, from the test data of the codec.
func recordedPaths(t testing.TB, files ...string) (paths []string) {
	t.Helper()
	for _, file := range files {
		for i, entry := range jsonlines.Read[struct{ Key string }](t, "../codec/testdata/"+file) {
			if entry.Key == "" {
				t.Fatalf("line %d of %s has no key", i+1, file)
			}
			paths = append(paths, entry.Key)
		}
	}
	return paths
}

func TestEveryKeyOfCalicoParsesAndFormatsBack(t *testing.T) {
	seen := map[model.Kind]int{}
	for _, path := range recordedPaths(t, "objects.jsonl", "history.jsonl", "nodestatus.jsonl") {
		k, ok, err := etcd.ParsePath(path)
		if !ok || err != nil {
			t.Errorf("%s: %v, %v", path, ok, err)
			continue
		}
		seen[k.Kind]++
		if again, err := etcd.Path(k); again != path || err != nil {
			t.Errorf("%s became %s, %v", path, again, err)
		}
	}
	for _, i := range model.Kinds() {
		if seen[i.Kind] == 0 {
			t.Errorf("no %s in the test data", i.Kind)
		}
	}
}

func TestKubernetesKindsHaveNoPlaceInEtcd(t *testing.T) {
	for _, kind := range []model.Kind{model.KindService, model.KindEndpointSlice} {
		if _, err := etcd.Path(model.Key{Kind: kind, Namespace: "shop", Name: "web"}); !errors.Is(err,
			model.ErrKubernetes) {
			t.Errorf("path of a %s: %v", kind, err)
		}
		if _, err := etcd.Prefixes(kind, ""); !errors.Is(err, model.ErrKubernetes) {
			t.Errorf("prefixes of a %s: %v", kind, err)
		}
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
		if k, ok, err := etcd.ParsePath(path); ok || err != nil {
			t.Errorf("%s: %v, %v, %v", path, k, ok, err)
		}
	}
}

func TestPathsThatCannotBeRead(t *testing.T) {
	for path, kind := range map[string]model.Kind{
		"/calico/resources/v3/projectcalico.org/nodes/":                 model.KindNode,
		"/calico/resources/v3/projectcalico.org/nodes/a/b":              model.KindNode,
		"/calico/resources/v3/projectcalico.org/workloadendpoints/a":    model.KindWorkloadEndpoint,
		"/calico/resources/v3/projectcalico.org/workloadendpoints/a/":   model.KindWorkloadEndpoint,
		"/calico/resources/v3/projectcalico.org/workloadendpoints//a":   model.KindWorkloadEndpoint,
		"/calico/ipam/v2/assignment/ipv4/block/10.0.0.1-26":             model.KindIPAMBlock,
		"/calico/ipam/v2/assignment/ipv6/block/10.0.0.0-26":             model.KindIPAMBlock,
		"/calico/ipam/v2/assignment/ipv4/10.0.0.0-26":                   model.KindIPAMBlock,
		"/calico/ipam/v2/host/n/ipv4/block/10.0.0.0":                    model.KindBlockAffinity,
		"/calico/ipam/v2/host//ipv4/block/10.0.0.0-26":                  model.KindBlockAffinity,
		"/calico/ipam/v2/virtual/load-balancer/ipv6/block/10.0.0.0-122": model.KindBlockAffinity,
		"/calico/ipam/v2/handle/":                                       model.KindIPAMHandle,
	} {
		k, ok, err := etcd.ParsePath(path)
		if !ok || err == nil || k.Kind != kind || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, %v, %v", path, k, ok, err)
		}
	}
}

func TestKeysThatHaveNoPath(t *testing.T) {
	for _, k := range []model.Key{
		{Kind: "Foo", Name: "x"},
		{Kind: model.KindNode},
		{Kind: model.KindNode, Name: "a/b"},
		{Kind: model.KindNode, Namespace: "ns", Name: "a"},
		{Kind: model.KindWorkloadEndpoint, Name: "a"},
		{Kind: model.KindIPAMBlock, Name: "x"},
		{Kind: model.KindBlockAffinity, Name: "host/n"},
		{Kind: model.KindBlockAffinity, Name: "cloud/n/10.0.0.0/26"},
	} {
		if path, err := etcd.Path(k); err == nil {
			t.Errorf("%v got %s", k, path)
		}
	}
}

func TestPrefixesHoldAllPathsOfAKind(t *testing.T) {
	for _, path := range recordedPaths(t, "objects.jsonl") {
		k, _, _ := etcd.ParsePath(path)
		for _, owner := range []string{"", k.Namespace} {
			prefixes, err := etcd.Prefixes(k.Kind, owner)
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, p := range prefixes {
				found = found || strings.HasPrefix(path, p)
			}
			if !found {
				t.Errorf("%s is not in %v", path, prefixes)
			}
		}
	}
}

func FuzzParsePath(f *testing.F) {
	for _, path := range recordedPaths(f, "objects.jsonl") {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		k, ok, err := etcd.ParsePath(path)
		if !ok || err != nil {
			return
		}
		again, err := etcd.Path(k)
		if err != nil {
			t.Fatalf("%q gave %+v: %v", path, k, err)
		}
		if k2, ok, err := etcd.ParsePath(again); !ok || err != nil || k2 != k {
			t.Fatalf("%q gave %+v, which gave %q and %+v, %v", path, k, again, k2, err)
		}
	})
}

func BenchmarkParsePath100kKeys(b *testing.B) {
	paths := make([]string, 0, 100_000)
	for i := range 25_000 {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 10), byte(i >> 2), byte(i << 6)}), 26)
		for _, k := range []model.Key{
			{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: fmt.Sprintf("node-k8s-pod%d-eth0", i)},
			model.BlockKey(block), model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: "node-1",
				CIDR: block}), model.HandleKey(fmt.Sprint(i)),
		} {
			path, err := etcd.Path(k)
			if err != nil {
				b.Fatal(err)
			}
			paths = append(paths, path)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range paths {
			if _, ok, err := etcd.ParsePath(p); !ok || err != nil {
				b.Fatal(p, err)
			}
		}
	}
}
