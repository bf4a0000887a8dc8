package cluster

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// TestNetworksByName refuses what does not exist, and names what does.
func TestNetworksByName(t *testing.T) {
	for names, want := range map[[2]string]Network{{"", ""}: {BGP, lab.IPv4}, {"vxlan", "dual"}: {VXLAN, lab.Dual},
		{"bgp", "ipv6"}: {BGP, lab.IPv6}, {"wireguard", ""}: {WireGuard, lab.IPv4}} {
		if got, err := ParseNetwork(names[0], names[1]); err != nil || got != want {
			t.Errorf("%q is %v, want %v (%v)", names, got, want, err)
		}
	}
	for names, want := range map[[2]string]string{{"ipip", ""}: `mode "ipip": want bgp, vxlan or wireguard`,
		{"", "both"}: `families "both": want ipv4, dual or ipv6`} {
		if _, err := ParseNetwork(names[0], names[1]); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", names, err, want)
		}
	}
}

// TestRareProbes changes the times of probes and nothing else.
func TestRareProbes(t *testing.T) {
	t.Setenv("MANX_PATIENCE", "5")
	cmd := exec.Command("awk", rareProbes())
	cmd.Stdin = strings.NewReader("  terminationGracePeriodSeconds: 10\n    periodSeconds: 5\n    timeoutSeconds: 8\n")
	got, err := cmd.Output()
	want := "  terminationGracePeriodSeconds: 10\n    periodSeconds: 25\n    timeoutSeconds: 40\n"
	if err != nil || string(got) != want {
		t.Errorf("got %q, want %q (%v)", got, want, err)
	}
}

// TestVariablesOfManifests sets variables in the shipped manifest, each once.
func TestVariablesOfManifests(t *testing.T) {
	raw, err := os.ReadFile("../../../deploy/manifests/manx-kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, variable := range []string{"IP=none", "IP6=autodetect"} { // the manifest has the first of them
		text = withVariable(text, variable)
	}
	for line, value := range map[string]string{"- name: IP\n": `value: "none"`,
		"- name: IP6\n": `value: "autodetect"`} {
		_, rest, ok := strings.Cut(text, line)
		if !ok || !strings.HasPrefix(strings.TrimSpace(rest), value) || strings.Contains(rest, line) {
			t.Errorf("%q is there once: %t, with %.40q", line, ok && !strings.Contains(rest, line), rest)
		}
	}
}
