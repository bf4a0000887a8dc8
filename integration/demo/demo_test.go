package main

import (
	"testing"

	"github.com/manxnet/manx/integration/lab"
)

// binaries is the folder of the built programs; the test is skipped without them.
func binaries(t *testing.T) string {
	t.Helper()
	bin, missing := lab.Require("ip", "ping", "bird", "gobgp")
	if missing != nil {
		t.Skip(missing)
	}
	return bin
}

// TestDemo runs `make demo`, on the kernel of this machine.
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
