package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// testStatusFolder moves the files that report policy in force to the CNI plugin, by endpointStatusPathPrefix of
// FelixConfiguration; the flag takes priority.
func (c *cluster) testStatusFolder(t *testing.T) {
	n := c.N2
	const usual = "defaultEndpointToHostAction: Drop"
	folder := func(name string) string { return filepath.Join(n.Dir, name) }
	in := func(dir string, pods ...string) func() error {
		return func() error {
			entries, err := os.ReadDir(filepath.Join(dir, "endpoint-status"))
			if err != nil && len(pods) > 0 {
				return err
			}
			if len(entries) != len(pods) {
				return fmt.Errorf("%s has %d status files, want one for each of %q", dir, len(entries), pods)
			}
			return nil
		}
	}
	says := func(name, prefix string) {
		t.Helper()
		c.apply(t, felix(name, usual+", endpointStatusPathPrefix: "+prefix))
	}
	c.temporary(t, documents(t, felix("default", "")+felix("node.n2", usual))...)

	must(t, in(n.Dir, "a", "b")())
	says("node.n2", folder("ignored"))
	c.AddPod(t, n, "flagged")
	must(t, in(n.Dir, "a", "b", "flagged")()) // for ADD has waited for it
	must(t, in(folder("ignored"))())

	flags := append(lab.UseDatastore(c.N1), world.PairFlags...)
	restart := func(more ...string) {
		t.Helper()
		must(t, n.Manxd().Stop(limit))
		must(t, n.StartManxd(append(slices.Clone(flags), more...)...))
		awaitPolicy(t, n)
	}
	defer restart() // without the flag it would go on in this machine's own folder
	restart("--endpoint-status-path-prefix=")
	eventually(t, in(folder("ignored"), "a", "b", "flagged"))
	says("default", folder("cluster"))
	must(t, in(folder("ignored"), "a", "b", "flagged")()) // the node's setting takes priority
	c.apply(t, felix("node.n2", usual))
	eventually(t, in(folder("cluster"), "a", "b", "flagged"))
	eventually(t, in(folder("ignored")))

	timeouts := func() string {
		out, err := n.Get("/metrics")
		must(t, err)
		return lines(out, "manx_cni_policy_wait_timeouts_total")
	}
	before := timeouts()
	p, err := n.AddPod("told", lab.DualStack, func(conf map[string]any) {
		conf["endpoint_status_dir"] = filepath.Join(folder("cluster"), "endpoint-status")
	})
	must(t, err)
	if now := timeouts(); now != before || !strings.Contains(now, "_total ") {
		t.Errorf("the plugin has waited in vain: %q, before %q", now, before)
	}
	eventually(t, in(folder("cluster"), "a", "b", "flagged", "told"))
	must(t, p.Delete())
	must(t, c.Pods["flagged"].Delete())
	delete(c.Pods, "flagged")
	eventually(t, in(folder("cluster"), "a", "b"))
}
