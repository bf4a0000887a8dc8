package main_test

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

// host is a host with one address on each of some interfaces.
type host []string

func (h host) Interfaces() (list []node.Interface, err error) {
	for i, name := range h {
		list = append(list, node.Interface{Name: name, Index: i + 1,
			Addresses: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i), 7}), 24)}})
	}
	return list, nil
}

func (h host) SourceFor(context.Context, string, node.Family) (netip.Addr, error) {
	return netip.AddrFrom4([4]byte{10, 9, 0, 7}), nil
}

// start registers the host n1 and gives it the address of a tunnel, as manxd does at its start.
func (h host) start(t *testing.T, store datastore.Store, kube bool) {
	t.Helper()
	config := node.Config{Name: node.NameSources{Configured: "n1"}, IP: "autodetect", K8sNodeRef: "n1",
		KubernetesDatastore: kube, NoIPv6: true, Pool4: node.PoolConfig{IPIP: "Always"}}
	if _, err := node.Register(t.Context(), config, store, h, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	tunnels := &node.Tunnels{Store: store, IPAM: ipam.New(store, zap.NewNop(), time.Now), Node: "n1",
		Types: node.TunnelTypes(model.DeviceIPIP), Log: zap.NewNop()}
	if err := tunnels.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func nodeFile(spec string) string {
	return "apiVersion: projectcalico.org/v3\nkind: Node\nmetadata: {name: n1, labels: {rack: a}}\nspec: " + spec + "\n"
}

// applies expects the results of a file of the Node, which lacks what the host fills in.
func (s shell) applies(t *testing.T, store datastore.Store, kube bool) {
	t.Helper()
	get := func() *model.Node {
		o, err := store.Get(t.Context(), model.ResourceKey(model.KindNode, "n1"))
		if err != nil {
			t.Fatal(err)
		}
		return o.Value.(*model.Node)
	}
	host{"eth0"}.start(t, store, kube)
	for _, spec := range []string{"{}", "{bgp: {asNumber: 64512}}", "{bgp: {routeReflectorClusterID: 192.0.2.1}}"} {
		before := get()
		s.pipe(nodeFile(spec), "apply", "-f", "-").want(t, 0, "node/n1 configured\n")
		s.pipe(nodeFile(spec), "apply", "-f", "-").want(t, 0, "node/n1 unchanged\n")
		after := get()
		if before.Spec.BGP == nil || after.Spec.BGP == nil || before.Spec.BGP.IPv4IPIPTunnelAddr == "" ||
			after.Spec.BGP.IPv4Address != "10.9.0.7/24" ||
			after.Spec.BGP.IPv4IPIPTunnelAddr != before.Spec.BGP.IPv4IPIPTunnelAddr ||
			len(after.Spec.Interfaces) != 1 || len(after.Spec.OrchRefs) != 1 || after.Labels["rack"] != "a" {
			t.Fatalf("%s: the node was %+v and is %+v", spec, before.Spec, after.Spec)
		}
		if as := after.Spec.BGP.ASNumber; (as != nil) != strings.Contains(spec, "asNumber") {
			t.Errorf("%s: the AS number is %v", spec, as)
		}
		// A restart, after which the host has another interface.
		host{"eth0", "eth1"}.start(t, store, kube)
		s.pipe(nodeFile(spec), "apply", "-f", "-").want(t, 0, "node/n1 unchanged\n")
		if n := len(get().Spec.Interfaces); n != 2 {
			t.Errorf("%s: %d interfaces", spec, n)
		}
		host{"eth0"}.start(t, store, kube)
	}
	s.pipe(nodeFile("{bgp: {ipv4Address: 10.9.0.8/24}}"), "apply", "-f", "-").want(t, 0, "node/n1 configured\n")
	if n := get(); n.Spec.BGP.IPv4Address != "10.9.0.8/24" || n.Spec.BGP.RouteReflectorClusterID != "" {
		t.Errorf("with another address: %+v", n.Spec.BGP)
	}
	s.pipe(nodeFile("{}"), "replace", "-f", "-").want(t, 0, "node/n1 replaced\n")
	if n := get(); n.Spec.BGP != nil || len(n.Spec.Interfaces) > 0 {
		t.Errorf("replaced: %+v", n.Spec)
	}
}

// A Node file that lacks what the host fills in is unchanged at the next apply, also after a restart, and what the host
// has filled in stays. A replacement removes it.
func TestApplyKeepsWhatTheHostFillsIn(t *testing.T) {
	s, server := newShell(t)
	s.applies(t, server.Store(t), false)
}

// applyToKubernetes does the same in the Kubernetes API, where the Node also has a label and a name from Kubernetes.
func applyToKubernetes(t *testing.T, server *apiserver.Server) {
	t.Helper()
	server.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": "n1",
		"labels": map[string]string{"kubernetes.io/hostname": "n1"}}})
	store, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, server.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // the test is over
	s := shell{t: t, env: []string{"DATASTORE_TYPE=kubernetes", "KUBECONFIG=" + server.Kubeconfig(t, apiserver.Admin)}}
	s.applies(t, store, true)
	s.modifiesInKubernetes(t)
}

// modifiesInKubernetes changes objects that the Kubernetes API stores in other forms.
func (s shell) modifiesInKubernetes(t *testing.T) {
	t.Helper()
	s.run("label", "node", "n1", "calico-rr-id=rr1", "--overwrite").want(t, 0, "node/n1 labeled\n")
	s.run("label", "node", "n1", "calico-rr-id=rr1").want(t, 0, "node/n1 unchanged\n")
	s.run("patch", "node", "n1", "-p", "spec: {bgp: {asNumber: 65077}}").want(t, 0, "node/n1 patched\n")
	s.run("get", "node", "n1", "-o", "custom-columns=A:.metadata.labels.calico-rr-id,ASN", "--no-headers").want(t, 0,
		"rr1   65077\n")
	for range 2 { // creates, and then changes
		s.run("ipam", "configure", "--strictaffinity=true").want(t, 0, "Successfully set StrictAffinity to: true\n")
	}
	s.run("get", "ipamconfig", "default", "-o", "custom-columns=STRICTAFFINITY", "--no-headers").want(t, 0, "true\n")
	s.mustPipe(resource("IPPool", "name: short", "cidr: 10.97.0.0/24"), "apply", "-f", "-")
	out := s.must("ipam", "check") // the tunnel address that replace took away from the Node
	if !strings.Contains(out, "Found 1 addresses that are assigned, and that no object uses.\n") {
		t.Errorf("ipam check:\n%s", out)
	}
	s.run("delete", "ippool", "short").want(t, 0, "ippool/short deleted\n")
}
