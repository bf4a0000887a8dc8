package datastore_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/ipam"
)

const patience = 90 * time.Second

func until(t *testing.T, what string, ok func() error) {
	t.Helper()
	if err := lab.Eventually(patience, ok); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// cluster is two nodes, each with its own line to the API.
type cluster struct {
	*lab.Lab
	server *apiserver.Server
	lines  []*apiserver.Line
	kube   []string // the nodes' kubeconfigs
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	bin, missing := lab.Require("ip", "bird", "birdc")
	if missing != nil {
		t.Skip(missing)
	}
	c := &cluster{server: apiserver.Start(t)}
	c.server.InstallCRDs(t, form.V1)
	l, err := lab.New(lab.Spec{Name: fmt.Sprintf("k%d", os.Getpid()%1e6), Bin: bin,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	if err != nil {
		t.Fatal(err)
	}
	c.Lab = l
	t.Cleanup(func() {
		for _, n := range l.Nodes {
			if t.Failed() {
				t.Logf("log of %s:\n%s", n.Name, n.Log())
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, n := range l.Nodes {
		listener, err := n.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		line := apiserver.NewLineFrom(t, listener, c.server.URL)
		c.lines = append(c.lines, line)
		c.kube = append(c.kube, c.server.KubeconfigAt(t, line.URL, apiserver.Admin))
	}
	return c
}

// addNode makes the object that a kubelet registers first.
func (c *cluster) addNode(t *testing.T, name string) {
	t.Helper()
	c.server.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"kind": "Node", "apiVersion": "v1",
		"metadata": map[string]any{"name": name, "labels": map[string]string{"zone": "a"}}})
}

func (c *cluster) annotations(t *testing.T, name string) map[string]string {
	t.Helper()
	var n struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal(c.server.Request(t, http.MethodGet, "/api/v1/nodes/"+name, nil), &n); err != nil {
		t.Fatal(err)
	}
	return n.Metadata.Annotations
}

// contains is an error unless the output of a command has a text.
func contains(out string, err error, want string) error {
	if err != nil {
		return err
	}
	if !strings.Contains(out, want) {
		return fmt.Errorf("no %q in:\n%s", want, out)
	}
	return nil
}

// Two nodes with the Kubernetes API as datastore have a session, and routes to each other's blocks. Both stay while the
// API is away.
func TestTwoNodes(t *testing.T) {
	c := newCluster(t)
	c.addNode(t, "n2")
	for i, n := range c.Nodes {
		if err := n.StartManxd("--datastore=kubernetes", "--kubeconfig="+c.kube[i], "--ip=autodetect",
			"--ipv4pool-cidr=10.10.0.0/16", "--ipv6pool-cidr=none"); err != nil {
			t.Fatal(err)
		}
	}
	first, second := c.Nodes[0], c.Nodes[1]
	until(t, "why the first waits", func() error {
		out, err := first.Manxctl("status") // it fails on an unhealthy node
		return contains(fmt.Sprint(out, err), nil, "kubelet has to register")
	})
	c.addNode(t, "n1")
	for _, n := range c.Nodes {
		if err := n.Ready(patience); err != nil {
			t.Fatal(err)
		}
		if got := c.annotations(t, n.Name)["projectcalico.org/IPv4Address"]; !strings.HasPrefix(got,
			n.IP4.String()+"/") {
			t.Errorf("%s has address %q in Kubernetes, want %s", n.Name, got, n.IP4)
		}
	}
	log := zap.NewNop()
	store, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, c.server.Config(apiserver.Admin), log)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, err := ipam.New(store, log, time.Now).AutoAssign(t.Context(),
		ipam.Request{Host: "n1", Num4: 1, Handle: "a-pod",
			Use: v3.IPPoolAllowedUseWorkload}); err != nil {
		t.Fatal(err)
	}
	blocks, _, err := store.List(t.Context(), model.KindIPAMBlock, "")
	if err != nil || len(blocks) != 1 {
		t.Fatalf("blocks %v, %v", blocks, err)
	}
	block := netip.MustParsePrefix(blocks[0].Key.Name)
	route := func() error {
		out, err := second.Routes("-4")
		return contains(out, err, fmt.Sprintf("%s via %s", block, first.IP4))
	}
	until(t, "the route to the block", route)

	// A route that the host's administrator made goes to other nodes, as long as it is there: it lies in the pool.
	const static = "10.10.200.0/24"
	if out, err := first.Run("ip", "route", "add", static, "via", first.Gateway()); err != nil {
		t.Fatal(err, out)
	}
	learned := func() error {
		out, err := second.Routes("-4")
		return contains(out, err, fmt.Sprintf("%s via %s", static, first.IP4))
	}
	until(t, "the other node's route for it", learned)
	if out, err := first.Run("ip", "route", "del", static); err != nil {
		t.Fatal(err, out)
	}
	until(t, "its end", func() error {
		if learned() == nil {
			return fmt.Errorf("the route to %s is still there", static)
		}
		return nil
	})

	for _, info := range model.Kinds() {
		if _, err := first.Manxctl("get", info.Plural, "-o", "yaml"); info.Resource && err != nil {
			t.Errorf("get %s: %v", info.Plural, err)
		}
	}
	out, err := first.Manxctl("get", "clusterinformations", "default", "-o", "yaml")
	if err := contains(out, err, "kdd"); err != nil {
		t.Error(err)
	}

	// The API is away: the routes stay. Changes made meanwhile take effect when it is back.
	c.server.Stop()
	until(t, "the loss", func() error {
		out, err := second.Manxctl("status")
		return contains(fmt.Sprint(out, err), nil, "cannot be reached")
	})
	if err := route(); err != nil {
		t.Error(err)
	}
	c.server.Restart(t)
	for _, n := range c.Nodes {
		if err := n.Ready(patience); err != nil {
			t.Error(err)
		}
	}
	c.lines[1].Cut()
	affinity := model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: "n1", CIDR: block})
	for _, k := range []model.Key{affinity, blocks[0].Key} {
		if _, err := store.Delete(t.Context(), k, 0); err != nil {
			t.Fatal(err)
		}
	}
	c.lines[1].Mend()
	until(t, "the end of the route", func() error {
		if route() == nil {
			return fmt.Errorf("the route to %s is still there", block)
		}
		return nil
	})
	c.podCIDRs(t)
}

// podCIDRs restarts the nodes for a cluster whose pods get their addresses from the pod CIDRs of their nodes. A node
// announces them as its blocks, and drops packets to the unassigned addresses in them.
func (c *cluster) podCIDRs(t *testing.T) {
	const block = "10.10.7.0/24"
	first, second := c.Nodes[0], c.Nodes[1]
	c.server.Request(t, http.MethodPatch, "/api/v1/nodes/n1", map[string]any{"spec": map[string]any{
		"podCIDR": block, "podCIDRs": []string{block}}})
	for i, n := range c.Nodes {
		if err := n.Manxd().Stop(30 * time.Second); err != nil {
			t.Fatal(err)
		}
		if err := n.StartManxd("--datastore=kubernetes", "--kubeconfig="+c.kube[i], "--ip=autodetect",
			"--ipv4pool-cidr=10.10.0.0/16", "--ipv6pool-cidr=none", "--use-pod-cidr"); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the route to the pod CIDR of the other node", func() error {
		out, err := second.Routes("-4")
		return contains(out, err, fmt.Sprintf("%s via %s", block, first.IP4))
	})
	until(t, "the blackhole of the own pod CIDR", func() error {
		out, err := first.Routes("-4")
		return contains(out, err, "blackhole "+block)
	})
	out, err := second.Manxctl("get", "blockaffinities")
	if err := contains(out, err, block); err != nil {
		t.Error(err)
	}
}
