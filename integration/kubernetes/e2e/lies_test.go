package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/ipam"
)

const (
	crds  = "/apis/crd.projectcalico.org/v1/"
	group = "crd.projectcalico.org/v1"
)

// TestAPILies has one cluster, whose definitions accept everything. Each test restores it.
func TestAPILies(t *testing.T) {
	w := newWorld(t)
	w.settle(t)
	for _, test := range []struct {
		name string
		run  func(*world, *testing.T)
	}{
		{"objects that are nothing", (*world).testGarbage},
		{"pods that claim what is another's", (*world).testClaims},
		{"addresses that nothing confirms", (*world).testUnconfirmed},
		{"a kubelet that writes of another node", (*world).testOtherKubelet},
		{"invalid NetworkPolicies", (*world).testInvalidPolicies},
		{"a Node that is deleted and made again", (*world).testNodeAgain},
		{"two hosts with one name", (*world).testTwin},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(w, t) }) {
			break
		}
	}
}

// testGarbage stores objects that no client of Calico writes.
func (w *world) testGarbage(t *testing.T) {
	before := kernelState(t, w.n2)
	object := func(kind, name string, rest map[string]any) map[string]any {
		o := map[string]any{"kind": kind, "apiVersion": group, "metadata": map[string]any{"name": name}}
		for k, v := range rest {
			if m, ok := v.(map[string]any); ok && k == "metadata" {
				m["name"] = name
			}
			o[k] = v
		}
		return o
	}
	spec := func(s map[string]any) map[string]any { return map[string]any{"spec": s} }
	meta := func(text string) map[string]any {
		return map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{"projectcalico.org/metadata": text}},
			"spec": map[string]any{"peerIP": "10.9.9.9", "asNumber": 64999}}
	}
	huge := strings.Repeat("x", 250<<10)
	t.Run("all at once", func(t *testing.T) {
		for _, x := range []struct {
			plural string
			o      map[string]any
		}{
			{"ippools", object("IPPool", "number", spec(map[string]any{"cidr": 5}))},
			{"ippools", object("IPPool", "long", spec(map[string]any{"cidr": "10.0.0.0/33"}))},
			{"ippools", object("IPPool", "nothing", nil)},
			{"bgppeers", object("BGPPeer", "cow", spec(map[string]any{"peerIP": "cow", "asNumber": 1}))},
			{"bgppeers", object("BGPPeer", "mangled", meta(`{"uid":`))},
			{"bgppeers", object("BGPPeer", "list", meta(`[1,2]`))},
			{"bgppeers", object("BGPPeer", "other", meta(`{"name":"somebody-else"}`))},
			{"bgppeers", object("BGPPeer", "huge",
				map[string]any{"metadata": map[string]any{"annotations": map[string]any{
					"x": huge}}, "spec": map[string]any{"peerIP": "10.9.9.8", "asNumber": 64999, "node": "nobody"}})},
			{"felixconfigurations", object("FelixConfiguration", "node.n2",
				spec(map[string]any{"chainInsertMode": []int{1}}))},
			{"globalnetworkpolicies", object("GlobalNetworkPolicy", "default.text",
				spec(map[string]any{"order": "first",
					"selector": "all()", "ingress": "all"}))},
			{"globalnetworkpolicies", object("GlobalNetworkPolicy", "default.selector", spec(map[string]any{
				"selector": "app in 'b'", "types": []string{"Ingress"}}))},
			{"ipamblocks", object("IPAMBlock", "10-10-77-0-26", spec(map[string]any{"cidr": "10.10.77.0/26",
				"affinity": "host:n2", "allocations": "none"}))},
			{"ipamblocks", object("IPAMBlock", "x", spec(map[string]any{"cidr": "cow"}))},
			{"blockaffinities", object("BlockAffinity", "n2-cow", spec(map[string]any{"cidr": "cow", "node": "n2",
				"state": "confirmed", "deleted": "false"}))},
			{"blockaffinities", object("BlockAffinity", "deleted",
				spec(map[string]any{"cidr": "10.10.78.0/26", "node": "n2",
					"state": "confirmed", "deleted": "maybe"}))},
			{"hostendpoints", object("HostEndpoint", "he",
				spec(map[string]any{"node": "n2", "interfaceName": "eth0/../x"}))},
			{"clusterinformations", object("ClusterInformation", "odd",
				spec(map[string]any{"datastoreReady": "perhaps"}))},
		} {
			w.apply(t, crds+x.plural, x.o)
		}
		w.annotateNode(t, "n1", map[string]any{"projectcalico.org/x": huge, "projectcalico.org/labels": "[",
			"projectcalico.org/ASNumber": "many", "projectcalico.org/IPv4IPIPTunnelAddr": "cow"})
		t.Log(awaitStatus(t, w.n2, "cannot be used"))
		until(t, "the list of them", func() error {
			out, err := w.n2.Manxctl("node", "problems")
			if err != nil {
				return err
			}
			for _, name := range []string{"number", "cow", "mangled", "default.text", "n2-cow"} {
				if !strings.Contains(out, name) {
					return fmt.Errorf("no %s in:\n%s", name, out)
				}
			}
			t.Log(out)
			return nil
		})
		time.Sleep(2 * time.Second) // nothing may change
		unchanged(t, w.n2, before)
		w.connected(t)
		w.ready(t)
	})
	w.annotateNode(t, "n1", map[string]any{"projectcalico.org/x": nil, "projectcalico.org/labels": nil,
		"projectcalico.org/ASNumber": nil, "projectcalico.org/IPv4IPIPTunnelAddr": nil})
	until(t, "the end of it", func() error {
		if out := status(w.n2); strings.Contains(out, "cannot be used") {
			return fmt.Errorf("still:\n%s", out)
		}
		return nil
	})
	unchanged(t, w.n2, before)
}

