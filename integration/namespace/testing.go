package namespace

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/manxnet/manx/integration/peers"
)

// Require skips a test if network namespaces cannot be made here, or if one of its programs is missing or has an
// unsupported version.
func Require(t testing.TB, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, program := range append([]string{"ip"}, programs...) {
		if err := peers.Usable(program); err != nil {
			t.Skip(err)
		}
	}
}

var made atomic.Int64

// New makes a namespace with the unique name PREFIX-PROCESS-NUMBER, whose loopback interface is up. The end of the test
// removes it and ends the processes in it. The test is skipped if namespaces cannot be made.
func New(t testing.TB, prefix string) string {
	t.Helper()
	name := Bare(t, prefix)
	IP(t, name, "link set lo up")
	return name
}

// Bare is New with the loopback interface down.
func Bare(t testing.TB, prefix string) string {
	t.Helper()
	Require(t)
	name := fmt.Sprintf("%s-%d-%d", prefix, os.Getpid(), made.Add(1))
	if err := ip("netns", "add", name); err != nil {
		t.Skipf("a network namespace cannot be made: %v", err)
	}
	t.Cleanup(func() {
		if err := Remove(name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// IP runs ip(8) in a namespace, with the words of a line, and returns its output.
func IP(t testing.TB, name, line string) string {
	t.Helper()
	out, err := run("ip", append([]string{"-n", name}, strings.Fields(line)...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
