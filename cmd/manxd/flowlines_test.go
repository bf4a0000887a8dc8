package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

func flowLines(t *testing.T, o options) (*flowLogLines, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	return o.flowLogLines(zap.New(core)), logs
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// tick is what run does every second.
func (f *flowLogLines) tick() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flush()
}

// While the disk is full, lines wait and a notice has the reason. Once there is room, all of them are written without
// further traffic.
func TestFlowLogOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("no file system of its own here: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "drops.json")
	f, logs := flowLines(t, options{flowLog: path, flowLogMaxSize: 100, flowLogMaxFiles: 1})
	want := 0
	for ; len(f.Notices()) == 0 && want < 1000; want++ {
		fmt.Fprintf(f, "%0999d\n", want)
	}
	for range 20 {
		fmt.Fprintf(f, "%0999d\n", want)
		want++
		f.tick()
	}
	notices := f.Notices()
	if len(notices) != 1 || notices[0].Subject != "--flow-log="+path || notices[0].Since.IsZero() ||
		!strings.Contains(notices[0].Text, "no space left on device (21 lines wait, 0 are lost)") {
		t.Fatalf("notices are %+v", notices)
	}
	if err := unix.Mount("test", dir, "tmpfs", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	f.tick()
	if n := f.Notices(); len(n) > 0 {
		t.Errorf("with room again: %+v", n)
	}
	text := content(t, path)
	for i := range want {
		if !strings.Contains(text, fmt.Sprintf("%0999d\n", i)) {
			t.Errorf("line %d is missing", i)
		}
	}
	if logs.FilterMessageSnippet("cannot be written").Len() != 1 ||
		logs.FilterMessageSnippet("written again").Len() != 1 {
		t.Errorf("the log says %v, want failure and recovery once each", logs.All())
	}
}

func TestFlowLogWithoutItsFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	path := filepath.Join(dir, "drops.json")
	f, _ := flowLines(t, options{flowLog: path})
	if n := f.Notices(); len(n) != 1 || !strings.Contains(n[0].Text, "no such file or directory (0 lines wait") {
		t.Errorf("before the first line: %+v", n)
	}
	for i := range mostWaitingLines + 10 {
		fmt.Fprintf(f, "line %d\n", i)
	}
	if n := f.Notices(); len(n) != 1 || !strings.Contains(n[0].Text,
		fmt.Sprintf("(%d lines wait, 11 are lost)", mostWaitingLines)) {
		t.Errorf("after many lines: %+v", n)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.tick()
	if text := content(t, path); !strings.HasPrefix(text, "line 10\n") ||
		strings.Count(text, "\n") != mostWaitingLines || len(f.Notices()) > 0 {
		t.Errorf("the log begins with %.20q and has %d lines; notices are %+v", text, strings.Count(text, "\n"),
			f.Notices())
	}
}

func TestFlowLogIsNotWrittenThroughALink(t *testing.T) {
	dir := t.TempDir()
	precious, path := filepath.Join(dir, "precious"), filepath.Join(dir, "drops.json")
	if err := errors.Join(os.WriteFile(precious, []byte("precious"), 0o600), os.Symlink(precious, path)); err != nil {
		t.Fatal(err)
	}
	f, _ := flowLines(t, options{flowLog: path})
	fmt.Fprintln(f, "a line")
	if n := f.Notices(); len(n) != 1 || !strings.Contains(n[0].Text, "is a symbolic link") {
		t.Errorf("notices are %+v", n)
	}
	if text := content(t, precious); text != "precious" {
		t.Errorf("the other file is now %q", text)
	}
}

func TestFlowLogRotatesAndReopens(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "drops.json")
	f, _ := flowLines(t, options{flowLog: path, flowLogMaxSize: 1, flowLogMaxFiles: 2})
	for i := range 5 * 1024 {
		fmt.Fprintf(f, "%01023d\n", i)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "drops-*.json"))
	if len(files) != 2 {
		t.Errorf("earlier files are %v, want 2", files)
	}
	if text := content(t, path); !strings.HasSuffix(text, fmt.Sprintf("%01023d\n", 5*1024-1)) || len(text) > 1<<20 {
		t.Errorf("the newest file has %d bytes and ends with %.30q", len(text), text[max(0, len(text)-30):])
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	f.Reopen()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("there is no new file: %v", err)
	}
	fmt.Fprintln(f, "new")
	if text := content(t, path); text != "new\n" {
		t.Errorf("the new file has %.40q", text)
	}
}
