package failure

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testClaims writes an endpoint on the interface of a pod that claims addresses of the host's correspondents. No route
// of the host leads to the pod, and the claims are named.
func (c *cluster) testClaims(t *testing.T) {
	n := c.N2
	claims := []netip.Addr{c.ToR1.Address(n), n.IP4, c.N1.IP4, c.N3.IP6, netip.MustParseAddr("169.254.169.254"),
		netip.MustParseAddr("224.0.0.5")}
	const prefix = world.ResourceKeys + "workloadendpoints/"
	genuine, value := "", ""
	for k, v := range c.Raw(t, prefix) {
		if strings.Contains(v, `"node":"n2"`) {
			genuine, value = k, v
		}
	}
	var endpoint map[string]any
	must(t, json.Unmarshal([]byte(value), &endpoint))
	networks := []string{}
	for _, a := range claims {
		networks = append(networks, netip.PrefixFrom(a, a.BitLen()).String())
	}
	spec := endpoint["spec"].(map[string]any)
	own := spec["ipNetworks"].([]any)[0].(string)
	spec["ipNetworks"] = append(networks, "198.51.100.7/32")
	raw, err := json.Marshal(endpoint)
	must(t, err)
	c.Put(t, genuine+"x", string(raw))
	eventually(t, func() error {
		out, err := n.Manxctl("status")
		for _, a := range claims {
			if !strings.Contains(out, "claims "+a.String()+", which is not routed to a workload") {
				return fmt.Errorf("no notice of %s: %w\n%s", a, err, out)
			}
		}
		return nil
	})
	eventually(t, func() error {
		if len(world.OurRoutesTo(t, n, "-4", "198.51.100.7")) == 0 {
			return fmt.Errorf("the address of nobody has no route")
		}
		return nil
	})
	for _, a := range claims {
		family := "-4"
		if a.Is6() {
			family = "-6"
		}
		if r := world.OurRoutesTo(t, n, family, a.String()); len(r) > 0 {
			t.Errorf("the host has a route to %s: %v", a, r)
		}
	}
	if len(world.OurRoutesTo(t, n, "-4", strings.TrimSuffix(own, "/32"))) == 0 {
		t.Errorf("the pod has lost its route to %s", own)
	}
	_, err = c.Etcd.Delete(t.Context(), genuine+"x")
	must(t, err)
	c.Settled(t)
}
