package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testReadOnlyDisk restarts manxd on a disk that takes no data: the node does its work. Files that are as they should
// be are not written; those that are missing are named.
func (c *cluster) testReadOnlyDisk(t *testing.T) {
	n := c.N2
	files := []string{filepath.Join(n.Dir, "nodename"), filepath.Join(n.Dir, "mtu"),
		filepath.Join(n.Dir, "data", "last-state.json")}
	restart := func(within ...string) {
		t.Helper()
		must(t, n.Manxd().Stop(limit)) // so that the last state on disk is the present one
		n.Within = within
		must(t, n.StartManxd())
		must(t, n.Ready(limit))
		c.Settled(t)
	}
	readOnly := []string{"unshare", "--mount", "sh", "-c",
		`mount --bind "$0" "$0" && mount --bind "$0/run" "$0/run" && mount -o remount,bind,ro "$0" && exec "$@"`, n.Dir}
	defer restart()
	restart(readOnly...)
	if out, err := n.Manxctl("status"); err != nil || !strings.Contains(out, "Health:     ok") ||
		strings.Contains(out, "read-only") {
		t.Errorf("with the files of before: %v\n%s", err, out)
	}
	// The plugins of manxd do not wait for the file by which other plugins see a workload connected.
	before := len(n.Log())
	p, err := n.AddPod("read-only")
	must(t, err)
	if log := n.Log()[before:]; !strings.Contains(log, "policy and routes are in the kernel") ||
		strings.Contains(log, "policy and routes are not in the kernel yet") {
		t.Errorf("the ADD of a container waited for a file: %s", log)
	}
	must(t, p.Delete())
	for _, f := range files {
		must(t, os.Remove(f))
	}
	restart(readOnly...)
	eventually(t, func() error {
		out, err := n.Manxctl("status")
		for _, f := range files {
			if !strings.Contains(out, f) || !strings.Contains(out, "read-only file system") {
				err = errors.Join(err, errors.New(out))
			}
		}
		return err
	})
	restart()
	eventually(t, func() error {
		var errs []error
		for _, f := range files {
			_, err := os.Stat(f)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	name, err := os.ReadFile(files[0])
	must(t, err)
	world.Contains(t, "the nodename file", string(name), "n2")
}
