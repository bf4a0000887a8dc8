package node

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/lab"
)

// testStoppedDaemon stops manxd as a debugger would: the plugin says so soon, and a container that is started when
// manxd runs again gets its address.
func (c *cluster) testStoppedDaemon(t *testing.T) {
	manxd, err := os.FindProcess(c.N2.Manxd().PID())
	must(t, err)
	must(t, manxd.Signal(unix.SIGSTOP))
	began := time.Now()
	_, err = c.N2.AddPod("stopped", lab.DualStack)
	took := time.Since(began)
	time.Sleep(3 * time.Second) // long enough for the notice
	must(t, manxd.Signal(unix.SIGCONT))
	if err == nil || !strings.Contains(err.Error(), "manxd does not read requests: it is stopped") {
		t.Errorf("an ADD while manxd is stopped: %v", err)
	}
	if took > 30*time.Second {
		t.Errorf("it failed after %s", took)
	}
	eventually(t, func() error {
		out, err := c.N2.Manxctl("status")
		if err == nil && !strings.Contains(out, "manxd did not run for") {
			err = errors.New(out)
		}
		return err
	})
	p, err := c.N2.AddPod("continued", lab.DualStack)
	must(t, err)
	must(t, p.Delete())
	c.Settled(t)
}
