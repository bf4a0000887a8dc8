package nftables

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// rulesNS makes a network namespace and connects to its nftables.
func rulesNS(t testing.TB) (name string, n *Conn) {
	t.Helper()
	name = nettest.Namespace(t)
	n, err := Open(nettest.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	if _, err := n.ReadRules(); err != nil {
		t.Skipf("the kernel has no nftables: %v", err)
	}
	return name, n
}

// nft runs the tool in a namespace.
func nft(t testing.TB, ns string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nftables is not installed")
	}
	return nettest.Run(t, append([]string{"ip", "netns", "exec", ns, "nft"}, args...)...)
}

func commitRules(t testing.TB, n *Conn, c ruleset.Changes) {
	t.Helper()
	if err := n.CommitRules(c); err != nil {
		t.Fatal(err)
	}
}

// sameRules fails if the kernel's table is not the desired one.
func sameRules(t testing.TB, n *Conn, w *ruleset.Table) {
	t.Helper()
	a, err := n.ReadRules()
	if err != nil {
		t.Fatal(err)
	}
	if d := w.Difference(a); !d.Empty() {
		t.Fatalf("the kernel has something else: %.3000s", strings.ReplaceAll(sprint(d), "} {", "}\n{"))
	}
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
