package flowlog

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

	"github.com/manxnet/manx/datastore/safefile"
)

// fileLines returns lines to a file, and the log of the daemon.
func fileLines(path string) (*Lines, *observer.ObservedLogs) {
	core, logs := observer.New(zapcore.InfoLevel)
	file := safefile.NewLog(safefile.LogConfig{Path: path, Mode: 0o640, MaxSize: 100 << 20, MaxFiles: 1})
	return NewLines(path, file, zap.New(core)), logs
}

func problem(l *Lines) string {
	reason, _ := l.Problem()
	return reason
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// retry writes waiting lines, as Run does every second.
func (l *Lines) retry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
}

// While the disk is full, lines wait and Problem has the reason. Once there is room, all of them are written without
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
	f, logs := fileLines(path)
	want := 0
	for ; problem(f) == "" && want < 1000; want++ {
		fmt.Fprintf(f, "%0999d\n", want)
	}
	for range 20 {
		fmt.Fprintf(f, "%0999d\n", want)
		want++
		f.retry()
	}
	if reason, since := f.Problem(); since.IsZero() ||
		!strings.Contains(reason, "no space left on device (21 lines wait, 0 are lost)") {
		t.Fatalf("problem since %v: %q", since, reason)
	}
	if err := unix.Mount("test", dir, "tmpfs", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	f.retry()
	if p := problem(f); p != "" {
		t.Errorf("with room again: %q", p)
	}
	text := content(t, path)
	for i := range want {
		if !strings.Contains(text, fmt.Sprintf("%0999d\n", i)) {
			t.Errorf("line %d is missing", i)
		}
	}
	if logs.FilterMessageSnippet("cannot be written").Len() != 1 ||
		logs.FilterMessageSnippet("written again").Len() != 1 {
		t.Errorf("the log is %v, want failure and recovery once each", logs.All())
	}
}

func TestFlowLogWithoutItsFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	path := filepath.Join(dir, "drops.json")
	f, _ := fileLines(path)
	if p := problem(f); !strings.Contains(p, "no such file or directory (0 lines wait") {
		t.Errorf("before the first line: %q", p)
	}
	for i := range mostWaitingLines + 10 {
		fmt.Fprintf(f, "line %d\n", i)
	}
	if p := problem(f); !strings.Contains(p, fmt.Sprintf("(%d lines wait, 11 are lost)", mostWaitingLines)) {
		t.Errorf("after many lines: %q", p)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.retry()
	if text := content(t, path); !strings.HasPrefix(text, "line 10\n") ||
		strings.Count(text, "\n") != mostWaitingLines || problem(f) != "" {
		t.Errorf("the log begins with %.20q and has %d lines; problem %q", text, strings.Count(text, "\n"), problem(f))
	}
}
