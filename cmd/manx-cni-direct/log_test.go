package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/cni"
)

// A symbolic link in the place of the log, or of its rotated file, is not followed; standard error has the lines
// nevertheless.
func TestTheLogIsNotWrittenThroughLinks(t *testing.T) {
	dir := t.TempDir()
	precious, path := filepath.Join(dir, "precious"), filepath.Join(dir, "cni.log")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, path); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	log := newLogger(&cni.Config{LogFilePath: path, LogFileMaxSize: 1}, &stderr)
	text := strings.Repeat("x", 1<<16)
	for range 40 { // more than one file
		log.Info(text)
	}
	if content, err := os.ReadFile(precious); err != nil || string(content) != "precious" {
		t.Errorf("the other file now begins with %.40q, %v", content, err)
	}
	if n := strings.Count(stderr.String(), text); n != 40 {
		t.Errorf("standard error has %d lines, want 40", n)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		log.Info(text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || info.Size() > 1<<20 {
		t.Errorf("the log is %v, %v", info, err)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "cni-*.log")); len(files) != 2 {
		t.Errorf("earlier files are %v, want 2", files)
	}
}
