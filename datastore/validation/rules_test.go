package validation_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
)

func TestRules(t *testing.T) {
	const pool, peer, conf, filter = model.KindIPPool, model.KindBGPPeer, model.KindBGPConfiguration,
		model.KindBGPFilter
	for _, c := range []struct {
		rule string
		kind model.Kind
		name string
		spec string
		want string // field and value of a refusal; empty for a valid object
	}{
		{"32-bit AS numbers are accepted everywhere", peer, "p",
			`peerIP: 10.0.0.1, asNumber: 4294967295, localASNumber: "65010.7"`, ""},
		{"also in the default configuration", conf, "default", `asNumber: 4200000001`, ""},
		{"peer address with a port", peer, "p", `peerIP: "[fd00::1]:1179"`, ""},
		{"port 0", peer, "p", `peerIP: "10.0.0.1:0"`, `spec.peerIP = "10.0.0.1:0"`},
		{"node and nodeSelector", peer, "p", `node: n1, nodeSelector: all()`, `spec.nodeSelector = "all()"`},
		{"gateway of the other family", peer, "p", `peerIP: 10.0.0.1, reachableBy: "fd00::1"`,
			`spec.reachableBy = "fd00::1"`},
		{"keepOriginalNextHop false beside nextHopMode", peer, "p", `peerIP: 10.0.0.1, nextHopMode: Self`, ""},
		{"negative time", peer, "p", `peerIP: 10.0.0.1, maxRestartTime: -1s`, `spec.maxRestartTime = "-1s"`},
		{"long selector", peer, "p", `peerSelector: "` + strings.Repeat("a", 513) + ` == '` + strings.Repeat("b", 600) +
			`'"`, `spec.peerSelector = `},
		{"unknown reverse peering", peer, "p", `reversePeering: Sometimes`,
			`spec.reversePeering = "Sometimes": must be one of Auto, Manual`},
		{"listen port of a node", conf, "node.n", `listenPort: 1790`, ""},
		{"mesh password without a mesh", conf, "default", `nodeToNodeMeshEnabled: false, nodeMeshPassword: {}`,
			"spec.nodeMeshPassword"},
		{"community by name and by value", conf, "default",
			`communities: [{name: a, value: "1:2"}], prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: [a, "65535:65535", "4294967295:0:1"]}]`, ""},
		{"community that is not defined", conf, "default",
			`prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: [a]}]`,
			"spec.prefixAdvertisements[0].communities[0]"},
		{"communities for nothing", conf, "default", `communities: [{name: a, value: "1:2"}]`, "spec.communities"},
		{"community beyond 16 bits", conf, "default",
			`prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: ["1:65536"]}]`, "communities[0]"},
		{"advertised prefix with host bits", conf, "default",
			`prefixAdvertisements: [{cidr: 10.0.0.1/8, communities: ["1:1"]}]`, "10.0.0.0/8 is the network"},
		{"service range of a node", conf, "node.n", `serviceClusterIPs: [{cidr: 10.0.0.0/8}]`,
			"spec.serviceClusterIPs"},
		{"route priority", conf, "default", `ipv4NormalRoutePriority: 2147483647`,
			`spec.ipv4NormalRoutePriority = "2147483647"`},
		{"ignored interfaces", conf, "default", `ignoredInterfaces: ["eth*", "*"]`, "spec.ignoredInterfaces[1]"},
		{"a rule without conditions", filter, "f", `exportV4: [{action: Reject}]`, ""},
		{"a rule with everything", filter, "f",
			`importV6: [{action: Accept, cidr: "fd00::/8", matchOperator: NotIn, prefixLength: {min: 0, max: 128}, source: RemotePeers, interface: "eth*", peerType: iBGP,
			communities: {values: ["1:2:3"]}, asPathPrefix: [65000, "1.5"], priority: 2147483646, operations: [{addCommunity: {value: "1:2"}}, {prependASPath: {prefix: [1]}}, {setPriority: {value: 1}}]}]`, ""},
		{"no action", filter, "f", `exportV4: [{interface: eth0}]`, `spec.exportV4[0].action = ""`},
		{"unknown action", filter, "f", `exportV4: [{action: Drop}]`,
			`spec.exportV4[0].action = "Drop": must be one of Accept, Reject`},
		{"cidr of the other family", filter, "f",
			`importV4: [{action: Accept}, {action: Accept, cidr: "fd00::/8", matchOperator: In}]`,
			`spec.importV4[1].cidr = "fd00::/8"`},
		{"operator without cidr", filter, "f", `exportV6: [{action: Accept, matchOperator: In}]`,
			"spec.exportV6[0].cidr"},
		{"cidr without operator", filter, "f", `exportV6: [{action: Accept, cidr: "fd00::/8"}]`,
			"spec.exportV6[0].matchOperator"},
		{"unknown operator", filter, "f", `exportV4: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: Near}]`,
			"must be one of Equal, NotEqual, In, NotIn"},
		{"length without cidr", filter, "f", `exportV4: [{action: Accept, prefixLength: {max: 20}}]`,
			"spec.exportV4[0].cidr"},
		{"length with Equal", filter, "f",
			`exportV4: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: Equal, prefixLength: {max: 20}}]`,
			"goes with matchOperator In and NotIn only"},
		{"length with NotEqual", filter, "f",
			`exportV4: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: NotEqual, prefixLength: {max: 20}}]`,
			"spec.exportV4[0].prefixLength"},
		{"length beyond the family's", filter, "f",
			`exportV6: [{action: Accept, cidr: "fd00::/8", matchOperator: In, prefixLength: {max: 129}}]`,
			`spec.exportV6[0].prefixLength.max = "129": must be from 0 to 128`},
		{"lengths the wrong way round", filter, "f",
			`exportV4: [{action: Accept, cidr: 10.0.0.0/8, matchOperator: In, prefixLength: {min: 24, max: 16}}]`,
			"must not exceed max, which is 16"},
		{"unknown source", filter, "f", `exportV4: [{action: Accept, source: Local}]`, "spec.exportV4[0].source"},
		{"interface of 16 characters", filter, "f", `exportV4: [{action: Accept, interface: abcdefghijklmnop}]`,
			"spec.exportV4[0].interface"},
		{"unknown peer type", filter, "f", `exportV4: [{action: Accept, peerType: ebgp}]`, "spec.exportV4[0].peerType"},
		{"no community", filter, "f", `exportV4: [{action: Accept, communities: {values: []}}]`,
			"spec.exportV4[0].communities.values"},
		{"two communities", filter, "f", `exportV4: [{action: Accept, communities: {values: ["1:1", "1:2"]}}]`,
			"must have exactly one community"},
		{"a bad community", filter, "f", `exportV4: [{action: Accept, communities: {values: ["1:65536"]}}]`,
			"spec.exportV4[0].communities.values[0]"},
		{"priority of a rule", filter, "f", `exportV4: [{action: Accept, priority: 2147483647}]`,
			"spec.exportV4[0].priority"},
		{"operations of Reject", filter, "f", `exportV4: [{action: Reject, operations: [{setPriority: {value: 1}}]}]`,
			"go with action Accept only"},
		{"eleven operations", filter, "f", `exportV4: [{action: Accept, operations: [` +
			strings.Repeat(`{setPriority: {value: 1}},`, 11) + `]}]`, "can have at most 10 entries"},
		{"two operations in one", filter, "f",
			`exportV4: [{action: Accept, operations: [{setPriority: {value: 1}, addCommunity: {value: "1:1"}}]}]`,
			"spec.exportV4[0].operations[0]"},
		{"nothing to prepend", filter, "f", `exportV4: [{action: Accept, operations: [{prependASPath: {prefix: []}}]}]`,
			"must have 1 to 10 AS numbers"},
		{"bare address in a filter", filter, "f", `importV4: [{action: Accept, matchOperator: In, cidr: 10.1.2.3}]`,
			`spec.importV4[0].cidr = "10.1.2.3": must be a CIDR: write 10.1.2.3/32`},
		{"host bits in a filter", filter, "f", `exportV6: [{action: Accept, matchOperator: In, cidr: "fd00::1/8"}]`,
			`spec.exportV6[0].cidr = "fd00::1/8": must not have host bits set: fd00::/8 is the network`},
		{"a priority to set", filter, "f", `exportV4: [{action: Accept, operations: [{setPriority: {value: 0}}]}]`,
			"spec.exportV4[0].operations[0].setPriority.value"},
		{"a community to add", filter, "f",
			`exportV4: [{action: Accept, operations: [{addCommunity: {value: "gold"}}]}]`,
			"spec.exportV4[0].operations[0].addCommunity.value"},
		{"pool as small as its block", pool, "p", `cidr: 10.0.0.0/26`, ""},
		{"pool smaller than its block", pool, "p", `cidr: 10.0.0.0/27`, `spec.blockSize = "26"`},
		{"disabled pool smaller than its block", pool, "p", `cidr: 10.0.0.0/27, disabled: true`, ""},
		{"IPIP for IPv6", pool, "p", `cidr: "fd00::/64", ipipMode: Always`, "spec.ipipMode"},
		{"pool for services", pool, "p", `cidr: 10.0.0.0/24, allowedUses: [LoadBalancer]`, ""},
		{"pool for services with a selector", pool, "p",
			`cidr: 10.0.0.0/24, allowedUses: [LoadBalancer], nodeSelector: has(a)`, "spec.nodeSelector"},
		{"namespaces in a pool for workloads", pool, "p",
			`cidr: 10.0.0.0/24, allowedUses: [Workload], namespaceSelector: has(a)`, ""},
		{"link-local pool", pool, "p", `cidr: 169.254.8.0/24`, "overlaps the link-local range 169.254.0.0/16"},
		{"pool around link-local addresses", pool, "p", `cidr: 169.0.0.0/8`, "overlaps the link-local range"},
		{"name", pool, "Big", `cidr: 10.0.0.0/24`, `metadata.name = "Big"`},
		{"tier with a default action", model.KindTier, "t", `defaultAction: Allow`,
			`spec.defaultAction = "Allow": must be one of Deny, Pass`},
		{"built-in tier as it is", model.KindTier, "kube-admin", `order: 1000, defaultAction: Pass`, ""},
		{"built-in profile", model.KindProfile, model.DefaultAllowProfile, ``, "metadata.name"},
		{"only one cluster information", model.KindClusterInformation, "other", ``, `must be "default"`},
		{"sections of controllers", model.KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{generateName: a, interfaceCIDRs: [10.0.0.0/8, 10.1.1.1]}, {generateName: b, interfacePattern: "eth[0-9]"}]}}}`, ""},
		{"template without a name", model.KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{interfacePattern: eth0}]}}}`,
			"spec.controllers.node.hostEndpoint.templates[0].generateName"},
		{"templates of one name", model.KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{generateName: a, interfacePattern: eth0}, {generateName: a, interfacePattern: eth1}]}}}`, "templates[1].generateName"},
		{"template of no interface", model.KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{generateName: a}]}}}`, "templates[0].interfacePattern"},
		{"template with a bad pattern", model.KindKubeControllers, "default",
			`controllers: {node: {hostEndpoint: {templates: [{generateName: a, interfacePattern: "eth["}]}}}`,
			"templates[0].interfacePattern"},
		{"which services get addresses", model.KindKubeControllers, "default",
			`controllers: {loadBalancer: {assignIPs: Some}}`,
			`spec.controllers.loadBalancer.assignIPs = "Some": must be one of AllServices, RequestedServicesOnly`},
		{"cooldown", model.KindIPAMConfiguration, "default", `strictAffinity: false, ipCooldownSeconds: 1201`,
			"spec.ipCooldownSeconds"},
		{"selector of a default felix configuration", model.KindFelixConfiguration, "default", `nodeSelector: all()`,
			"spec.nodeSelector"},
		{"names of node ports", model.KindFelixConfiguration, "default", `kubeNodePortRanges: ["30000:32767", web]`,
			`spec.kubeNodePortRanges[1] = "web"`},
		{"pattern of interfaces", model.KindFelixConfiguration, "default", `mtuIfacePattern: "("`, "spec.mtuIfacePattern"},
		{"health reporter", model.KindFelixConfiguration, "node.z", `healthTimeoutOverrides: [{name: "a*b", timeout: 1s}]`,
			"spec.healthTimeoutOverrides[0].name"},
		{"bare reservation", model.KindIPReservation, "r", `reservedCIDRs: [10.0.0.5]`, "spec.reservedCIDRs[0]"},
		{"node with AS only", model.KindNode, "n1", `bgp: {asNumber: 4200000001}`, ""},
		{"cluster ID", model.KindNode, "n1", `bgp: {routeReflectorClusterID: one}`, "spec.bgp.routeReflectorClusterID"},
		{"WireGuard key", model.KindNode, "n1", `wireguard: {interfaceIPv4Address: "fd00::1"}`,
			"spec.wireguard.interfaceIPv4Address"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			objects, err := document.Parse([]byte("{apiVersion: projectcalico.org/v3, kind: " + string(c.kind) +
				", metadata: {name: " + c.name + "}, spec: {" + c.spec + "}}"))
			if err != nil {
				t.Fatal(err)
			}
			err = codec.PrepareCreate(objects[0], created)
			var invalid *model.InvalidError
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

func TestImmutableFieldsOfPools(t *testing.T) {
	key := model.ResourceKey(model.KindIPPool, "p")
	old := codec.Decode(key, []byte(`{"metadata":{"name":"p"},"spec":{"cidr":"fd00:0::/64","allowedUses":["LoadBalancer"]}}`),
		4)
	for _, c := range []struct {
		rule   string
		change func(*model.IPPool)
		want   string
	}{
		{"the spelling of the CIDR", func(p *model.IPPool) { p.Spec.CIDR = "FD00::/64" }, ""},
		{"the CIDR", func(p *model.IPPool) { p.Spec.CIDR = "fd01::/64" }, "spec.cidr"},
		{"the block size to its default", func(p *model.IPPool) { p.Spec.BlockSize = 122 }, ""},
		{"the block size", func(p *model.IPPool) { p.Spec.BlockSize = 123 }, "spec.blockSize"},
		{"the use", func(p *model.IPPool) { p.Spec.AllowedUses = []v3.IPPoolAllowedUse{"Workload"} },
			"spec.allowedUses"},
	} {
		o := old.Clone()
		c.change(o.Value.(*model.IPPool))
		err := codec.PrepareUpdate(o)
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("changing %s: %v", c.rule, err)
		}
	}
}

var created = time.Date(2026, 8, 1, 12, 0, 0, 999, time.FixedZone("x", 7200))
