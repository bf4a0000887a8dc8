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

// besideCalicoNode runs the cleanup where a BIRD answers, in a network and a /run of its own, and shows the rest.
const besideCalicoNode = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/manx /run/data /run/calico/endpoint-status
touch /run/data/last-state.json /run/manx/bgp-passwords.json
chown -R "$2" /run/manx /run/data
touch /run/calico/bird.ctl /run/calico/endpoint-status/pod
mount --bind "$1" /run/calico/bird.ctl
cp "$0" /run/manxd
ip link set lo up
ip route add blackhole 10.65.0.0/26 proto 12
ip route add blackhole 10.65.0.9/32 proto 80
nft add table inet manx
/run/manxd cleanup --run-dir /run/manx --data-dir /run/data
find /run/data /run/manx -name '*.json'
ip route show
ls /run/calico/endpoint-status
nft list tables`

// Where a calico-node has taken the node back, the cleanup removes the rules and the kept files alone. It finds the BGP
// daemon also if it works as another user, to whom the daemon's socket is closed.
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
	for _, owner := range []string{"0", "65534"} {
		c := exec.Command("sh", "-c", besideCalicoNode, program(t, "manxd"), bird.Addr().String(), owner)
		c.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("folder of user %s: %v: %s", owner, err, out)
		}
		for _, want := range []string{"calico-node runs here (the BGP daemon behind /var/run/calico/bird.ctl)",
			"removed the table inet manx", "blackhole 10.65.0.0/26", "blackhole 10.65.0.9", "\npod\n"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("folder of user %s: no %q in\n%s", owner, want, out)
			}
		}
		if strings.Contains(string(out), ".json") {
			t.Errorf("folder of user %s: a kept file is left:\n%s", owner, out)
		}
		if !strings.HasSuffix(string(out), "\npod\n") { // the list of tables follows
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
