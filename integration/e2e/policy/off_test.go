package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// testPolicyOff disables the packet filter on a node, and enables it again. While it is disabled everything passes,
// also for pods that are attached meanwhile.
func (c *cluster) testPolicyOff(t *testing.T) {
	n, b, far := c.N2, c.Pods["b"], c.Pods["far"]
	c.temporary(t, documents(t, world.GlobalPolicy("deny", "selector: role == 'b', types: [Ingress], ingress: ["+
		rule("Allow", 7001)+"]"))...)
	check := func(t *testing.T, want string) {
		t.Helper()
		var list []attempt
		for _, to := range b.IPs {
			list = append(list, attempt{"what is allowed", far.Namespace, "udp", at(to, 7001), answered},
				attempt{"what is denied", far.Namespace, "udp", at(to, 7002), want})
		}
		tryAll(t, list)
	}
	check(t, lost)
	c.restart(t, "--policy=false")
	func() {
		defer func() { c.restart(t); awaitPolicy(t, n) }()
		eventually(t, func() error { _, err := n.Get("/livez"); return err })
		check(t, answered)
		if out, err := n.Run("nft", "list", "tables"); err != nil || strings.Contains(out, "manx") {
			t.Errorf("rules are left: %v\n%s", err, out)
		}
		p, err := n.AddPod("unguarded", lab.DualStack)
		must(t, err)
		must(t, lab.Ping(far.Namespace, p.IP4()))
		must(t, lab.Ping(p.Namespace, far.IP6()))
		must(t, p.Delete())
		if out, err := n.Manxctl("get", "policies"); err == nil || !strings.Contains(out, "policy") {
			t.Errorf("for policies the daemon returns %q, %v", out, err)
		}
	}()
	eventually(t, func() error {
		if got := (attempt{ns: far.Namespace, network: "udp", to: at(b.IP4(), 7002)}).try(0); got != lost {
			return fmt.Errorf("what is denied is %s", got)
		}
		return nil
	})
	check(t, lost)
}

// restart ends the daemon of n2 and starts it with additional flags.
func (c *cluster) restart(t *testing.T, more ...string) {
	t.Helper()
	must(t, c.N2.Manxd().Stop(limit))
	must(t, c.N2.StartManxd(slices.Concat(lab.UseDatastore(c.N1), world.PairFlags, more)...))
}
