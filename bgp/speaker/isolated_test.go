package speaker

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// isolatedEnv has the name of the test that runs in a process of its own.
const isolatedEnv = "MANX_TEST_ISOLATED"

// IPv6 addresses in the namespace of an isolated test; IPv4 has all of 127.0.0.0/8.
const isolatedSix = "fd00:6::"

// isolated reports whether this process is the one of the calling test alone. Otherwise it runs the test in such a
// process, so that a speaker that dies takes no other test with it, in a network namespace with many IPv6 addresses.
func isolated(t *testing.T, env ...string) bool {
	t.Helper()
	if os.Getenv(isolatedEnv) == t.Name() {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	netns := namespace.New(t, "mxbgp-i")
	var lines []string
	for i := range 256 {
		lines = append(lines, fmt.Sprintf("addr add %s%x/128 dev lo nodad", isolatedSix, i))
	}
	if err := namespace.Batch(netns, lines...); err != nil {
		t.Fatal(err)
	}
	timeout := "0"
	if end, ok := t.Deadline(); ok {
		timeout = (time.Until(end) * 9 / 10).String()
	}
	cmd := exec.Command("ip", "netns", "exec", netns, exe, "-test.v", "-test.run=^"+t.Name()+"$",
		"-test.timeout="+timeout)
	cmd.Env = append(append(os.Environ(), isolatedEnv+"="+t.Name()), env...)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, os.Stderr // progress, and the trace of a process that dies
	err = cmd.Run()
	t.Log(strings.ReplaceAll(out.String(), "--- ", "")) // its verdict is not ours
	if err != nil {
		t.Errorf("the process of the test: %v", err)
	}
	return false
}
