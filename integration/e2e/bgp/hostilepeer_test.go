package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestHostilePeer has a router announce invalid routes: martians, a pod of another node, a default route and a part of
// the node's subnet. Martians are always refused, the other routes as soon as this is configured, on a session that
// stays up.
func TestHostilePeer(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("x"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"},
		{Name: "n2"}}})
	n1, n2, tor := l.Nodes[0], l.Nodes[1], l.ToRs[0]
	router := tor.Address(n1)
	must(t, n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools", "--ip=autodetect")...))
	must(t, n1.Ready(limit))
	must(t, n1.Apply("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\nspec: {cidr: "+
		"10.244.0.0/16, ipipMode: Never}\n---\n"+world.TorPeer(n1, "tor", router, "")))
	must(t, n2.StartManxd(append(lab.UseDatastore(n1), "--no-default-pools", "--ip=autodetect")...))
	must(t, n2.Ready(limit))
	pod, err := n1.AddPod("n1-p1")
	must(t, err)
	victim, err := n2.AddPod("n2-p1")
	must(t, err)
	block := world.Blocks(t, n2, "-4")[0]
	p, err := lab.ConnectPeer(tor.Namespace, n1.IP4.String()+":179", 65000, router)
	must(t, err)
	defer p.Close()

	martians := map[string]string{"169.254.169.254/32": "link_local", "0.0.0.0/8": "this_network",
		"240.0.0.0/4": "reserved", "255.255.255.255/32": "broadcast",
		"224.0.0.0/8": "multicast", "127.5.0.0/16": "loopback", n1.IP4.String() + "/32": "own_address"}
	hijack, subnet, later := netip.PrefixFrom(victim.IP4(), 32), netip.MustParsePrefix("10.200.1.128/25"),
		netip.MustParsePrefix("10.55.0.0/25")
	aggregate, outside, all := netip.MustParsePrefix("128.0.0.0/1"), netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("0.0.0.0/0")
	list := []netip.Prefix{hijack, block, subnet, later, aggregate, outside, all}
	for text := range martians {
		list = append(list, netip.MustParsePrefix(text))
	}
	must(t, p.Send(lab.Announce(65000, router, list)))

	in := func(what string, prefixes ...netip.Prefix) {
		t.Helper()
		eventually(t, func() error {
			for _, q := range []netip.Prefix{hijack, subnet, later, aggregate, outside} {
				routes := world.OurRoutesTo(t, n1, "-4", strings.TrimSuffix(q.String(), "/32"))
				if got, want := len(routes) > 0, slices.Contains(prefixes, q); got != want {
					return fmt.Errorf("%s: route to %s: %v, want %v", what, q, routes, want)
				}
			}
			return nil
		})
	}
	rejected := func(classes map[string]int) {
		t.Helper()
		eventually(t, func() error {
			for class, want := range classes {
				if got := world.Metric(t, n1, fmt.Sprintf("manx_bgp_rejected_routes{reason=%q}",
					class)); got != float64(want) {
					return fmt.Errorf("%s: %v rejected, want %d", class, got, want)
				}
			}
			return nil
		})
	}
	in("as in Calico", hijack, subnet, later, aggregate, outside)
	rejected(map[string]int{"link_local": 1, "this_network": 1, "reserved": 1, "broadcast": 1, "multicast": 1,
		"loopback": 1, "own_address": 1, "pool": 0})
	out, err := n1.Manxctl("routes", "--rejected")
	must(t, err)
	for prefix := range martians {
		if world.LineWith(out, prefix) == "" {
			t.Errorf("manxctl routes --rejected does not list %s:\n%s", prefix, out)
		}
		if r := world.OurRoutesTo(t, n1, "-4", strings.TrimSuffix(prefix, "/32")); len(r) > 0 {
			t.Errorf("the kernel has %v", r)
		}
	}
	t.Logf("\n%s", out)

	config := "apiVersion: projectcalico.org/v3\nkind: BGPConfiguration\nmetadata: {name: %s, annotations: {%s}}\n"
	must(t, n1.Apply(fmt.Sprintf(config, "default",
		`manx.io/refuse-pool-routes: "true", manx.io/refuse-default-route: "true", manx.io/refuse-connected-routes: "true"`)))
	in("refused by settings", later, aggregate, outside)
	rejected(map[string]int{"pool": 1, "default_route": 1, "connected_subnet": 1})
	eventually(t, func() error { return lab.Ping(pod.Namespace, victim.IP4()) })
	_, err = n1.Run("ip", "address", "add", "10.55.0.1/24", "dev", "lo") // a new subnet takes effect at once
	must(t, err)
	in("inside a new subnet", aggregate, outside)

	// Without the mesh the router may pass on the block of the other node, but still no route inside it.
	strict := `manx.io/refuse-pool-routes: "true", manx.io/refuse-default-route: "true", manx.io/refuse-connected-routes: "true"`
	must(t, n1.Apply(fmt.Sprintf(config, "default", strict)+"spec: {nodeToNodeMeshEnabled: false}\n"))
	eventually(t, func() error {
		if r := world.OurRoutesTo(t, n1, "-4", block.String()); len(r) != 1 || r[0].Gateway != router.String() {
			return fmt.Errorf("routes to the block: %v, want one by the router", r)
		}
		return nil
	})
	rejected(map[string]int{"pool": 1})
	must(t, n1.Apply(fmt.Sprintf(config, "node.n1",
		`manx.io/refuse-pool-routes: "false", manx.io/refuse-default-route: "false", manx.io/refuse-connected-routes: "false", manx.io/max-prefix-length-v4: "28"`)))
	_, err = n1.Run("ip", "address", "del", "10.55.0.1/24", "dev", "lo")
	must(t, err)
	in("the node's own settings come first", subnet, later, aggregate, outside)
	rejected(map[string]int{"prefix_length": 1, "pool": 0, "default_route": 0})
	if q := world.Peer(t, n1, router); q.GetState() != "Established" || q.GetFlaps() != 0 {
		t.Errorf("the session: %v", q)
	}
}
