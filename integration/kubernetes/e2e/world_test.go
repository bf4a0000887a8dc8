package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/pki"
	"github.com/manxnet/manx/integration/kubernetes/twonodes"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/ipam"
)

// daemon is manxd's user, with the rights of the shipped manifests.
const daemon = "system:serviceaccount:kube-system:manx-node"

const patience = twonodes.Patience

var must, until, tail = twonodes.Must, twonodes.Until, twonodes.Tail

// world is two nodes of a cluster, each with its own proxy to the API, which can be cut or disturb requests.
type world struct {
	*lab.Lab
	server  *apiserver.Server
	ca      *pki.Authority
	proxies []*apiProxy
	lines   []*apiserver.Line
	kube    []string // kubeconfigs
	store   *kubernetes.Store
	n1, n2  *lab.Node
	a, b    *pod // on n1 and on n2
}

// atOnce bounds the worlds that exist at the same time: their tests wait more than they compute. worlds counts all.
var (
	atOnce = make(chan struct{}, 2)
	worlds atomic.Int32
)

// newWorld builds the nodes, with definitions of custom resources that accept everything; nothing runs on them yet. The
// test runs beside another one.
func newWorld(t *testing.T, only ...string) *world {
	t.Helper()
	t.Parallel()
	atOnce <- struct{}{}
	t.Cleanup(func() { <-atOnce })
	bin := twonodes.Require(t, "ip", "ping")
	w := &world{ca: newAuthority(t, "first authority")}
	w.server = apiserver.Start(t, "--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction")
	w.server.AddUsers(t, daemon, "user", "system:node:n1", "system:node:n2")
	if len(only) == 0 || only[0] != "none" {
		w.server.InstallCRDs(t, form.V1, only...)
	}
	w.rights(t)
	l := twonodes.New(t, "b"+string('a'+worlds.Add(1)-1), bin)
	w.Lab, w.n1, w.n2 = l, l.Nodes[0], l.Nodes[1]
	for _, n := range l.Nodes {
		f := newAPIProxy(t, w.server, w.ca)
		line := twonodes.Line(t, n, f.URL)
		w.proxies, w.lines = append(w.proxies, f), append(w.lines, line)
		w.kube = append(w.kube, w.kubeconfig(t, n, "kubeconfig", line.URL, apiserver.Token(daemon), w.ca))
		w.addNode(t, n.Name)
	}
	var err error
	w.store, err = kubernetes.OpenREST(t.Context(), kubernetes.Config{}, w.server.Config(apiserver.Admin), zap.NewNop())
	must(t, err)
	t.Cleanup(func() { w.store.Close() }) //nolint:errcheck // the test is over
	return w
}

// kubeconfig writes a kubeconfig that refers to no other file.
func (w *world) kubeconfig(t *testing.T, n *lab.Node, name, url, token string, ca *pki.Authority) string {
	t.Helper()
	file := filepath.Join(n.Dir, name)
	raw, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": url,
			"certificate-authority-data": ca.PEM()}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "x", "context": map[string]any{"cluster": "c", "user": "u"}}}})
	must(t, err)
	replace(t, file, raw)
	return file
}

// replace replaces a file by a rename, as kubelets do.
func replace(t *testing.T, file string, content []byte) {
	t.Helper()
	must(t, os.WriteFile(file+".new", content, 0o600))
	must(t, os.Rename(file+".new", file))
}

// rights gives the daemon the rights of the shipped manifests. Here the controllers run in it, as on hosts without a
// pod of their own for them, so it has the rights of their account, too.
func (w *world) rights(t *testing.T) {
	t.Helper()
	raw, err := os.ReadFile("../../../deploy/manifests/manx-kubernetes.yaml")
	must(t, err)
	for _, doc := range twonodes.Documents(t, string(raw)) {
		switch twonodes.Kind(t, doc) {
		case "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding":
			before, subjects, ok := bytes.Cut(doc, []byte(`"subjects":`))
			if ok {
				subjects = bytes.ReplaceAll(subjects, []byte("manx-controllers"), []byte("manx-node"))
				doc = slices.Concat(before, []byte(`"subjects":`), subjects)
			}
			twonodes.Create(t, w.server, doc)
		}
	}
}

