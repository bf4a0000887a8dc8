package cluster

import (
	"os"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	netns "github.com/manxnet/manx/integration/namespace"
)

// TestNetworksByName refuses what does not exist, and names what does.
func TestNetworksByName(t *testing.T) {
	netns.Require(t, "ip") // the kernel is asked for WireGuard
	for names, want := range map[[2]string]Network{{"", ""}: {BGP, lab.IPv4}, {"vxlan", "dual"}: {VXLAN, lab.Dual},
		{"bgp", "ipv6"}: {BGP, lab.IPv6}} {
		if got, err := ParseNetwork(names[0], names[1]); err != nil || got != want {
			t.Errorf("%q is %v, want %v (%v)", names, got, want, err)
		}
	}
	for names, want := range map[[2]string]string{{"ipip", ""}: `mode "ipip": want bgp, vxlan or wireguard`,
		{"", "both"}: `families "both": want ipv4, dual or ipv6`, {"wireguard", ""}: "mode wireguard: "} {
		if _, err := ParseNetwork(names[0], names[1]); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", names, err, want)
		}
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
