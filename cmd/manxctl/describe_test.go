package main_test

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

var times = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// inText is the age of a session in a line about a trouble.
var inText = regexp.MustCompile(`down for [0-9dhms]+:`)

// wantLines expects lines of a description, in this order, whatever the times and the widths of columns.
func (r result) wantLines(t *testing.T, code int, lines ...string) {
	t.Helper()
	rest := "\n"
	for line := range strings.Lines(r.out) {
		line = ages.ReplaceAllString(times.ReplaceAllString(line, "TIME"), "AGE")
		rest += strings.Join(strings.Fields(line), " ") + "\n"
	}
	for _, want := range lines {
		_, after, ok := strings.Cut(rest, "\n"+want+"\n")
		if !ok {
			t.Fatalf("no line %q, in this order, in (exit code %d)\n%s%s", want, r.code, r.out, r.err)
		}
		rest = "\n" + after
	}
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.err)
	}
}

// assign gives pods addresses of a pool, as the CNI plugin does, and returns the last one.
func assign(t *testing.T, store datastore.Store, node, pool string, pods ...string) string {
	t.Helper()
	address := ""
	for _, pod := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		r, err := ipam.New(store, nil, nil).AutoAssign(t.Context(), ipam.Request{Host: node,
			Handle: "k8s-pod-network." + name, Num4: 1, Use: v3.IPPoolAllowedUseWorkload,
			Attrs:  map[string]string{"namespace": namespace, "pod": name, "node": node, "timestamp": "then"},
			Pools4: []netip.Prefix{netip.MustParsePrefix(pool)}})
		if err != nil || r.Short() != nil {
			t.Fatal(err, r.Short())
		}
		address = r.V4.Addresses[0].Addr().String()
	}
	return address
}

const describedPools = `{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: pods},
 spec: {cidr: 10.99.0.0/28, blockSize: 28}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: small}, spec: {cidr: 10.98.0.0/30, blockSize: 30}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: racks},
 spec: {cidr: 10.97.0.0/24, nodeSelector: "rack == 'b'"}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: closed}, spec: {cidr: 10.96.0.0/24, disabled: true}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: teams},
 spec: {cidr: 10.95.0.0/24, namespaceSelector: "team == 'blue'", allowedUses: [Workload]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: tunnels},
 spec: {cidr: 10.94.0.0/24, allowedUses: [Tunnel]}}
---
`

