package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/etcd/etcdtest"
)

// binary is manxctl, built once for all tests.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "manxctl-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "manxctl")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// shell runs manxctl as a user would.
type shell struct {
	t   *testing.T
	env []string
}

// result is the output of a command and its exit code.
type result struct {
	out, err string
	code     int
}

// newShell returns an environment that reaches a fresh etcd.
func newShell(t *testing.T) (shell, *etcdtest.Server) {
	t.Helper()
	server := etcdtest.Start(t)
	return shell{t, []string{"ETCD_ENDPOINTS=" + server.Endpoint}}, server
}

func (s shell) run(args ...string) result { return s.pipe("", args...) }

// pipe runs a command with standard input.
func (s shell) pipe(stdin string, args ...string) result { return s.program(binary, stdin, args...) }

// program is pipe with another program.
func (s shell) program(program, stdin string, args ...string) result {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.t.TempDir(), "TZ=UTC"}, s.env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatalf("manxctl %s: %v", strings.Join(args, " "), err)
	}
	return result{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// must runs a command that has to succeed and returns its output.
func (s shell) must(args ...string) string { return s.mustPipe("", args...) }

func (s shell) mustPipe(stdin string, args ...string) string {
	s.t.Helper()
	r := s.pipe(stdin, args...)
	if r.code != 0 {
		s.t.Fatalf("manxctl %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// want compares the result of a command with the expected one. Each text in errs must be part of standard error.
func (r result) want(t *testing.T, code int, out string, errs ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code is %d, want %d", r.code, code)
	}
	if r.out != out {
		t.Errorf("printed\n%s\nwant\n%s", r.out, out)
	}
	for _, e := range errs {
		if !strings.Contains(r.err, e) {
			t.Errorf("standard error\n%s\nlacks %q", r.err, e)
		}
	}
	if len(errs) == 0 && r.err != "" {
		t.Errorf("unexpected on standard error: %s", r.err)
	}
	if t.Failed() {
		t.FailNow()
	}
}
