package e2e

import (
	"testing"
	"time"
)

// TestPolicyGuarantees holds what the packet filter promises against floods of packets.
func TestPolicyGuarantees(t *testing.T) {
	c := newPolicyLab(t, "g", map[string]string{"client": "n2", "server": "n2", "remote": "n1"})
	for _, test := range []struct {
		name string
		run  func(*cluster, *testing.T)
	}{
		{"a change is one transaction", (*cluster).testAtomic},
		{"a new pod is never without policy", (*cluster).testNewPods},
		{"a restart changes nothing", (*cluster).testRestartKeepsPolicy},
		{"a resync of what has not changed writes nothing", (*cluster).testResyncWritesNothing},
		{"what others change is repaired", (*cluster).testPolicyDrift},
	} {
		ok := t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			test.run(c, t)
			t.Logf("took %.1f s", time.Since(start).Seconds())
		})
		if !ok {
			break
		}
	}
}