// TestDescribeObjects asks the questions of the night about an etcd, beside the manxd of a node.
func TestDescribeObjects(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	local, d := newPlayedDaemon(t)
	s.mustPipe(describedPools+resource("Node", "name: node-1, labels: {rack: a}",
		"bgp: {ipv4Address: 10.0.0.1/24, asNumber: 64513}")+resource("Node", "name: node-2", ""), "create", "-f", "-")
	store := server.Store(t)
	address := assign(t, store, "node-1", "10.99.0.0/28", "shop/web")
	assign(t, store, "node-2", "10.98.0.0/30", "shop/a", "shop/b", "shop/c", "shop/d")
	s.mustPipe(strings.NewReplacer("NS", "shop", "POD", "web", "10.0.0.1/32", address+"/32").Replace(endpoint)+
		"\n---\n"+strings.NewReplacer("NS", "other", "POD", "web", "10.0.0.1/32", "10.99.0.14/32").Replace(endpoint)+
		"\n---\n"+resource("Tier", "name: platform", "order: 5")+
		resource("GlobalNetworkPolicy", "name: platform.all", "tier: platform, order: 7, selector: all()")+
		resource("NetworkPolicy", "name: web, namespace: shop", "selector: app == 'web', types: [Ingress, Egress]")+
		resource("NetworkPolicy", "name: else, namespace: shop", "selector: app == 'db'"), "create", "-f", "-")
	d.change(func() {
		d.endpoints = []*manxv1.Endpoint{{Namespace: "shop", Name: "node--1-k8s-web-eth0", Phase: "failed",
			Reason: "no such device", SinceUnixMs: d.status.GetStartedUnixMs()}}
	})
	describe := func(args ...string) result {
		return s.run(append(append([]string{"describe"}, args...), "--socket", strings.TrimPrefix(local.env[0],
			"MANX_TEST_SOCKET="))...)
	}
	for _, name := range []string{"shop/web", "shop/node--1-k8s-web-eth0", address} {
		describe("endpoint", name).wantLines(t, 0, "Endpoint shop/web", "Object: WorkloadEndpoint "+
			"shop/node--1-k8s-web-eth0", "Created: TIME", "Node: node-1", "Interface: cali1",
			"Addresses: "+address+"/32",
			"On node node-1", "State: failed for AGE", "Reason: no such device",
			"Address "+address, "State: assigned", "Owner: pod shop/web", "Since: then", "Pool: pods (10.99.0.0/28)",
			"Block: 10.99.0.0/28 of node-1", "Pool's use: 1 of 16 addresses in use or cooling down (6%)",
			"Ingress policies, in order", "1. GlobalNetworkPolicy/platform.all in tier platform, order 7, since TIME",
			"2. NetworkPolicy/shop/web in tier default, order none, since TIME", "3. Profile/kns.shop",
			"Egress policies, in order", "1. NetworkPolicy/shop/web in tier default, order none, since TIME",
			"2. Profile/kns.shop")
	}
	describe("pod", "web", "-n", "shop").wantLines(t, 0, "Endpoint shop/web")
	describe("pod/other/web").wantLines(t, 0, "Endpoint other/web", "State: unknown: manxd there does not know "+
		"the endpoint (yet): see \"manxctl node problems --node node-1\"",
		"Note: a WorkloadEndpoint has the address, and it is not assigned: another one may get it")
	describe("pod", "web").want(t, 1, "",
		`"web" is the name of 2 endpoints: name one of other/node--1-k8s-web-eth0, shop/`)
	describe("pod", "shop/nobody").want(t, 1, "",
		`"shop/nobody": does not exist: no WorkloadEndpoint is that of such a pod`)
	describe("endpoint", "10.98.0.2").wantLines(t, 0, "Address 10.98.0.2", "State: assigned", "Node: node-2")
	describe("endpoint", "192.0.2.1").want(t, 1, "", "192.0.2.1 is in no pool and in no block")

	describe("node", "node-1").wantLines(t, 0, "Node node-1", "Created: TIME", "AS number: 64513",
		"Addresses: 10.0.0.1/24",
		"State", "Ready: yes", "Version: v1.0.0", "BGP: 1/4 (!) sessions up", "Routes: 12 applied, 1 blocked",
		"Policy: off",
		"Trouble: tor-1 192.0.2.1:1179 down for AGE: connection refused by 192.0.2.1: nothing listens on port 1179",
		"Addresses", "Endpoints: 2", "Pool closed: disabled: nothing is assigned",
		"Pool pods: 1 of 16 addresses in use or cooling down (6%)",
		"Pool racks: its nodeSelector \"rack == 'b'\" does not select node node-1",
		"Pool small: full: 4 of 4 addresses in use or cooling down (100%)",
		"Pool teams: 0 of 256 addresses in use or cooling down (0%)",
		"Pool tunnels: its allowedUses lack Workload", "Blocks: 1; of each family at most 20",
		"10.99.0.0/28 1 of 16 in use")
	describe("node", "node-2").wantLines(t, 0, "Node node-2",
		"Ready: unknown: manxd here is that of node node-1: run this on node node-2", "10.98.0.0/30 4 of 4 in use")
	describe("node", "node-9").want(t, 1, "", `there is no Node "node-9"; there are: node-1, node-2`)

	describe("pool", "racks", "small").wantLines(t, 0, "IPPool racks", "CIDR: 10.97.0.0/24, blocks of /26",
		"State: addresses are assigned", "Encapsulation: IPIP Never, VXLAN Never", "NAT outgoing: no",
		"Announced by BGP: yes", "Uses: Workload, Tunnel", "Nodes: rack == 'b': 0 of 2", "Namespaces: all()",
		"Use: 0 of 256 addresses in use or cooling down (0%)", "Blocks: 0, 4 more can be taken",
		"IPPool small", "Blocks: 1, 0 more can be taken", "Blocks, fullest first", "10.98.0.0/30 4 of 4 in use node-2")
	describe("pool", "x").want(t, 1, "",
		`there is no IPPool "x"; there are: closed, pods, racks, small, teams, tunnels`)

	// The same as data: an endpoint with an address, an address without an endpoint, nodes and pools.
	for name, args := range map[string][]string{"endpoint": {"shop/web", "10.98.0.2"}, "node": {"node-1", "node-2"},
		"pool": {"racks", "small"}} {
		for _, format := range []string{"json", "yaml"} {
			r := describe(append([]string{name, "-o", format}, args...)...)
			if r.code != 0 {
				t.Errorf("describe %s -o %s: exit code %d: %s", name, format, r.code, r.err)
			}
			golden(t, "describe-"+name+"-"+format, inText.ReplaceAllString(times.ReplaceAllString(r.out, "TIME"),
				"down for AGE:"))
		}
	}
	describe("endpoint", "shop/web", "-o", "wide").want(t, 2, "", `output format "wide" is not known here`)
	describe("gnp", "x", "-o", "json").want(t, 2, "", "describe gnp has text alone")

	if out := s.must("__complete", "describe", "endpoint", ""); !strings.HasPrefix(out, "other/web\nshop/web\n") {
		t.Errorf("endpoints are completed with %s", out)
	}
	if out := s.must("__complete", "describe", "pool", "pods", ""); !strings.HasPrefix(out, "closed\nracks\n") {
		t.Errorf("pools are completed with %s", out)
	}
}

