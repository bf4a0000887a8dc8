package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/stock"
)

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
	if routes := h.ip("-n", p.ns, "route"); !strings.Contains(routes, "10.67.0.0/16 via 169.254.1.1") || strings.Contains(routes, "default") {
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
