package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/stock"
)

func TestSubnetOfTheNode(t *testing.T) {
	h := newHost(t)
	program, err := stock.HostLocal.Path()
	if err != nil {
		t.Skip(err)
	}
	h.must(os.Symlink(program, filepath.Join(h.dir, "bin", "host-local")))
	h.conf["ipam"] = map[string]any{
		"type": "host-local", "dataDir": filepath.Join(h.dir, "host-local"),
		"ranges": []any{[]any{map[string]any{"subnet": "usePodCidr"}},
			[]any{map[string]any{"subnet": "usepodcidrIPv6"}}},
	}
	p := h.pod("")
	if err := p.add(); err == nil || !strings.Contains(err.Error(), "podCIDRs") {
		t.Errorf("without CIDRs of the node: %v", err)
	}
	o, err := h.store.Get(context.Background(), model.ResourceKey(model.KindNode, "node-1"))
	h.must(err)
	o = o.Clone()
	o.Value.(*model.Node).Status.PodCIDRs = []string{"10.68.3.0/24", "fd68::/64"}
	_, err = h.store.Update(context.Background(), o)
	h.must(err)
	p.mustAdd()
	if a := p.addrs(); len(a) != 2 || !strings.HasPrefix(a[0].String(), "10.68.3.") ||
		!strings.HasPrefix(a[1].String(), "fd68::") {
		t.Errorf("addresses are %v", a)
	}
	h.must(p.check())
	t.Setenv("CNI_PATH", filepath.Join(h.dir, "bin"))
	plugin := h.direct()
	plugin.getenv = os.Getenv
	h.conf["cniVersion"] = "1.1.0"
	for _, do := range []func(*skel.CmdArgs) error{plugin.funcs(false).Status, plugin.funcs(false).GC} {
		h.must(h.inNamespace(func() error { return do(p.cmdArgs()) }))
	}
	h.must(p.del())
	if left := h.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

func TestOtherIPAMPluginIsExecuted(t *testing.T) {
	h := newHost(t)
	program, err := stock.HostLocal.Path()
	if err != nil {
		t.Skip(err)
	}
	h.must(os.Symlink(program, filepath.Join(h.dir, "bin", "host-local")))
	h.conf["ipam"] = map[string]any{
		"type": "host-local", "dataDir": filepath.Join(h.dir, "host-local"), "subnet": "10.67.0.0/24",
		"routes": []any{map[string]any{"dst": "10.67.0.0/16"}},
	}
	p := h.pod("").mustAdd()
	if a := p.addrs(); len(a) != 1 || !strings.HasPrefix(a[0].String(), "10.67.0.") {
		t.Errorf("addresses are %v", a)
	}
	if routes := h.ip("-n", p.ns, "route"); !strings.Contains(routes, "10.67.0.0/16 via 169.254.1.1") ||
		strings.Contains(routes, "default") {
		t.Errorf("routes are\n%s", routes)
	}
	h.must(p.check())
	h.must(p.del())
	if files, _ := filepath.Glob(filepath.Join(h.dir, "host-local", network, "10.67*")); len(files) > 0 {
		t.Errorf("host-local still has %v", files)
	}
	h.conf["include_default_routes"] = true
	p = h.pod("").mustAdd()
	if routes := h.ip("-n", p.ns, "route"); !strings.Contains(routes, "default via 169.254.1.1") {
		t.Errorf("routes are\n%s", routes)
	}
	h.must(p.del())
	if left := h.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
