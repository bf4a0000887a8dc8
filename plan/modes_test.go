package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/manifest"
)

// cluster has two nodes with BGP, the second with a tunnel address of VXLAN, a block of each, and a pool with modes.
func clusterOf(modes, more string) State {
	return Read([]manifest.Source{{Name: "cluster", Text: []byte(`
{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n1}, spec: {bgp: {ipv4Address: 10.0.0.1/24}}}
---
{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n2}, spec: {bgp: {ipv4Address: 10.0.0.2/24},
 ipv4VXLANTunnelAddr: 10.244.2.0}}
---
{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n1-10-244-1-0-26},
 spec: {state: confirmed, node: n1, cidr: 10.244.1.0/26, deleted: "false"}}
---
{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n2-10-244-2-0-26},
 spec: {state: confirmed, node: n2, cidr: 10.244.2.0/26, deleted: "false"}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: pods}, spec: {cidr: 10.244.0.0/16` + modes + `}}
` + more)}}, "kube-system")
}

// A change of a pool's mode is its steps in their order, and the conditions of losses.
func TestModeChanges(t *testing.T) {
	const strict = "with rp_filter 1 on an uplink, from the first node's switch to the last one's"
	const noBGP = "---\n{apiVersion: projectcalico.org/v3, kind: BGPConfiguration, metadata: {name: default},\n" +
		" spec: {nodeToNodeMeshEnabled: false}}\n"
	const off = "---\n{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n3,\n" +
		" annotations: {manx.io/bgp-off: CALICO_NETWORKING_BACKEND is vxlan}},\n" +
		" spec: {bgp: {ipv4Address: 10.0.0.3/24}}}\n"
	const later = "each node replaces its routes to 2 blocks of other nodes (2 owners), 3 seconds after the other " +
		"node has published its tunnel address; until then the routes by BGP stay"
	large := func(mtu string) string {
		return "running pods send packets of up to 1500 bytes, of which those over " + mtu + " do not fit the " +
			"tunnel: whoever ignores ICMP's answer loses them. Make the pods again with the smaller MTU first"
	}
	for _, c := range []struct {
		from, to, more string
		want           string // the first line, steps and losses
	}{
		{"", ", vxlanMode: Always", "", `IPPool pods: none to VXLAN Always
  1. 1 node gets an address of vxlan.calico (n1)
  2. each node makes the device vxlan.calico where it is missing
  3. ` + later + `
  4. new pods have the MTU 1450 in place of 1500, on a host with 1500; others keep theirs
  packets may be lost: ` + large("1450") + `
  packets may be lost: ` + strict},
		{", vxlanMode: Always", "", "", `IPPool pods: VXLAN Always to none
  1. each node replaces its routes to 2 blocks of other nodes (2 owners), at once, once BGP has a route; until then ` +
			`the former routes stay, for 10 minutes at most
  2. new pods have the MTU 1500 in place of 1450, on a host with 1500; others keep theirs
  3. after 10 minutes: the addresses of vxlan.calico are released, and the device is deleted
  packets may be lost: ` + strict},
		{", ipipMode: Always", ", vxlanMode: CrossSubnet", "", `IPPool pods: IPIP Always to VXLAN CrossSubnet
  1. 1 node gets an address of vxlan.calico (n1)
  2. each node makes the device vxlan.calico where it is missing
  3. ` + later + `
  4. new pods have the MTU 1450 in place of 1480, on a host with 1500; others keep theirs
  5. after 10 minutes: the addresses of tunl0 are released, and the device stays without one
  packets may be lost: ` + strings.Replace(large("1450"), "1500", "1480", 1) + `
  packets may be lost: ` + strict},
		{", vxlanMode: Always", ", vxlanMode: CrossSubnet", "", `IPPool pods: VXLAN Always to VXLAN CrossSubnet
  1. each node replaces its routes to 2 blocks of other nodes (2 owners), at once
  packets may be lost: ` + strict},
		{", vxlanMode: Always", ", ipipMode: Always", noBGP, `IPPool pods: VXLAN Always to IPIP Always
  1. 2 nodes get an address of tunl0 (n1, n2)
  2. each node makes the device tunl0 where it is missing
  3. each node replaces its routes to 2 blocks of other nodes (2 owners), 3 seconds after the change, once BGP has a ` +
			`route; until then the former routes stay, for 10 minutes at most
  4. new pods have the MTU 1480 in place of 1450, on a host with 1500; others keep theirs
  5. after 10 minutes: the addresses of vxlan.calico are released, and the device is deleted
  packets may be lost: always, after 10 minutes: 2 nodes have no BGP session (n1, n2), and without VXLAN routes come ` +
			`from BGP`},
		{", vxlanMode: Always", "", off, `IPPool pods: VXLAN Always to none
  1. each node replaces its routes to 2 blocks of other nodes (2 owners), at once, once BGP has a route; until then ` +
			`the former routes stay, for 10 minutes at most
  2. new pods have the MTU 1500 in place of 1450, on a host with 1500; others keep theirs
  3. after 10 minutes: the addresses of vxlan.calico are released, and the device is deleted
  packets may be lost: ` + strict + `
  packets may be lost: always, after 10 minutes: 1 node has no BGP session (n3), and without VXLAN routes come from BGP`},
		{"", ", vxlanMode: Always", `---
{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: default}, spec: {vxlanEnabled: false}}
---
{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n3}, spec: {}}
`, `IPPool pods: none to VXLAN Always
  1. 2 nodes get an address of vxlan.calico (n1, n3)
  2. each node makes the device vxlan.calico where it is missing
  3. ` + later + `
  packets may be lost: ` + strict + `
  packets may be lost: always: VXLAN is switched off (FelixConfiguration, vxlanEnabled: false)
  packets may be lost: to nodes without an address of the family in spec.bgp (n3), once BGP has no route to them`},
		{", vxlanMode: Always", ", vxlanMode: Always", "", ""},
	} {
		s := Summarize(clusterOf(c.from, c.more), clusterOf(c.to, c.more), Settings{})
		var text string
		for _, m := range s.Modes {
			text += m.text()
		}
		got, want := strings.Split(strings.TrimSpace(text), "\n"), strings.Split(c.want, "\n")
		if !slices.Equal(got, want) {
			t.Errorf("%q to %q:\n%s\nwant\n%s", c.from, c.to, text, c.want)
		}
	}
}
