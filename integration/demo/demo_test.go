package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binaries is the folder of the built programs; the test is skipped without them.
func binaries(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, program := range []string{"ip", "ping", "bird", "gobgp"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	dir := os.Getenv("MANX_BIN")
	if dir == "" {
		dir = "../../bin"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "manxd")); err != nil {
		t.Skip("bin/manxd is not built: run `make build`")
	}
	return dir
}

// TestDemo is what `make demo` shows, on the kernel of this machine.
func TestDemo(t *testing.T) {
	if err := run(binaries(t), false); err != nil {
		t.Fatal(err)
	}
}

// TestVMDemo is the same on a kernel with IPIP, where the pool uses CrossSubnet.
func TestVMDemo(t *testing.T) {
	bin := binaries(t)
	if !kernelHasIPIP() {
		t.Skip("this kernel has no IPIP; `make test-vm` runs it on one that has")
	}
	if err := run(bin, false); err != nil {
		t.Fatal(err)
	}
}