const rbac = "/apis/rbac.authorization.k8s.io/v1"

// addNode makes the object that a kubelet registers first.
func (w *world) addNode(t *testing.T, name string) {
	t.Helper()
	w.server.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"kind": "Node", "apiVersion": "v1",
		"metadata": map[string]any{"name": name, "labels": map[string]string{"kubernetes.io/hostname": name}}})
}

// arguments of manxd on a node.
func (w *world) arguments(i int) []string {
	return []string{"--datastore=kubernetes", "--kubeconfig=" + w.kube[i], "--ip=autodetect",
		"--ip-autodetection-method=interface=eth0", "--ipv4pool-cidr=10.10.0.0/16", "--ipv6pool-cidr=none"}
}

func (w *world) start(t *testing.T) {
	t.Helper()
	for i, n := range w.Nodes {
		must(t, n.StartManxd(w.arguments(i)...))
	}
	w.ready(t)
}

func (w *world) ready(t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes {
		must(t, n.Ready(patience))
	}
}

// settle starts the nodes, and a pod on each.
func (w *world) settle(t *testing.T) {
	t.Helper()
	w.start(t)
	w.a, w.b = w.addPod(t, w.n1, "a"), w.addPod(t, w.n2, "b")
	w.a.echo(t, 7)
	w.b.echo(t, 7)
	w.connected(t)
	for _, n := range w.Nodes { // with the rights that the manifests give
		if out := status(n); strings.Contains(out, "does not allow") {
			t.Errorf("%s is refused something:\n%s", n.Name, out)
		}
	}
}

// connected waits until pods reach each other over the nodes' session.
func (w *world) connected(t *testing.T) {
	t.Helper()
	until(t, "a reaches b", func() error { return w.a.dial(w.b, 7) })
	until(t, "b reaches a", func() error { return w.b.dial(w.a, 7) })
}

// pod is a pod whose interface this test made as the CNI plugin does.
type pod struct {
	name, ns string // ns: its network namespace
	ip       netip.Addr
	iface    string
}

func pods(rest ...string) string { return podsOf("default", rest...) }

func podsOf(namespace string, rest ...string) string {
	return strings.Join(append([]string{"/api/v1/namespaces", namespace, "pods"}, rest...), "/")
}

func (w *world) addPod(t *testing.T, n *lab.Node, name string) *pod {
	t.Helper()
	return w.addPodOf(t, n, "default", name)
}

// addPodOf makes a pod of a namespace that exists.
func (w *world) addPodOf(t *testing.T, n *lab.Node, tenant, name string) *pod {
	t.Helper()
	p := &pod{name: name, ns: w.Spec.Name + "-" + name, iface: conversion.InterfaceName("cali", tenant, name)}
	w.createPod(t, n, tenant, name)
	assigned, err := ipam.New(w.store, zap.NewNop(), time.Now).AutoAssign(t.Context(),
		ipam.Request{Host: n.Name, Num4: 1,
			Handle: "test." + name, Use: v3.IPPoolAllowedUseWorkload})
	must(t, err)
	p.ip = assigned.V4.Addresses[0].Addr()
	w.connect(t, n, p, tenant)
	return p
}

