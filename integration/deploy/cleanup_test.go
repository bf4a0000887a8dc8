package deploy

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// besideCalicoNode runs the cleanup where a BIRD answers or a calico-node without BIRD runs, in a network and a /run of
// its own, and shows the rest.
const besideCalicoNode = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/manx /run/data /run/calico/endpoint-status
touch /run/data/last-state.json /run/manx/bgp-passwords.json
chown -R "$2" /run/manx /run/data
touch /run/calico/endpoint-status/pod
if [ "$1" = process ]; then
	cp "$(command -v sleep)" /run/calico-node
	/run/calico-node 60 >/dev/null 2>&1 &
	trap "kill $!" EXIT
else
	touch /run/calico/bird.ctl
	mount --bind "$1" /run/calico/bird.ctl
fi
cp "$0" /run/manxd
ip link set lo up
ip link add vxlan.calico type vxlan id 4096 dstport 4789
ip rule add to 192.0.2.1 ipproto tcp dport 6443 lookup main priority 98 proto 80
nft add table arp manx
nft add chain arp manx input '{ type filter hook input priority 0; }'
nft add rule arp manx input meta mark set 0x200000
ip route add blackhole 10.65.0.0/26 proto 12
ip route add blackhole 10.65.0.9/32 proto 80
nft add table inet manx
/run/manxd cleanup --run-dir /run/manx --data-dir /run/data
find /run/data /run/manx -name '*.json'
ip route show
ip -br link show type vxlan
ip rule show priority 98
ls /run/calico/endpoint-status
nft list tables`

// Where a calico-node has taken the node back, the cleanup removes Manx's own rules and the kept files alone. It finds
// the BGP daemon, and a calico-node without one, also if it works as another user, to whom both are closed.
func TestCleanupBesideCalicoNode(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("cleaning the kernel needs root")
	}
	bird, err := net.Listen("unix", filepath.Join(t.TempDir(), "bird.ctl"))
	if err != nil {
		t.Fatal(err)
	}
	defer bird.Close() //nolint:errcheck // the test is over
	go func() {
		for c, err := bird.Accept(); err == nil; c, err = bird.Accept() {
			_, _ = c.Write([]byte("0001 BIRD v0.3.3+birdv1.6.8 ready.\n"))
		}
	}()
	for _, calico := range []struct{ active, owner, name string }{
		{bird.Addr().String(), "0", "the BGP daemon behind /var/run/calico/bird.ctl"},
		{bird.Addr().String(), "65534", "the BGP daemon behind /var/run/calico/bird.ctl"},
		{"process", "0", "calico-node"}, {"process", "65534", "calico-node"},
	} {
		owner := calico.owner
		c := exec.Command("sh", "-c", besideCalicoNode, program(t, "manxd"), calico.active, owner)
		c.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("folder of user %s: %v: %s", owner, err, out)
		}
		for _, want := range []string{"calico-node runs here (", calico.name + ")", "\nvxlan.calico",
			"removed the table inet manx", "blackhole 10.65.0.0/26", "blackhole 10.65.0.9", "\npod\n"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("folder of user %s: no %q in\n%s", owner, want, out)
			}
		}
		if strings.Contains(string(out), ".json") {
			t.Errorf("folder of user %s: a kept file is left:\n%s", owner, out)
		}
		if !strings.HasSuffix(string(out), "\npod\n") || strings.Contains(string(out), "\n98:") { // tables follow
			t.Errorf("folder of user %s: the rules are left:\n%s", owner, out)
		}
	}
}

// The cleanup program in a DaemonSet stays until its pod is ended, and ends well then.
func TestCleanupWaits(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("cleaning the kernel needs root")
	}
	dir := t.TempDir()
	c := exec.Command("sh", "-c",
		`ip link set lo up && nft add table inet manx && `+
			`exec "$0" cleanup --wait --run-dir "$1" --endpoint-status-path-prefix "$2"`,
		program(t, "manxd"), filepath.Join(dir, "run"), filepath.Join(dir, "status"))
	c.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "table inet manx") {
	}
	ended := make(chan bool)
	go func() { ended <- lines.Scan() }()
	select {
	case more := <-ended:
		t.Fatalf("it did not wait; more output: %t", more)
	case <-time.After(time.Second):
	}
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if <-ended {
		t.Errorf("it prints %q at the end", lines.Text())
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}
