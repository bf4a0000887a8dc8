package policy

import (
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
)

// TestPolicyGuarantees checks the guarantees of the packet filter under floods of packets.
func TestPolicyGuarantees(t *testing.T) {
	c := newPolicyLab(t, "g", map[string]string{"client": "n2", "server": "n2", "remote": "n1"})
	world.InOrder(t, c, []world.Step[*cluster]{
		{Name: "a change is one transaction", Run: (*cluster).testAtomic},
		{Name: "a new pod is never without policy", Run: (*cluster).testNewPods},
		{Name: "a restart changes nothing", Run: (*cluster).testRestartKeepsPolicy},
		{Name: "a resync of what has not changed writes nothing", Run: (*cluster).testResyncWritesNothing},
		{Name: "what others change is repaired", Run: (*cluster).testPolicyDrift},
	})
}
