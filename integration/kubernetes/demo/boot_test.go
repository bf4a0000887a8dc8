package main

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

// TestBootable refuses what a kernel that is booted for the demo cannot do, with the reason.
func TestBootable(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("no kernel is booted on other architectures")
	}
	missing := errors.New("no WireGuard")
	if err := bootable(missing, false); err != nil {
		t.Errorf("without KEEP=1: %v", err)
	}
	if err := bootable(missing, true); !errors.Is(err, missing) || !strings.Contains(err.Error(), "KEEP=1") {
		t.Errorf("with KEEP=1: %v, want both reasons", err)
	}
}