func (w *world) createPod(t *testing.T, n *lab.Node, tenant, name string) {
	t.Helper()
	w.server.Request(t, http.MethodPost, podsOf(tenant), map[string]any{"kind": "Pod", "apiVersion": "v1",
		"metadata": map[string]any{"name": name, "labels": map[string]string{"app": name}},
		"spec": map[string]any{"nodeName": n.Name, "terminationGracePeriodSeconds": 0,
			"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
}

// hasAddress writes a pod's status, as the kubelet does.
func (w *world) hasAddress(t *testing.T, tenant string, p *pod) {
	t.Helper()
	w.server.Request(t, http.MethodPatch, podsOf(tenant, p.name, "status"), map[string]any{"status": map[string]any{
		"phase": "Running", "podIP": p.ip.String(), "podIPs": []any{map[string]string{"ip": p.ip.String()}}}})
}

// connect gives a pod its interface and address.
func (w *world) connect(t *testing.T, n *lab.Node, p *pod, tenant string) {
	t.Helper()
	w.wire(t, n, p)
	w.annotate(t, podsOf(tenant, p.name), map[string]any{"cni.projectcalico.org/podIP": p.ip.String() + "/32",
		"cni.projectcalico.org/podIPs": p.ip.String() + "/32", "cni.projectcalico.org/containerID": p.name})
	w.hasAddress(t, tenant, p)
}

// wire makes the pair of interfaces.
func (w *world) wire(t *testing.T, n *lab.Node, p *pod) {
	t.Helper()
	must(t, namespace.Add(p.ns))
	t.Cleanup(func() { _ = namespace.Remove(p.ns) })
	run(t, "ip", "-n", n.Namespace, "link", "add", p.iface, "address", "ee:ee:ee:ee:ee:ee", "type", "veth", "peer",
		"name", "eth0", "netns", p.ns)
	run(t, "ip", "-n", n.Namespace, "link", "set", p.iface, "up")
	for _, s := range []string{"link set eth0 up", "addr add " + p.ip.String() + "/32 dev eth0",
		"route add 169.254.1.1 dev eth0 scope link", "route add default via 169.254.1.1",
		"neigh add 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee"} {
		run(t, "ip", append([]string{"-n", p.ns}, strings.Fields(s)...)...)
	}
}

// annotate changes a pod like the CNI plugin, or like any user with the right to edit pods.
func (w *world) annotate(t *testing.T, pod string, annotations map[string]any) {
	t.Helper()
	w.server.Request(t, http.MethodPatch, pod,
		map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// echo serves connections to TCP ports in the pod.
func (p *pod) echo(t *testing.T, ports ...int) {
	t.Helper()
	for _, port := range ports {
		var l net.Listener
		var err error
		must(t, namespace.Inside(p.ns, func() { l, err = net.Listen("tcp", fmt.Sprintf("%s:%d", p.ip, port)) }))
		must(t, err)
		t.Cleanup(func() { l.Close() }) //nolint:errcheck // the test is over
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close() //nolint:errcheck // that it came is enough
			}
		}()
	}
}

// dial connects to another pod.
func (p *pod) dial(to *pod, port int) (err error) {
	inside := namespace.Inside(p.ns, func() {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", fmt.Sprintf("%s:%d", to.ip, port), 2*time.Second); err == nil {
			err = c.Close()
		}
	})
	return errors.Join(inside, err)
}

// kernelState returns the state that must not change: routes and rules of a node.
func kernelState(t *testing.T, n *lab.Node) string {
	t.Helper()
	routes, err := n.Routes("-4")
	must(t, err)
	rules, err := n.Run("nft", "-s", "list", "table", "inet", "manx")
	must(t, err)
	return routes + rules
}

func unchanged(t *testing.T, n *lab.Node, before string) {
	t.Helper()
	if now := kernelState(t, n); now != before {
		t.Errorf("%s: routes and rules were\n%s\nand are\n%s", n.Name, before, now)
	}
}

// status returns the output of `manxctl status`, for any exit code.
func status(n *lab.Node) string {
	out, err := n.Manxctl("status")
	if err != nil {
		out += err.Error()
	}
	return out
}

// awaitStatus waits until the status of a node has all of these texts, and returns it.
func awaitStatus(t *testing.T, n *lab.Node, texts ...string) (out string) {
	t.Helper()
	until(t, n.Name+"'s status", func() error {
		out = status(n)
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("no %q in:\n%s", text, out)
			}
		}
		return nil
	})
	return out
}

// route is the line of a node's table for a prefix.
func route(n *lab.Node, prefix string) (string, error) {
	out, err := n.Run("ip", "route", "show", prefix)
	if err == nil && strings.TrimSpace(out) == "" {
		err = fmt.Errorf("%s has no route to %s", n.Name, prefix)
	}
	return strings.TrimSpace(out), err
}

// apply stores raw objects as admin, without validation.
func (w *world) apply(t *testing.T, path string, o map[string]any) {
	t.Helper()
	raw, err := json.Marshal(o)
	must(t, err)
	name, _ := o["metadata"].(map[string]any)["name"].(string)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = w.server.Try(ctx, t, http.MethodPost, path, raw)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = w.server.Try(ctx, t, http.MethodDelete, path+"/"+name, nil)
	})
}
