package main

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/stock"
	"github.com/manxnet/manx/ipam"
)

// Pods that the real host-local has given addresses keep them: the upgrade assigns them to the pods, the next pod gets
// another one, and the end of an old pod releases its own. An address in no pool is an error that names it.
func TestUpgradeOfAddresses(t *testing.T) {
	h := newHost(t)
	program, err := stock.HostLocal.Path()
	if err != nil {
		t.Skip(err)
	}
	h.must(os.Symlink(program, filepath.Join(h.dir, "bin", "host-local")))
	root := filepath.Join(h.dir, "host-local")
	upgrade := func() (string, error) {
		t.Helper()
		var out bytes.Buffer
		env := map[string]string{"KUBERNETES_NODE_NAME": "node-1", "ETCD_ENDPOINTS": h.etcd.Endpoint}
		err := upgradeAddresses(root, network, func(name string) string { return env[name] }, &out)
		return out.String(), err
	}
	if out, err := upgrade(); err != nil || !strings.Contains(out, "nothing to upgrade") {
		t.Errorf("without a folder: %q, %v", out, err)
	}
	key := model.ResourceKey(model.KindNode, "node-1")
	o, err := h.store.Get(context.Background(), key)
	h.must(err)
	o = o.Clone()
	o.Value.(*model.Node).Status.PodCIDRs = []string{"10.65.0.128/25"}
	_, err = h.store.Update(context.Background(), o)
	h.must(err)
	own := h.conf["ipam"]
	h.conf["ipam"] = map[string]any{"type": "host-local", "dataDir": root, "subnet": "usePodCidr"}
	web, other := h.pod("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web").mustAdd(), h.pod("").mustAdd()
	elsewhere := filepath.Join(root, network, "10.99.0.1")
	h.must(os.WriteFile(elsewhere, []byte("container\r\neth0"), 0o600))
	out, err := upgrade()
	if err == nil || !strings.Contains(err.Error(), "10.99.0.1: container container has it, and it lies in no") {
		t.Errorf("with an address of no pool: %v", err)
	}
	if !strings.Contains(out, "because: pod shop/web has it") {
		t.Errorf("the plan is\n%s", out)
	}
	h.must(os.Remove(elsewhere))
	if out, err := upgrade(); err != nil || !strings.Contains(out, "nothing to upgrade") {
		t.Errorf("once more: %q, %v", out, err)
	}
	h.conf["ipam"] = own
	var got []netip.Addr
	for range 3 {
		p := h.pod("").mustAdd()
		got = append(got, p.addrs()...)
		defer func() { h.must(p.del()) }()
	}
	for _, p := range []*pod{web, other} {
		if slices.Contains(got, p.addrs()[0]) {
			t.Errorf("new pods have %v, and an old one %v", got, p.addrs())
		}
	}
	a := ipam.New(h.store, nil, nil)
	is, err := a.GetAssignmentAttributes(context.Background(), web.addrs()[0])
	h.must(err)
	if is.Handle != network+"."+web.id || is.Attrs["pod"] != "web" || is.Attrs["namespace"] != "shop" ||
		is.Attrs["node"] != "node-1" || is.Attrs["timestamp"] == "" {
		t.Errorf("the old pod's address is %+v", is)
	}
	h.must(web.del())
	if left, err := a.GetAssignmentAttributes(context.Background(), web.addrs()[0]); err == nil {
		t.Errorf("the address of the deleted pod is %+v", left)
	}
	h.must(other.del())
	for _, p := range []string{"10.65.0.128/26", "10.65.0.192/26"} {
		cidr := netip.MustParsePrefix(p)
		if _, err := h.store.Get(context.Background(), model.AffinityKey(model.Affinity{Type: model.AffinityHost,
			Host: "node-1", CIDR: cidr})); err != nil {
			t.Errorf("affinity of %s: %v", p, err)
		}
	}
}
