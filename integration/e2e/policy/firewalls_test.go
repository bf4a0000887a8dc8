package policy

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// remedy returns the commands of a section of the page about firewalls.
func remedy(t *testing.T, section string) string {
	t.Helper()
	const page = "../../../docs/firewalls.md"
	text, err := os.ReadFile(page)
	must(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## "+section+"\n")
	_, block, ok2 := strings.Cut(rest, "```sh\n")
	block, _, ok3 := strings.Cut(block, "```\n")
	if !ok || !ok2 || !ok3 {
		t.Fatalf("%s has no section %q with commands", page, section)
	}
	return "set -e\n" + block
}

// reported waits until a node has notices about other programs' chains, and only about these. Explanations of a flow
// have the same chains behind their verdict.
func reported(t *testing.T, n *lab.Node, flow []string, chains ...string) {
	t.Helper()
	eventually(t, func() error {
		status, _ := n.Manxctl("status")
		explained, err := n.Manxctl(append([]string{"explain"}, flow...)...)
		must(t, err)
		text := lastLines(explained)
		if !strings.HasPrefix(text, "ALLOWED") {
			t.Fatalf("policy should allow it: %s", text)
		}
		if have := strings.Count(status, "drop packets that policy allows") + strings.Count(status,
			"drops packets that policy allows"); have != len(chains) {
			return fmt.Errorf("%d notices about chains, want %q:\n%s", have, chains, status)
		}
		for _, c := range chains {
			if !strings.Contains(status, "Notice:     "+c+": drops packets that policy allows") {
				return fmt.Errorf("no notice about %s:\n%s", c, status)
			}
		}
		if have := strings.Count(text, "DROPPED"); have > 0 != (len(chains) > 0) {
			return fmt.Errorf("explained: %s\nwant %q", text, chains)
		}
		if m := world.Metric(t, n, "manx_host_firewall_dropping_chains"); int(m) != len(chains) {
			return fmt.Errorf("the metric is %v, want %d", m, len(chains))
		}
		return nil
	})
}

// lastLines are the verdict of an explanation, and what follows.
func lastLines(explained string) string {
	i := max(strings.LastIndex(explained, "\nALLOWED"), strings.LastIndex(explained, "\nDENIED"))
	return explained[i+1:]
}

// privateFiles starts a process in a namespace of mounts of its own, in which some folders of the host can be changed
// without an effect on the host, and returns a function that runs scripts there in the network namespace of a node.
func privateFiles(t *testing.T, n *lab.Node, folders ...string) func(script string) {
	t.Helper()
	setup := "mount -t tmpfs none /run\n"
	for _, f := range folders {
		setup += fmt.Sprintf("mkdir -p /run/u%[1]s /run/w%[1]s\nmount -t overlay none "+
			"-o lowerdir=%[1]s,upperdir=/run/u%[1]s,workdir=/run/w%[1]s %[1]s\n", f)
	}
	holder := namespace.Command(n.Namespace, "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec",
		setup+"echo ready\nexec sleep infinity")
	out, err := holder.StdoutPipe()
	must(t, err)
	must(t, holder.Start())
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	if line, err := readLine(out); err != nil || line != "ready" {
		t.Skipf("no namespace of mounts with overlays: %q, %v", line, err)
	}
	child, err := exec.Command("pgrep", "-P", strconv.Itoa(holder.Process.Pid)).Output()
	must(t, err)
	return func(script string) {
		t.Helper()
		out, err := exec.Command("nsenter", "--target", strings.TrimSpace(string(child)), "--mount", "--net", "--pid",
			"sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
}

func readLine(r interface{ Read([]byte) (int, error) }) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := r.Read(b); err != nil || b[0] == '\n' {
			return string(line), err
		}
		line = append(line, b[0])
	}
}

// startFirewalld runs the daemon with a bus of its own.
const startFirewalld = `set -e
mkdir -p /run/dbus
cat >/run/bus.conf <<E
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy>
</busconfig>
E
dbus-daemon --config-file=/run/bus.conf --nopidfile --fork
firewalld --nofork --nopid >/run/firewalld.log 2>&1 &
for i in $(seq 100); do firewall-cmd --state >/dev/null 2>&1 && exit; sleep 0.1; done # it takes a second
cat /run/firewalld.log; exit 1`

// hostFirewalls starts one firewall after the other on a node, and runs the commands of the page about firewalls. pass
// checks that packets of workloads pass, or that they do not.
func hostFirewalls(t *testing.T, n *lab.Node, flow []string, pass func(*testing.T, bool)) {
	plain := func(t *testing.T) func(string) {
		return func(script string) {
			t.Helper()
			_, err := n.Run("sh", "-c", script)
			must(t, err)
		}
	}
	private := func(folders ...string) func(*testing.T) func(string) {
		return func(t *testing.T) func(string) { return privateFiles(t, n, folders...) }
	}
	const four, six = "table ip filter, chain FORWARD", "table ip6 filter, chain FORWARD"
	for _, f := range []struct {
		program, section string
		shell            func(*testing.T) func(string)
		start, stop      string
		chains           []string
	}{
		{"iptables", "iptables with a policy of DROP", plain, "iptables -P FORWARD DROP", "nft delete table ip filter",
			[]string{four}},
		{"nft", "Your own nftables", plain, "nft add table inet filter; nft add chain inet filter forward " +
			"'{ type filter hook forward priority filter; policy drop; }'", "nft delete table inet filter",
			[]string{"table inet filter, chain forward"}},
		{"ufw", "ufw", private("/etc/ufw", "/etc/default", "/var/lib/ufw"), "ufw --force enable",
			"ufw disable; nft delete table ip filter; nft delete table ip6 filter", []string{four, six}},
		{"firewalld", "firewalld", private("/etc/firewalld"), startFirewalld, "nft delete table inet firewalld",
			[]string{"table inet firewalld, chain filter_FORWARD"}},
	} {
		t.Run(f.program, func(t *testing.T) {
			if _, err := exec.LookPath(f.program); err != nil {
				// firewalld is none of the packages that make test installs: its service would start at the next boot.
				t.Skip(err)
			}
			shell := f.shell(t)
			shell(f.start)
			pass(t, false)
			reported(t, n, flow, f.chains...)
			shell(remedy(t, f.section))
			pass(t, true)
			reported(t, n, flow)
			shell(f.stop)
		})
	}
}
