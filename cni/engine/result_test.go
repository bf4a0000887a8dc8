package engine_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/cni"
)

// Finish has the whole result of an ADD with own addresses, in the version of the configuration. The result of another
// IPAM plugin has routes that only the CNI plugin knows.
func TestFinishHasTheResult(t *testing.T) {
	n := newNode(t)
	for version, want := range map[string]string{
		"0.2.0": `"ip4": {`, "0.3.1": `"version": "4"`, "1.0.0": `"cniVersion": "1.0.0"`, "1.1.0": `"mtu":`,
	} {
		id, conf := "c"+strings.ReplaceAll(version, ".", "-"), map[string]any{"cniVersion": version, "mtu": 1400}
		a, err := n.call(cni.StepAdd, id, nil, conf)
		n.must(err)
		_, err = n.call(cni.StepFinish, id, a, conf)
		n.must(err)
		for _, part := range []string{want, a.Addresses[0].String() + "/32"} {
			if !strings.Contains(n.result.Load().(string), part) {
				t.Errorf("version %s: %s lacks %s", version, n.result.Load(), part)
			}
		}
		n.del(id)
	}
	conf := map[string]any{"ipam": map[string]any{"type": "host-local"}}
	a, err := n.call(cni.StepAdd, "other", &cni.Attachment{Addresses: []netip.Addr{netip.MustParseAddr("10.9.9.9")}},
		conf)
	n.must(err)
	if _, err = n.call(cni.StepFinish, "other", a, conf); err != nil || n.result.Load() != "" {
		t.Errorf("after another IPAM plugin: %s, %v", n.result.Load(), err)
	}
}
