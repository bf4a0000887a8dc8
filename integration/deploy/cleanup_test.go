package deploy

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The cleanup program in a DaemonSet stays until its pod is ended, and ends well then.
func TestCleanupWaits(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("cleaning the kernel needs root")
	}
	dir := t.TempDir()
	c := exec.Command("sh", "-c",
		`ip link set lo up && exec "$0" cleanup --wait --run-dir "$1" --endpoint-status-path-prefix "$2"`,
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
