package install

import (
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

// TestByHand follows the user guide on a fresh machine: the daemon first starts with the settings of the host, and
// everything can be taken away again.
func TestByHand(t *testing.T) {
	t.Parallel() // it has a lab of its own
	_, list := machines(t, "g", "n1")
	m := list[0]
	blocks := steps(t, "### From the sources")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of commands, want those before and after the settings: %q", len(blocks), blocks)
	}
	if out, err := m.Run("bash", "-euc", "cd /mnt\n"+blocks[0]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := m.Run("sh", "-c", "systemctl is-active manxd || test -e /var/lib/manx/etcd"); err == nil {
		t.Errorf("manxd has started without its settings: %s", out)
	}
	if _, err := m.Run("sh", "-c", "echo NO_DEFAULT_POOLS=true >>/etc/manx/manxd.env"); err != nil {
		t.Fatal(err)
	}
	enable, status, _ := strings.Cut(blocks[1], "\n")
	if out, err := m.Run("bash", "-euc", enable); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := lab.Eventually(limit, func() error { _, err := m.Run("bash", "-euc", status); return err }); err != nil {
		t.Fatal(err)
	}
	if out, err := m.Run("manxctl", "get", "ippools"); err != nil || !strings.Contains(out, "No ippools found") {
		t.Errorf("manxd did not read its settings: %v\n%s", err, out)
	}
	out, err := m.Run("manx-cni", "uninstall")
	if err != nil || !strings.Contains(out, "removed /opt/cni/bin/calico\n") {
		t.Errorf("%v\n%s", err, out)
	}
}
