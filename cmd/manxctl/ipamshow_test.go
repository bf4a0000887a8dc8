package main_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/zap"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

// showsPools assigns addresses as the CNI plugin does, and expects them in the output.
func (s shell) showsPools(t *testing.T, store datastore.Store) {
	t.Helper()
	s.mustPipe(resource("IPPool", "name: pods", "cidr: 10.99.0.0/26, blockSize: 28")+
		resource("IPPool", "name: old", "cidr: 10.98.0.0/28, blockSize: 28, disabled: true"), "create", "-f", "-")
	a := ipam.New(store, nil, nil)
	for _, pod := range []string{"web", "gone"} {
		attrs := map[string]string{"namespace": "shop", "pod": pod, "node": "n9", "timestamp": "2026-11-20T01:02:03Z"}
		if _, err := a.AutoAssign(t.Context(), ipam.Request{Host: "n9", Handle: "k8s-pod-network." + pod, Attrs: attrs,
			Num4: 1, Use: v3.IPPoolAllowedUseWorkload,
			Pools4: []netip.Prefix{netip.MustParsePrefix("10.99.0.0/26")}}); err != nil {
			t.Fatal(err)
		}
	}
	s.run("ipam", "show").want(t, 0, ""+
		"POOL             CIDR           SIZE   USED     RESERVED   BLOCKS   FREE BLOCKS\n"+
		"old (disabled)   10.98.0.0/28   16     0 (0%)   0          0        1\n"+
		"pods             10.99.0.0/26   64     2 (3%)   0          1        3\n")
	found, err := a.IPsByHandle(t.Context(), "k8s-pod-network.web")
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	web := found[0].String()
	block := netip.PrefixFrom(found[0], 28).Masked().String()
	s.run("ipam", "show", "--ip", web).want(t, 0, web+"\n"+
		"  State:            assigned\n"+
		"  Owner:            pod shop/web\n"+
		"  Node:             n9\n"+
		"  Handle:           k8s-pod-network.web\n"+
		"  Since:            2026-11-20T01:02:03Z\n"+
		"  Pool:             pods (10.99.0.0/26)\n"+
		"  Block:            "+block+" of n9\n"+
		"  Note:             no WorkloadEndpoint has the address: the pod is not ready yet, or gone, and the garbage "+
		"collection releases the address after the grace period\n")
	if _, err := a.ReleaseByHandle(t.Context(), "k8s-pod-network.gone"); err != nil {
		t.Fatal(err)
	}
	if out := s.must("ipam", "show", "-o", "json"); !strings.Contains(out, `"pool": "pods"`) ||
		!strings.Contains(out, `"freeBlocks": "3"`) {
		t.Errorf("as JSON:\n%s", out)
	}
	if out := s.must("ipam", "show", "--ip", "10.98.0.3"); !strings.Contains(out, "State:            free") ||
		strings.Contains(out, "Owner") {
		t.Errorf("a free address:\n%s", out)
	}
	s.run("ipam", "show", "--ip", "192.0.2.1").want(t, 1, "", "192.0.2.1 is in no pool and in no block")
	s.run("ipam", "show", "--ip", "10.99.0.0/26").want(t, 2, "", "want an IPv4 or IPv6 address")
}

func TestIPAMShow(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	s.run("ipam", "show").want(t, 0, "", "No ippools found.")
	s.mustPipe(resource("Node", "name: n9", "bgp: {ipv4Address: 10.0.0.9/24}"), "create", "-f", "-")
	s.showsPools(t, server.Store(t))
	// A workload has its address; one whose address is free is a conflict to come.
	s.mustPipe(strings.NewReplacer("NS", "shop", "POD", "web", "10.0.0.1/32", "10.98.0.3/32").Replace(endpoint),
		"create", "-f", "-")
	if out := s.must("ipam", "show", "--ip", "10.98.0.3"); !strings.Contains(out, "Endpoint:         WorkloadEndpoint "+
		"shop/node--1-k8s-web-eth0") || !strings.Contains(out, "another one may get it") {
		t.Errorf("an address that is not assigned:\n%s", out)
	}
	// Blocks outlive a pool that is deleted.
	s.must("delete", "ippool", "pods")
	if out := s.must("ipam", "show", "--no-headers"); !strings.Contains(out, "(no pool)") {
		t.Errorf("after the pool:\n%s", out)
	}
}

// TestIPAMShowInKubernetes does it with the objects of a real API server.
func TestIPAMShowInKubernetes(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t)
	server.InstallCRDs(t, form.V1)
	server.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": "n9"}})
	store, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, server.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // the test is over
	s := shell{t: t, env: []string{"DATASTORE_TYPE=kubernetes", "KUBECONFIG=" + server.Kubeconfig(t, apiserver.Admin)}}
	s.showsPools(t, store)
	// The policies of the cluster are tested without files, too.
	s.mustPipe(resource("HostEndpoint", "name: n9-eth0, labels: {role: host}",
		"node: n9, interfaceName: eth0, expectedIPs: [10.0.0.9]")+
		resource("GlobalNetworkPolicy", "name: hosts", "selector: role == 'host', types: [Ingress]"), "create",
		"-f", "-")
	s.pipe("- {from: 192.0.2.1, to: hep/n9-eth0, port: tcp/8080, expect: deny, by: the end of tier default}\n"+
		"- {from: 192.0.2.1, to: hep/n9-eth0, port: tcp/22, expect: allow}\n", "test", "-").want(t, 0,
		s.pipe("- {from: 192.0.2.1, to: hep/n9-eth0, port: tcp/8080, expect: deny}\n"+
			"- {from: 192.0.2.1, to: hep/n9-eth0, port: tcp/22, expect: allow}\n", "test", "-").out)
}
