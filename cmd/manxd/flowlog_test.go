package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// openFlowLog opens the log of these settings.
func openFlowLog(o flowLogOptions) *flowLog {
	return &flowLog{lines: o.lines(zap.NewNop()), file: o.to}
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFlowLogIsNotWrittenThroughALink(t *testing.T) {
	dir := t.TempDir()
	precious, path := filepath.Join(dir, "precious"), filepath.Join(dir, "drops.json")
	if err := errors.Join(os.WriteFile(precious, []byte("precious"), 0o600), os.Symlink(precious, path)); err != nil {
		t.Fatal(err)
	}
	f := openFlowLog(flowLogOptions{to: path})
	fmt.Fprintln(f.lines, "a line")
	if n := f.Notices(); len(n) != 1 || n[0].Subject != "--flow-log="+path || n[0].Since.IsZero() ||
		!strings.Contains(n[0].Text, "is a symbolic link") {
		t.Errorf("notices are %+v", n)
	}
	if text := content(t, precious); text != "precious" {
		t.Errorf("the other file is now %q", text)
	}
}

func TestFlowLogRotatesAndReopens(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "drops.json")
	f := openFlowLog(flowLogOptions{to: path, maxSize: 1, maxFiles: 2})
	for i := range 5 * 1024 {
		fmt.Fprintf(f.lines, "%01023d\n", i)
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
	f.lines.Reopen()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("there is no new file: %v", err)
	}
	fmt.Fprintln(f.lines, "new")
	if text := content(t, path); text != "new\n" {
		t.Errorf("the new file has %.40q", text)
	}
}
