package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	f := Files{Name: filepath.Join(dir, "lib", "calico", "nodename"), Folders: []string{filepath.Join(dir, "run")}}
	for _, name := range []string{"node-long-name", "n2"} {
		if err := f.Write(name); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(f.Name)
		info, _ := os.Stat(f.Name)
		if err != nil || string(b) != name || info.Mode() != 0o644 {
			t.Errorf("got %q mode %s, %v", b, info.Mode(), err)
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(f.Name)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if info, err := os.Stat(f.Folders[0]); err != nil || !info.IsDir() {
		t.Error(err)
	}
	err := Files{Name: "/proc/nope/nodename", Folders: []string{"/proc/none", filepath.Join(dir, "more")}}.Write("n")
	if err == nil || !strings.Contains(err.Error(), "nodename file /proc/nope/nodename") ||
		!strings.Contains(err.Error(), "folder /proc/none") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "more")); err != nil {
		t.Error(err)
	}
}

// On a disk that is full or read-only, files that are as they should be cause no error, and are not touched.
func TestFilesOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	f := Files{Name: filepath.Join(dir, "nodename"), Folders: []string{dir}}
	if err := f.Write("n1"); err != nil {
		t.Fatal(err)
	}
	written := modified(t, f.Name)
	_ = os.WriteFile(filepath.Join(dir, "large"), make([]byte, 1<<20), 0o600)
	check := func(state string, want string) {
		t.Helper()
		if err := f.Write("n1"); err != nil {
			t.Errorf("%s: %v", state, err)
		}
		if !modified(t, f.Name).Equal(written) {
			t.Errorf("%s: the file was written", state)
		}
		if err := f.Write("n2"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: another name: %v", state, err)
		}
		if b, err := os.ReadFile(f.Name); string(b) != "n1" {
			t.Errorf("%s: %q, %v", state, b, err)
		}
	}
	check("full", "no space left on device")
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=16k"); err != nil {
		t.Fatal(err)
	}
	check("read-only", "read-only file system")
}

func modified(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}
