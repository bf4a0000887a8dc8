package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestReadOnlySysctls runs the daemon with a read-only /proc/sys, as in an unprivileged container: first without a
// remedy, then with the network's variables mounted at another path.
func TestReadOnlySysctls(t *testing.T) {
	t.Parallel()
	l := world.NewLab(t, lab.Spec{Name: world.LabName("y"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	elsewhere := filepath.Join(n.Dir, "proc-sys-net")
	n.Within = []string{"unshare", "--mount", "sh", "-c", `mkdir -p "$0" && mount --bind /proc/sys/net "$0" &&
		mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"`, elsewhere}
	value := func(name string) string {
		out, err := n.Run("cat", "/proc/sys/net/"+name)
		must(t, err)
		return strings.TrimSpace(out)
	}
	const forward4, forward6 = "ipv4/ip_forward", "ipv6/conf/all/forwarding"
	for _, name := range []string{forward4, forward6} {
		_, err := n.Run("sh", "-c", "echo 0 > /proc/sys/net/"+name)
		must(t, err)
	}
	args := append(n.EmbedDatastore(), "--ipv4pool-cidr=10.244.0.0/16", "--ipv6pool-cidr=fd00:244::/48")

	must(t, n.StartManxd(args...))
	eventually(t, func() error {
		out, err := n.Get("/readyz?verbose")
		if err == nil || !strings.Contains(out, "this host does not forward packets") {
			return fmt.Errorf("the node should not be ready: %v\n%s", err, out)
		}
		out, _ = n.Manxctl("status")
		if !strings.Contains(out, "/proc/sys/net is read-only here") || !strings.Contains(out, "MANX_PROC_SYS_NET") {
			return fmt.Errorf("the status should have the reason:\n%s", out)
		}
		return nil
	})
	if v := value(forward4); v != "0" {
		t.Errorf("%s is %s although it was read-only", forward4, v)
	}
	must(t, n.Manxd().Stop(limit))

	must(t, n.StartManxd(append(args, "--proc-sys-net="+elsewhere)...))
	must(t, n.Ready(limit))
	if v4, v6 := value(forward4), value(forward6); v4 != "1" || v6 != "0" {
		t.Errorf("IPv4 is forwarded: %s, want 1; IPv6, which nobody uses: %s, want 0", v4, v6)
	}
	_, err := n.AddPod("both", lab.DualStack)
	must(t, err)
	eventually(t, func() error {
		if v := value(forward6); v != "1" {
			return fmt.Errorf("%s is %s on a node with an IPv6 workload", forward6, v)
		}
		filter, err := n.Run("sh", "-c", "cat /proc/sys/net/ipv4/conf/cali*/rp_filter")
		if err != nil || strings.TrimSpace(filter) != "1" {
			return fmt.Errorf("rp_filter of the workload is %s: %w", filter, err)
		}
		return nil
	})
	if out, err := n.Manxctl("status"); strings.Contains(out, "read-only") {
		t.Errorf("status: %v\n%s", err, out)
	}
}
