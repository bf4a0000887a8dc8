package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	hosts "github.com/manxnet/manx/integration/lab"
	netns "github.com/manxnet/manx/integration/namespace"
)

// kubectlPlugin runs manxctl as plugin of kubectl beside the control plane, through real kubelets.
func (w *World) kubectlPlugin() error {
	bin, err := hosts.Require()
	if err != nil {
		return err
	}
	folder := filepath.Join(w.Control.Dir, "plugins")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	err = os.Symlink(filepath.Join(bin, "manxctl"), filepath.Join(folder, "kubectl-manx"))
	if err != nil && !os.IsExist(err) {
		return err
	}
	kubectl := func(args ...string) (string, error) {
		cmd := netns.Command(w.Control.Namespace, "env", append([]string{
			"PATH=" + folder + ":" + os.Getenv("PATH"), "KUBECONFIG=" + w.Kubeconfig(), w.Program("kubectl"), "manx"},
			args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("kubectl manx %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return string(out), err
	}
	status, err := kubectl("status")
	if err != nil {
		return err
	}
	w.show("kubectl manx status", status)
	raw, err := kubectl("status", "-o", "json")
	if err != nil {
		return err
	}
	var all struct {
		Nodes []struct {
			Node           string
			Healthy, Ready bool
			Peers          map[string]uint32
		}
	}
	if err := json.Unmarshal([]byte(raw), &all); err != nil {
		return err
	}
	if len(all.Nodes) != len(w.Workers) {
		return fmt.Errorf("kubectl manx status has %d nodes, want %d", len(all.Nodes), len(w.Workers))
	}
	for i, n := range all.Nodes {
		if n.Node != w.Workers[i].Name || !n.Healthy || !n.Ready || w.hasBGP() && n.Peers["Established"] == 0 {
			return fmt.Errorf("kubectl manx status: %+v", n)
		}
	}
	if w.hasBGP() {
		if _, err := kubectl("peers", "--down"); err != nil {
			return err
		}
	}
	explained, err := kubectl("explain", "default/client", "default/server", "tcp/7000")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(explained, "On node node1:\n") || !strings.Contains(explained, "ALLOWED") {
		return fmt.Errorf("kubectl manx explain: %s", explained)
	}
	return nil
}
