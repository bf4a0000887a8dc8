package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An address of host-local would be assigned again. Without the folder, and with only the locks in it, there is none.
func TestUpgradeOfAddresses(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "k8s-pod-network")
	if err := upgradeAddresses(folder, io.Discard); err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "last_reserved_ip.0"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := upgradeAddresses(folder, io.Discard); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "10.65.0.2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := upgradeAddresses(folder, io.Discard); err == nil || !strings.Contains(err.Error(), "10.65.0.2") {
		t.Errorf("with an address: %v", err)
	}
}
