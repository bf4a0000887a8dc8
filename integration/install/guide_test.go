package install

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
)

// steps returns the commands of a section of the user guide, as they stand there, by block. Programs are built already.
func steps(t *testing.T, section string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/user-guide.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n"+section+"\n")
	if !found {
		t.Fatalf("docs/user-guide.md has no section %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n#")
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(rest, -1) {
		block := regexp.MustCompile(`(?m)^make programs\n`).ReplaceAllString(m[1], "")
		blocks = append(blocks, block)
	}
	return blocks
}

// TestByHand follows the user guide on a fresh machine, with an etcd of three members that want certificates: the
// daemon first starts with the settings of the host, which are those of manxd.env without their comment signs. It goes
// on while each member is away in turn, and everything can be taken away again.
func TestByHand(t *testing.T) {
	t.Parallel() // it has a lab of its own
	l, list := machines(t, "g", "n1")
	m := list[0]
	e := newEtcd(t, l)
	blocks := steps(t, "### From the sources")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of commands, want those before and after the settings: %q", len(blocks), blocks)
	}
	run := func(script string) string {
		t.Helper()
		out, err := m.Run("bash", "-euc", script)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	run("cd /mnt\n" + blocks[0])
	if out, err := m.Run("sh", "-c", "systemctl is-active manxd || test -e /var/lib/manx/etcd"); err == nil {
		t.Errorf("manxd has started without its settings: %s", out)
	}
	e.copyTo(t, m)
	run(`sed -i 's/^#\(ETCD_\|NO_DEFAULT\)/\1/' /etc/manx/manxd.env; eval "$(sed -n 's/^#   //p' /etc/manx/manxd.env)"`)
	run("echo AS=64512 >>/etc/manx/manxd.env")
	beforeTheStart(t, m, l.Nodes[0].IP4.String())
	enable, status, _ := strings.Cut(blocks[1], "\n")
	run(enable)
	if err := lab.Eventually(limit, func() error { _, err := m.Run("bash", "-euc", status); return err }); err != nil {
		t.Fatal(err)
	}
	if out := run("test ! -e /var/lib/manx/etcd && manxctl get ippools"); !strings.Contains(out, "No ippools found") {
		t.Errorf("manxd did not read its settings: %s", out)
	}
	before := run("systemctl show -P MainPID manxd")
	// The switch answers at the first of these addresses alone; one session is enough for `manxctl status`.
	for i, ip := range []string{l.Nodes[0].Gateway(), memberIPs[0], memberIPs[1]} {
		e.members[i].Kill()
		peer := fmt.Sprintf("{apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: p%d}, spec: {peerIP: "+
			"%s, asNumber: 65000}}", i, ip)
		if err := lab.Eventually(limit, func() error {
			if _, err := m.Run("sh", "-euc", `echo "$1" | manxctl apply -f -`, "sh", peer); err != nil {
				return err
			}
			_, err := m.Run("bash", "-euc", "manxctl status; manxctl get peers "+ip)
			return err
		}); err != nil {
			t.Errorf("while the member %s is away: %v", memberIPs[i], err)
		}
		e.start(t, i)
	}
	// The setting takes the place of the Node's AS number at the next start.
	run(`echo '{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n1}, spec: {bgp: {asNumber: 64999}}}' |
		manxctl apply -f -`)
	if err := lab.Eventually(limit, func() error {
		out, _ := m.Run("manxctl", "status") // the switch refuses that AS number
		if !strings.Contains(out, "Notice:     n1: AS number 64999 of the Node does not last: AS=64512 ") {
			return fmt.Errorf("no notice about the AS number:\n%s", out)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if after := run("systemctl show -P MainPID manxd"); after != before {
		t.Errorf("manxd was restarted: process %s, then %s", before, after)
	}
	if out := run("manx-cni uninstall"); !strings.Contains(out, "removed /opt/cni/bin/calico\n") {
		t.Error(out)
	}
	packageBesideCalicoNode(t, m)
}

// beforeTheStart looks at the settings and at the address that the node will have.
func beforeTheStart(t *testing.T, m *lab.Machine, address string) {
	t.Helper()
	for _, c := range []struct{ command, want string }{
		{"manxd config explain", `etcd-endpoints +"https://10\.0\.0\.5:2379,\S+" +manxd\.env ETCD_ENDPOINTS `},
		{"manxd config explain", `no-default-pools +"true" +manxd\.env NO_DEFAULT_POOLS `},
		{"NO_DEFAULT_POOLS=false manxd config explain --env-file=", `no-default-pools +"false" +environment NO_DEF`},
		{"manxd config addresses", address + `/24 +eth0 +first-found +\* +chosen: first address on the interface`},
		{"manxctl node addresses || true", "manxd cannot be reached at .*; without a daemon: manxd config addresses\n"},
		{"setpriv --reuid=65534 --clear-groups manxd config explain || true",
			"manxd.env: permission denied: run the command as root, or with --env-file=\n"},
	} {
		out, err := m.Run("bash", "-euc", c.command)
		if err != nil || !regexp.MustCompile(c.want).MatchString(out) {
			t.Errorf("%s: want %s: %v\n%s", c.command, c.want, err, out)
		}
	}
}

// packageBesideCalicoNode runs the script of the package on a machine where a calico-node is active, and after its end.
// Its pods need its plugins; the plugins that it has left behind are replaced.
func packageBesideCalicoNode(t *testing.T, m *lab.Machine) {
	t.Helper()
	const script = "sh /mnt/deploy/packages/postinstall configure; ls /opt/cni/bin"
	if _, err := m.Run("sh", "-euc", `echo Calico >/opt/cni/bin/calico; chmod 755 /opt/cni/bin/calico
echo "protocol device {}" >/tmp/bird.conf
bird -c /tmp/bird.conf -s /var/run/calico/bird.ctl`); err != nil {
		t.Fatal(err)
	}
	out, err := m.Run("sh", "-euc", script)
	for _, want := range []string{"/opt/cni/bin/calico: not replaced", "behind /var/run/calico/bird.ctl",
		"manx: no CNI plugin is installed; when calico-node has ended here: manx-cni install\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("beside calico-node, its output lacks %q: %v\n%s", want, err, out)
		}
	}
	if text, err := m.Run("cat", "/opt/cni/bin/calico"); text != "Calico\n" || strings.Contains(out, "\nmanx-cni") {
		t.Errorf("Calico's plugin was replaced, or others were installed: %v\n%s", err, out)
	}
	if _, err := m.Run("birdc", "-s", "/var/run/calico/bird.ctl", "down"); err != nil {
		t.Fatal(err)
	}
	if out, err := m.Run("sh", "-euc", script); err != nil ||
		!strings.Contains(out, "installed /opt/cni/bin/calico\n") {
		t.Errorf("after the end of calico-node: %v\n%s", err, out)
	}
}