func (w *world) annotateNode(t *testing.T, name string, annotations map[string]any) {
	t.Helper()
	w.server.Request(t, http.MethodPatch, "/api/v1/nodes/"+name, map[string]any{"metadata": map[string]any{
		"annotations": annotations}})
}

// testClaims has pods claim b's address in annotations, which every editor of pods can write.
func (w *world) testClaims(t *testing.T) {
	before, err := route(w.n2, w.b.ip.String())
	must(t, err)
	for i, x := range []struct {
		name   string
		status map[string]any
	}{
		{"a pod that never started", nil},
		{"a pod that has an address", map[string]any{
			"status": map[string]any{"phase": "Running", "podIP": "10.10.0.200",
				"podIPs": []any{map[string]string{"ip": "10.10.0.200"}}}}},
	} {
		t.Run(x.name, func(t *testing.T) {
			name := fmt.Sprintf("a-claim%d", i) // before b by name
			ip := w.b.ip.String() + "/32"
			w.apply(t, pods(), map[string]any{"kind": "Pod", "apiVersion": "v1",
				"metadata": map[string]any{"name": name, "labels": map[string]string{"app": "a"},
					"annotations": map[string]string{"cni.projectcalico.org/podIP": ip,
						"cni.projectcalico.org/podIPs": ip}},
				"spec": map[string]any{"nodeName": "n2", "terminationGracePeriodSeconds": 0,
					"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
			if x.status != nil {
				w.server.Request(t, http.MethodPatch, pods(name, "status"), x.status)
			}
			until(t, "the endpoint", func() error {
				out, err := w.n2.Manxctl("get", "workloadendpoints", "-A")
				if err == nil && !strings.Contains(out, name) {
					err = fmt.Errorf("no %s in:\n%s", name, out)
				}
				return err
			})
			time.Sleep(2 * time.Second) // nothing may change
			if now, err := route(w.n2, w.b.ip.String()); err != nil || now != before {
				t.Errorf("the route to b was %q and is %q (%v)", before, now, err)
			}
			w.connected(t)
		})
	}
	until(t, "no trace of the claims on n1", func() error {
		if r, err := route(w.n1, "10.10.0.200"); err == nil {
			return fmt.Errorf("there is %s", r)
		}
		return nil
	})
}

// testUnconfirmed has a tenant's pod, whose interface exists, claim addresses in its annotations before the kubelet
// reports one. Only an address that IPAM has assigned to the pod is routed to it.
func (w *world) testUnconfirmed(t *testing.T) {
	assigned, err := ipam.New(w.store, zap.NewNop(), time.Now).AutoAssign(t.Context(), ipam.Request{Host: "n2", Num4: 1,
		Handle: "k8s-pod-network.claimant", Use: v3.IPPoolAllowedUseWorkload,
		Attrs: map[string]string{"node": "n2", "namespace": "default", "pod": "claimant"}})
	must(t, err)
	own := assigned.V4.Addresses[0].Addr()
	stranger := own.Next() // of the same block, assigned to nobody
	elsewhere := netip.MustParseAddr("198.51.100.53")
	p := &pod{name: "claimant", ns: w.Spec.Name + "-claimant", ip: own,
		iface: conversion.InterfaceName("cali", "default", "claimant")}
	claim := func(ip netip.Addr) {
		w.annotate(t, pods(p.name), map[string]any{"cni.projectcalico.org/podIP": ip.String() + "/32",
			"cni.projectcalico.org/podIPs": ip.String() + "/32", "cni.projectcalico.org/containerID": "claimant"})
	}
	w.apply(t, pods(), map[string]any{"kind": "Pod", "apiVersion": "v1",
		"metadata": map[string]any{"name": p.name, "labels": map[string]string{"app": "claimant"}},
		"spec": map[string]any{"nodeName": "n2", "terminationGracePeriodSeconds": 0,
			"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
	w.wire(t, w.n2, p)
	for _, ip := range []netip.Addr{elsewhere, stranger, w.a.ip} {
		claim(ip)
		until(t, "the notice of the claim", func() error {
			if r, err := w.n2.Run("ip", "route", "get", ip.String()); err == nil && strings.Contains(r, p.iface) {
				t.Fatalf("%s is routed to the claimant: %s", ip, r)
			}
			text := "annotations of the pod claim " + ip.String() + "/32, which IPAM has not assigned to it"
			if out := status(w.n2); !strings.Contains(out, text) {
				return fmt.Errorf("no %q in:\n%s", text, out)
			}
			return nil
		})
	}
	w.connected(t)
	claim(own)
	until(t, "a route to the address that IPAM has assigned", func() error {
		r, err := route(w.n2, own.String())
		if err == nil && !strings.Contains(r, p.iface) {
			err = fmt.Errorf("the route is %s", r)
		}
		return err
	})
	until(t, "no notice about it", func() error {
		if out := status(w.n2); strings.Contains(out, "claim") {
			return fmt.Errorf("still:\n%s", out)
		}
		return nil
	})
	w.server.Request(t, http.MethodDelete, pods(p.name), nil)
	w.testClaimsElsewhere(t)
}

// testClaimsElsewhere has pods of other nodes claim the address of a, which policy keeps from b, under labels that may
// reach b.
func (w *world) testClaimsElsewhere(t *testing.T) {
	w.apply(t, networkPolicies, onlyFrom("only-friends", "b", "friend", 7))
	until(t, "the policy", func() error { return hasPolicy(w, "only-friends") })
	friend := func(name, node string, ip netip.Addr) {
		w.apply(t, pods(), map[string]any{"kind": "Pod", "apiVersion": "v1",
			"metadata": map[string]any{"name": name, "labels": map[string]string{"app": "friend"},
				"annotations": map[string]string{"cni.projectcalico.org/podIP": ip.String() + "/32"}},
			"spec": map[string]any{"nodeName": node, "terminationGracePeriodSeconds": 0,
				"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
	}
	elements := func() string {
		out, err := w.n2.Run("nft", "list", "table", "inet", "manx")
		must(t, err)
		return out
	}
	friend("nowhere", "no-such-node", w.a.ip)
	friend("outside", "n1", netip.MustParseAddr("198.51.100.54"))
	friend("node", "n1", w.n1.IP4)
	credible := netip.MustParseAddr("10.10.99.99") // in a pool, and nobody's
	friend("starting", "n1", credible)
	until(t, "the address of a pod that starts elsewhere", func() error {
		if !strings.Contains(elements(), credible.String()) {
			return fmt.Errorf("it is in no set")
		}
		return nil
	})
	if strings.Contains(elements(), "198.51.100.54") {
		t.Error("an address outside of all pools is in a set")
	}
	if w.a.dial(w.b, 7) == nil {
		t.Error("a reaches b since a pod without a node claims its address")
	}
	for _, name := range []string{"nowhere", "outside", "node", "starting"} {
		w.server.Request(t, http.MethodDelete, pods(name), nil)
	}
	w.server.Request(t, http.MethodDelete, networkPolicies+"/only-friends", nil)
	w.connected(t)
}

// testOtherKubelet uses the credentials of n1's kubelet and of a user who may edit pods for objects of others.
func (w *world) testOtherKubelet(t *testing.T) {
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		"projectcalico.org/IPv4Address": w.n1.IP4.String() + "/24"}}}
	raw, err := json.Marshal(patch)
	must(t, err)
	for _, path := range []string{"/api/v1/nodes/n2", "/api/v1/nodes/n2/status", pods("b"), pods("b", "status")} {
		var code int
		w.server.Raw(t, "system:node:n1").Patch("application/merge-patch+json").AbsPath(path).Body(raw).Do(t.Context()).
			StatusCode(&code)
		if code != http.StatusForbidden {
			t.Errorf("n1's kubelet writes to %s: %d", path, code)
		}
	}
	// The change of an authorised writer is reported on every node. Undoing it restores the earlier state.
	before := kernelState(t, w.n1)
	w.annotateNode(t, "n2", map[string]any{"projectcalico.org/IPv4Address": w.n1.IP4.String() + "/24"})
	t.Log(awaitStatus(t, w.n1, "Node/n2", "is also the address of node n1"))
	awaitStatus(t, w.n2, "is also the address of node n1")
	w.annotateNode(t, "n2", map[string]any{"projectcalico.org/IPv4Address": w.n2.IP4.String() + "/24"})
	w.connected(t)
	until(t, "n1 as before", func() error {
		if now := kernelState(t, w.n1); now != before {
			return fmt.Errorf("was\n%s\nis\n%s", before, now)
		}
		return nil
	})
}

// testInvalidPolicies stores NetworkPolicies that the API accepts and that cannot be followed to the letter.
func (w *world) testInvalidPolicies(t *testing.T) {
	rule := func(peer, port any) map[string]any {
		r := map[string]any{}
		if peer != nil {
			r["from"] = []any{peer}
		}
		if port != nil {
			r["ports"] = []any{port}
		}
		return r
	}
	app := map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"app": "a"}}}
	for i, x := range []struct {
		name string
		rule map[string]any
		// An omitted part is reported, and an accepted part may be reported, too.
		notice string
		open   bool
	}{
		{"a network with bits beyond its length",
			rule(map[string]any{"ipBlock": map[string]any{"cidr": "10.10.0.77/8"}}, nil),
			"", true},
		{"a network with zeros before its numbers",
			rule(map[string]any{"ipBlock": map[string]any{"cidr": "010.010.0.0/16"}}, nil),
			"010.010.0.0/16", false},
		{"an exception with zeros", rule(map[string]any{"ipBlock": map[string]any{"cidr": "10.0.0.0/8",
			"except": []string{"10.010.0.0/16"}}}, nil), "10.010.0.0/16", false},
		{"an IPv4 address written as IPv6",
			rule(map[string]any{"ipBlock": map[string]any{"cidr": "::ffff:10.10.0.0/112"}}, nil),
			"::ffff:10.10.0.0/112", false},
		{"a range that ends before it begins", rule(app, map[string]any{"port": 9000, "endPort": 8000}), "", false},
		{"a range from a name", rule(app, map[string]any{"port": "http", "endPort": 8000}), "", false},
		{"a port that nobody has", rule(app, map[string]any{"port": "nobody"}), "", false},
		{"an operator that nobody knows", rule(map[string]any{"podSelector": map[string]any{"matchExpressions": []any{
			map[string]any{"key": "app", "operator": "Like", "values": []string{"a"}}}}}, nil), "", false},
		{"a value for an operator without values",
			rule(map[string]any{"podSelector": map[string]any{"matchExpressions": []any{
				map[string]any{"key": "app", "operator": "Exists", "values": []string{"a"}}}}}, nil), "", false},
		{"a protocol that nobody knows", rule(app, map[string]any{"port": 7, "protocol": "IGMP"}), "", false},
	} {
		name := fmt.Sprintf("odd%d", i)
		o := onlyFrom(name, "b", "nobody", 7)
		o["spec"].(map[string]any)["ingress"] = []any{x.rule}
		raw, err := json.Marshal(o)
		must(t, err)
		if _, err := w.server.Try(t.Context(), t, http.MethodPost, networkPolicies, raw); err != nil {
			t.Logf("%s: refused by the API: %v", x.name, err)
			continue
		}
		until(t, x.name, func() error { return hasPolicy(w, name) })
		if open := w.a.dial(w.b, 7) == nil; open != x.open {
			t.Errorf("%s: a reaches b: %v, want %v", x.name, open, x.open)
		}
		if x.notice != "" {
			t.Logf("%s:\n%s", x.name, noticesOf(awaitStatus(t, w.n2, "default/"+name, x.notice)))
		}
		w.server.Request(t, http.MethodDelete, networkPolicies+"/"+name, nil)
		w.connected(t)
	}
}

// noticesOf returns the lines of a status that report a problem.
func noticesOf(out string) string {
	var list []string
	for _, line := range strings.Split(out, "\n") {
		if strings.HasPrefix(line, "Notice") || strings.HasPrefix(line, "Health") ||
			strings.HasPrefix(line, "Policy") ||
			strings.HasPrefix(line, " ") {
			list = append(list, line)
		}
	}
	return strings.Join(list, "\n")
}

// testNodeAgain deletes n2's Node under its running daemon, and creates it again as a kubelet does.
func (w *world) testNodeAgain(t *testing.T) {
	w.server.Request(t, http.MethodDelete, "/api/v1/nodes/n2", nil)
	time.Sleep(5 * time.Second) // the node goes on without its Node
	t.Log(status(w.n2))
	must(t, w.b.dialSelf(w))
	w.addNode(t, "n2")
	until(t, "n2's address in Kubernetes", func() error {
		var n struct {
			Metadata struct{ Annotations map[string]string }
		}
		if err := json.Unmarshal(w.server.Request(t, http.MethodGet, "/api/v1/nodes/n2", nil), &n); err != nil {
			return err
		}
		if got := n.Metadata.Annotations["projectcalico.org/IPv4Address"]; got != w.n2.IP4.String()+"/24" {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	w.connected(t)
	w.ready(t)
}

// dialSelf is an error if the pod's own node does not reach it.
func (p *pod) dialSelf(w *world) error { return lab.Ping(w.n2.Namespace, p.ip) }

// testTwin starts a daemon on n1 with the name of n2: first with the address of n1's Node, which is refused, and then,
// as on an unknown host, with an address that no Node has. n2 detects that its Node belongs to another host.
func (w *world) testTwin(t *testing.T) {
	before := kernelState(t, w.n2)
	w.n1.Manxd().Kill()
	twin := append(w.arguments(0), "--node-name=n2")
	must(t, w.n1.StartManxd(twin...))
	until(t, "the refusal", func() error {
		select {
		case <-w.n1.Manxd().Done():
			return nil
		default:
			return fmt.Errorf("the twin runs")
		}
	})
	if end := tail(w.n1.Log(), 1); !strings.Contains(end, "already used by node n1") {
		t.Errorf("the twin ended with %s", end)
	}
	w.annotateNode(t, "n1", map[string]any{"projectcalico.org/IPv4Address": nil})
	must(t, w.n1.StartManxd(twin...))
	says := fmt.Sprintf("the Node n2 says %s, which is on no interface of this host", w.n1.IP4)
	out := awaitStatus(t, w.n2, "Notice:     Node/n2: "+says, "Health:     node-address: "+says, w.n2.IP4.String())
	if !strings.Contains(out, "exit status") {
		t.Errorf("the status is that of a healthy node:\n%s", out)
	}
	t.Log(out)
	w.n1.Manxd().Kill()
	// The first host registers when it starts again, and has its Node back. Before, n1's address is that of n2.
	w.n2.Manxd().Kill()
	must(t, w.n2.StartManxd(w.arguments(1)...))
	must(t, w.n2.Ready(patience))
	must(t, w.n1.StartManxd(w.arguments(0)...))
	w.ready(t)
	w.connected(t)
	unchanged(t, w.n2, before)
}
