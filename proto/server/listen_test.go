package server

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListenOnlyForTheOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode is %o, want 600", mode)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there after Close: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".manxd-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestListenRefusesALiveOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another manxd is running (process ") {
		t.Errorf("second Listen: %v", err)
	}
	if err := dial(path); err != nil {
		t.Errorf("the first one's socket was harmed: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	second.Close()
}

func TestListenInAFolderWithALongPath(t *testing.T) {
	dir := t.TempDir() + "/"
	dir += strings.Repeat("x", longestDir-len(dir))
	l, err := Listen(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatalf("the longest path: %v", err)
	}
	l.Close()
	if _, err := Listen(filepath.Join(dir+"x", "s")); err == nil ||
		!strings.Contains(err.Error(), "has 88 bytes, want at most 87") {
		t.Errorf("a longer one: %v", err)
	}
}

func TestListenReplacesOnlyWhatNobodyUses(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close() // as after kill -9: the file stays without a listener
	l, err := Listen(stale)
	if err != nil {
		t.Fatalf("a socket that a dead process left: %v", err)
	}
	l.Close()

	foreign := filepath.Join(dir, "foreign")
	live, err := net.Listen("unix", foreign)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if _, err := Listen(foreign); err == nil || !strings.Contains(err.Error(), "another process listens on it") {
		t.Errorf("a socket on which another program listens: %v", err)
	}

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a plain file: %v", err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file is now %q, %v", b, err)
	}
}
