// Package nettest makes network namespaces for the tests of the neighbouring packages.
package nettest

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/namespace"
)

const prefix = "manxkern"

// Namespace makes a network namespace with the interfaces e0 (10.1.0.5/24, fd01::5/64) and e1 (10.2.0.5/24,
// fd02::5/64), whose peers e0p and e1p are up. It skips the test where that is impossible.
func Namespace(t testing.TB) (name string) {
	t.Helper()
	name = namespace.New(t, prefix)
	for i, dev := range []string{"e0", "e1"} {
		Run(t, "ip", "-n", name, "link", "add", dev, "type", "veth", "peer", "name", dev+"p")
		Run(t, "ip", "-n", name, "link", "set", dev+"p", "up")
		Run(t, "ip", "-n", name, "link", "set", dev, "up")
		Run(t, "ip", "-n", name, "addr", "add", fmt.Sprintf("10.%d.0.5/24", i+1), "dev", dev)
		Run(t, "ip", "-n", name, "addr", "add", fmt.Sprintf("fd0%d::5/64", i+1), "dev", dev, "nodad")
	}
	return name
}

// Bare makes a network namespace in which no address was ever set.
func Bare(t testing.TB) string {
	t.Helper()
	return namespace.Bare(t, prefix)
}

// Path returns the file of a namespace.
func Path(name string) string { return namespace.Path(name) }

// Run runs a program and returns its output. The test ends if it fails.
func Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