// TestDescribePrintsTextsOfOthersInLines: no name of an object controls the terminal or forges a line.
func TestDescribePrintsTextsOfOthersInLines(t *testing.T) {
	t.Parallel()
	s, d := newPlayedDaemon(t)
	d.change(func() { d.peers[0].RequestedBy = []string{"BGPPeer/x\x1b[2J\nWanted by forged"} }) // in a heading
	r := s.runWithDaemon("describe", "peer", d.peers[0].Address)
	r.wantLines(t, 0, "Wanted by BGPPeer/x [2J Wanted by forged")
	if strings.Contains(r.out, "\x1b") {
		t.Errorf("%q", r.out)
	}
	s.run("describe", "x\x1b[2J").want(t, 2, "", "Error: describe x [2J: want ")
}

// testPluginDescribe is describe on a laptop: the objects come from the API with the rights of the user, the state from
// the node, which it finds by itself.
func testPluginDescribe(t *testing.T, w *nodesWorld) {
	w.server.InstallCRDs(t, form.V1, "ipamblocks", "blockaffinities", "ipamhandles", "ipamconfigs", "ipreservations")
	w.server.Request(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", map[string]any{
		"metadata": map[string]any{"name": "sre"},
		"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
			"name": "cluster-admin"},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "sre"}}})
	admin := shell{t: t, env: []string{"DATASTORE_TYPE=kubernetes", "KUBECONFIG=" + w.server.Kubeconfig(t, "sre")}}
	admin.mustPipe(describedPools+resource("NetworkPolicy", "name: web, namespace: default",
		"selector: k8s-app == 'manx-node', types: [Ingress]"), "create", "-f", "-")
	store, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, w.server.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // the test is over
	assign(t, store, "n1", "10.98.0.0/30", "shop/a", "shop/b", "shop/c", "shop/d")
	address := assign(t, store, "n2", "10.99.0.0/28", "default/web")
	w.server.Request(t, http.MethodPatch, "/api/v1/namespaces/default/pods/web/status", map[string]any{
		"status": map[string]any{"podIP": address, "podIPs": []any{map[string]any{"ip": address}}}})
	w.daemons["n2"].change(func() {
		w.daemons["n2"].endpoints = []*manxv1.Endpoint{{Namespace: "default", Name: "n2-k8s-web-eth0", Phase: "applied",
			SinceUnixMs: w.daemons["n2"].status.GetStartedUnixMs()}}
	})
	for _, name := range []string{"default/web", address} {
		w.kubectl(t, "sre", "describe", "endpoint", name).wantLines(t, 0, "Endpoint default/web",
			"Object: WorkloadEndpoint default/n2-k8s-web-eth0", "Node: n2", "On node n2", "State: applied for AGE",
			"Address "+address, "Owner: pod default/web", "Pool's use: 1 of 16 addresses in use or cooling down (6%)",
			"Ingress policies, in order", "1. NetworkPolicy/default/web in tier default, order none, since TIME")
	}

	// A pod without an address: what each pool has against it, and what its Events say.
	w.addPod(t, "default", "waits", "n1", "x", false)
	w.server.Request(t, http.MethodPost, "/api/v1/namespaces/default/events", map[string]any{
		"metadata":       map[string]any{"name": "waits.1"},
		"involvedObject": map[string]any{"kind": "Pod", "namespace": "default", "name": "waits"}, "type": "Warning",
		"reason": "FailedCreatePodSandBox", "count": 12, "lastTimestamp": "2026-11-20T01:02:03Z",
		"message": "plugin type=\"calico\" failed (add): \x1b[2Jfull\nNode n1: forged"})
	w.kubectl(t, "sre", "describe", "pod/default/waits").wantLines(t, 0, "Endpoint default/waits", "Node: n1",
		"Addresses: none", "On node n1", "Why it has no address", "Phase: Running",
		"Pool closed: disabled: nothing is assigned",
		"Pool pods: can serve it: 1 of 16 addresses in use or cooling down (6%)",
		"Pool racks: its nodeSelector \"rack == 'b'\" does not select node n1",
		"Pool small: full: 4 of 4 addresses in use or cooling down (100%)",
		"Pool teams: its namespaceSelector \"team == 'blue'\" does not select the namespace",
		"Pool tunnels: its allowedUses lack Workload",
		"Event: FailedCreatePodSandBox, 12 times, last TIME: plugin type=\"calico\" failed (add): [2Jfull Node n1: "+
			"forged")
	var data struct {
		Endpoints []struct {
			NoAddress struct {
				Pools []struct {
					Pool, Reason string
					Serves       bool
				}
				Events []string
			}
		}
	}
	out := w.kubectl(t, "sre", "describe", "pod/default/waits", "-o", "json").out
	if err := json.Unmarshal([]byte(out), &data); err != nil || len(data.Endpoints) != 1 {
		t.Fatalf("%v in\n%s", err, out)
	}
	if why := data.Endpoints[0].NoAddress; len(why.Pools) != 6 || len(why.Events) != 1 || !why.Pools[1].Serves ||
		why.Pools[3].Reason != "full: 4 of 4 addresses in use or cooling down (100%)" {
		t.Errorf("why the pod has no address: %+v", why)
	}
	w.server.Request(t, http.MethodPost, "/api/v1/namespaces/default/pods", map[string]any{
		"metadata": map[string]any{"name": "later"},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
	w.kubectl(t, "sre", "describe", "pod", "later", "-n", "default").wantLines(t, 0, "Pod default/later", "Node: none",
		"Address: none: the pod has no node yet: nothing has scheduled it")
	w.kubectl(t, "sre", "describe", "pod", "default/nobody").want(t, 1, "", `"default/nobody": does not exist`)

	// The node that does not answer is a line; so is the lack of rights, with what helps.
	w.kubectl(t, "sre", "describe", "node", "n5").wantLines(t, 4, "Node n5", "Ready: unknown: "+absentN5,
		"Endpoints: 2, 2 without an address: they start, or ended")
	r := w.kubectl(t, "sre", "describe", "node", "n5", "-o", "yaml")
	if !strings.Contains(r.out, "answered: false") || r.code != 4 {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	w.kubectl(t, "sre", "describe", "node", "n2").wantLines(t, 0, "Ready: yes", "BGP: 1/4 (!) sessions up",
		"10.99.0.0/28 1 of 16 in use")
	w.kubectl(t, "sre", "describe", "pool", "pods").wantLines(t, 0, "10.99.0.0/28 1 of 16 in use n2")
	w.kubectl(t, "oncall", "describe", "endpoint", "default/web").want(t, 1, "", "forbidden",
		"(with --node NODE this is read with the rights of manxd there)")
	w.kubectl(t, "sre", "describe", "pool", "pods", "-A").want(t, 2, "", "leave out --all-nodes")

	// With --node the node reads and answers.
	read := make(chan []string, 1)
	w.hostile.does(func(e execution) {
		read <- e.command
		_, _ = e.stdout.Write([]byte("\x1b[2Jthat\n"))
		e.end(0)
	}, nil)
	w.kubectl(t, "oncall", "describe", "pod/default/web", "--node=n6").want(t, 0, " [2Jthat\n")
	if got := strings.Join(<-read, " "); got != "/manxctl describe --namespace=default -- pod default/web" &&
		got != "/manxctl describe -- pod default/web" {
		t.Errorf("the node was asked %q", got)
	}
	// What a hostile node says about an endpoint is one line.
	w.addPod(t, "default", "victim", "n6", "x", true)
	w.hostile.does(func(e execution) {
		_, _ = e.stdout.Write([]byte(`{"endpoints":[{"namespace":"default","name":"n6-k8s-victim-eth0",` +
			`"phase":"applied\u001b[2J","reason":"x\nAddress 10.0.0.1"}]}`))
		e.end(0)
	}, nil)
	w.kubectl(t, "sre", "describe", "endpoint", "default/victim").wantLines(t, 0, "On node n6", "State: applied [2J",
		"Reason: x Address 10.0.0.1")
	w.hostile.does(nil, func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) })
}
