package validationtest

import (
	"fmt"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// The treatment of a stored object that breaks a rule.
const (
	isUsed      = false
	quarantined = true
)

// Policies are policies, sets of networks and host endpoints.
func Policies() []Object {
	const np, gnp, snp, sgnp, sknp = model.KindNetworkPolicy, model.KindGlobalNetworkPolicy,
		model.KindStagedNetworkPolicy, model.KindStagedGlobalNetworkPolicy, model.KindStagedKubernetesNetworkPolicy
	rule := func(r string) string { return "ingress: [{action: Allow}, {" + r + "}]" }
	var list []Object
	for _, row := range []struct {
		rule       string
		kind       model.Kind
		spec, want string
		unusable   bool
	}{
		{"every action", np, `ingress: [{action: Allow}, {action: Deny}, {action: Log}, {action: Pass}]`, "", isUsed},
		{"no action", np, rule(`protocol: TCP`), `spec.ingress[1].action = "": must be one of Allow, Deny, Log, Pass`,
			quarantined},
		{"unknown action", np, rule(`action: Drop`), `spec.ingress[1].action = "Drop"`, quarantined},
		{"IP version 5", np, rule(`action: Allow, ipVersion: 5`), `spec.ingress[1].ipVersion = "5": must be 4 or 6`,
			quarantined},
		{"protocol by name and by number", np,
			`egress: [{action: Deny, protocol: UDPLite}, {action: Deny, notProtocol: 255}]`, "", isUsed},
		{"protocol in lower case", np, rule(`action: Allow, protocol: tcp`),
			`spec.ingress[1].protocol = "tcp": must be a number from 1 to 255 or one of TCP`, quarantined},
		{"protocol 0", np, rule(`action: Allow, notProtocol: 0`), `spec.ingress[1].notProtocol = "0"`, quarantined},

		{"ICMP type and code", np,
			rule(`action: Allow, protocol: ICMP, icmp: {type: 3, code: 4}, notICMP: {type: 254, code: 255}`), "",
			isUsed},
		{"ICMP by number", np, rule(`action: Allow, protocol: 58, icmp: {type: 128}`), "", isUsed},
		{"ICMP without a protocol", np, rule(`action: Allow, icmp: {type: 8}`), `spec.ingress[1].icmp`, quarantined},
		{"ICMP with another protocol", np, rule(`action: Allow, protocol: TCP, notICMP: {type: 8}`),
			`spec.ingress[1].notICMP`, quarantined},
		{"ICMP type 255", np, rule(`action: Allow, protocol: ICMP, icmp: {type: 255}`),
			`spec.ingress[1].icmp.type = "255": must be from 0 to 254`, quarantined},
		{"ICMP code 256", np, rule(`action: Allow, protocol: ICMP, icmp: {type: 3, code: 256}`),
			`spec.ingress[1].icmp.code = "256": must be from 0 to 255`, quarantined},
		{"ICMP code without a type", np, rule(`action: Allow, protocol: ICMP, icmp: {code: 0}`),
			`spec.ingress[1].icmp.code = "0": needs a type`, quarantined},
		{"ICMP for IPv6", np, rule(`action: Allow, protocol: ICMP, ipVersion: 6`),
			`spec.ingress[1].protocol = "ICMP": is of another family than IPv6`, isUsed},
		{"ICMPv6 for an IPv4 network", np, rule(`action: Allow, protocol: ICMPv6, source: {nets: [10.0.0.0/8]}`),
			`spec.ingress[1].source.nets[0] = "10.0.0.0/8": is of another family than IPv6, as protocol calls for`,
			isUsed},

		{"key of an annotation", np, rule(`action: Allow, metadata: {annotations: {"a b": c}}`),
			`spec.ingress[1].metadata.annotations = "a b": the key is no qualified name`, isUsed},
		{"annotations", np, rule(`action: Allow, metadata: {annotations: {example.com/Why: "because of it"}}`), "",
			isUsed},
		{"networks", np, rule(`action: Allow, source: {nets: [10.0.0.1/32, 10.1.0.0/16], notNets: [10.1.1.1/32]}`), "",
			isUsed},
		{"bare address", np, rule(`action: Allow, source: {nets: [10.0.0.0/8, 10.0.0.1]}`),
			`spec.ingress[1].source.nets[1] = "10.0.0.1": must be a CIDR: write 10.0.0.1/32`, isUsed},
		{"bare address that is left out", np, rule(`action: Allow, destination: {notNets: ["fd00::1"]}`),
			`spec.ingress[1].destination.notNets[0] = "fd00::1": must be a CIDR: write fd00::1/128`, isUsed},
		{"no network", np, rule(`action: Allow, source: {nets: [home]}`),
			`spec.ingress[1].source.nets[0] = "home": must be an IP address or CIDR`, quarantined},
		{"host bits", np, rule(`action: Allow, destination: {notNets: [10.0.0.1/8]}`),
			`spec.ingress[1].destination.notNets[0] = "10.0.0.1/8": must not have host bits set: 10.0.0.0/8 is the network`, isUsed},
		{"both families in one list", np, rule(`action: Allow, source: {nets: [10.0.0.0/8, "fd00::/8"]}`),
			`spec.ingress[1].source.nets[1] = "fd00::/8": is of another family than IPv4, as 10.0.0.0/8 calls for`,
			isUsed},
		{"families of source and destination", np,
			rule(`action: Allow, source: {nets: [10.0.0.0/8]}, destination: {notNets: ["fd00::/8"]}`),
			`spec.ingress[1].destination.notNets[0]`, isUsed},
		{"networks of the family", np, rule(`action: Allow, ipVersion: 6, source: {nets: ["fd00::/8"]}`), "", isUsed},
		{"networks of the other family", np, rule(`action: Allow, ipVersion: 6, source: {nets: [10.0.0.0/8]}`),
			`is of another family than IPv6, as ipVersion calls for`, isUsed},
		{"everything excluded", np, rule(`action: Allow, source: {notNets: ["::/0"]}`),
			`spec.ingress[1].source.notNets[0] = "::/0": would exclude everything`, isUsed},
		{"everything included", np, rule(`action: Allow, source: {nets: [0.0.0.0/0]}`), "", isUsed},

		{"ports, ranges and names", np,
			rule(`action: Allow, protocol: 132, destination: {ports: [80, "8000:8100", web], notPorts: ["8050"]}`), "",
			isUsed},
		{"names of ports need no protocol", np, rule(`action: Allow, destination: {ports: [web]}`), "", isUsed},
		{"ports without a protocol", np, rule(`action: Allow, destination: {ports: [web, 80]}`),
			`spec.ingress[1].destination.ports[1] = "80": needs protocol TCP, UDP or SCTP in the same rule`,
			quarantined},
		{"excluded ports without a protocol", np, rule(`action: Allow, source: {notPorts: [80]}`),
			`spec.ingress[1].source.notPorts[0]`, quarantined},
		{"ports of a protocol without ports", np, rule(`action: Allow, protocol: UDPLite, destination: {ports: [80]}`),
			`spec.ingress[1].destination.ports = "80": need protocol TCP, UDP or SCTP: UDPLite has no ports`,
			quarantined},
		{"names of ports of a protocol without ports", np,
			rule(`action: Allow, protocol: 47, destination: {ports: [web]}`), `47 has no ports`, quarantined},
		{"port 0", np, rule(`action: Allow, protocol: TCP, destination: {ports: [0]}`),
			`spec.ingress[1].destination.ports[0] = "0": must be from 1 to 65535`, isUsed},

		{"selectors everywhere", np, `selector: a == 'b', serviceAccountSelector: has(c), ` +
			rule(
				`action: Allow, source: {selector: has(a), notSelector: "b in {'c'}", namespaceSelector: all(), serviceAccounts: {selector: has(x)}}`), "", isUsed},
		{"a selector that does not parse", np, `selector: a ===`, `spec.selector = "a ===": must be a selector`,
			quarantined},
		{"a selector of a rule that does not parse", np, rule(`action: Allow, source: {notSelector: "a ="}`),
			`spec.ingress[1].source.notSelector`, quarantined},
		{"a selector of service accounts that does not parse", np,
			rule(`action: Allow, source: {serviceAccounts: {selector: "!!"}}`),
			`spec.ingress[1].source.serviceAccounts.selector`, quarantined},
		{"a name of a service account that ends its text", np,
			rule(`action: Allow, source: {serviceAccounts: {names: [ok, "x'}) || (all()) || (app in {'y"]}}`),
			`spec.ingress[1].source.serviceAccounts.names[1]`, quarantined},
		{"names of service accounts", np, rule(`action: Allow, source: {serviceAccounts: {names: [a, b.c-d]}}`), "",
			isUsed},
		{"1025 characters of selector", np, `selector: "a == '` + strings.Repeat("b", 1018) + `'"`,
			`a selector may have at most 1024 characters, this has 1025`, isUsed},
		{"1024 characters of selector", np, `selector: "a == '` + strings.Repeat("b", 1017) + `'"`, "", isUsed},

		{"global() alone", np, rule(`action: Allow, source: {namespaceSelector: global()}`), "", isUsed},
		{"global() in text", np, rule(`action: Allow, source: {namespaceSelector: "a == 'global()'"}`), "", isUsed},
		{"global() with something", np, rule(`action: Allow, source: {namespaceSelector: "!global()"}`),
			`spec.ingress[1].source.namespaceSelector = "!global()": global() must stand alone`, quarantined},
		{"global() or something", np, rule(`action: Allow, source: {namespaceSelector: "global() || has(a)"}`),
			`global() must stand alone`, quarantined},
		{"global() in a rule's selector", np, rule(`action: Allow, source: {selector: global()}`),
			`spec.ingress[1].source.selector = "global()": cannot contain global()`, quarantined},
		{"global() as the subject", gnp, `selector: has(a) && global()`, `spec.selector = "has(a) && global()"`,
			quarantined},
		{"global() as the subject's namespaces", gnp, `namespaceSelector: global()`,
			`spec.namespaceSelector = "global()"`, quarantined},

		{"service as the source of an ingress rule", np, rule(`action: Allow, source: {services: {name: db}}`), "",
			isUsed},
		{"service with ports as the source of an ingress rule", np,
			rule(`action: Allow, protocol: TCP, source: {services: {name: db}, ports: [1]}`), "", isUsed},
		{"service as the destination of an ingress rule", np,
			rule(`action: Allow, destination: {services: {name: db}}`),
			`spec.ingress[1].destination.services = "db": can only be the destination of an egress rule or the source of an ingress rule`, quarantined},
		{"service as the destination of an egress rule", np,
			`egress: [{action: Allow, destination: {services: {name: db, namespace: shop}}}]`, "", isUsed},
		{"service as the source of an egress rule", np, `egress: [{action: Allow, source: {services: {name: db}}}]`,
			`spec.egress[0].source.services`, quarantined},
		{"service without a name", np, rule(`action: Allow, source: {services: {namespace: shop}}`),
			`spec.ingress[1].source.services.name = "": is required`, quarantined},
		{"service without a namespace in no namespace", gnp, rule(`action: Allow, source: {services: {name: db}}`),
			`spec.ingress[1].source.services.namespace = "": is required: this policy is in no namespace`, quarantined},
		{"service and selector", np, rule(`action: Allow, source: {services: {name: db}, selector: all()}`),
			`spec.ingress[1].source.selector = "set": cannot stand beside services`, quarantined},
		{"service and notSelector", np, rule(`action: Allow, source: {services: {name: db}, notSelector: all()}`),
			`source.notSelector`, quarantined},
		{"service and namespaceSelector", np,
			rule(`action: Allow, source: {services: {name: db}, namespaceSelector: all()}`), `source.namespaceSelector`,
			quarantined},
		{"service and service accounts", np,
			rule(`action: Allow, source: {services: {name: db}, serviceAccounts: {names: [x]}}`),
			`source.serviceAccounts`, quarantined},
		{"service and networks", np, rule(`action: Allow, source: {services: {name: db}, nets: [10.0.0.0/8]}`),
			`source.nets`, quarantined},
		{"service and excluded networks", np,
			rule(`action: Allow, source: {services: {name: db}, notNets: [10.0.0.0/8]}`), `source.notNets`,
			quarantined},
		{"destination service and ports", np,
			`egress: [{action: Allow, protocol: TCP, destination: {services: {name: db}, ports: [1]}}]`,
			`spec.egress[0].destination.ports`, quarantined},

		{"HTTP", np,
			rule(`action: Allow, protocol: TCP, http: {methods: [GET, PUT], paths: [{exact: /a}, {prefix: /b}]}`), "",
			isUsed},
		{"HTTP without a protocol", np, rule(`action: Allow, http: {methods: [GET]}`), "", isUsed},
		{"HTTP of a Deny", np, rule(`action: Deny, http: {methods: [GET]}`),
			`can only be in a rule with action Allow, not Deny`, quarantined},
		{"HTTP of UDP", np, rule(`action: Allow, protocol: UDP, http: {methods: [GET]}`),
			`spec.ingress[1].protocol = "UDP": must be TCP, or be left out, in a rule with http`, isUsed},
		{"HTTP of egress", np, `egress: [{action: Allow, http: {methods: [GET]}}]`,
			`spec.egress[0].http = "set": can only be in an ingress rule`, isUsed},
		{"a method twice", np, rule(`action: Allow, http: {methods: [GET, PUT, GET]}`),
			`spec.ingress[1].http.methods[2] = "GET"`, isUsed},
		{"21 methods", np, rule(`action: Allow, http: {methods: [` + Numbered("M%d", 21) + `]}`),
			`spec.ingress[1].http.methods = "21": can have at most 20 entries`, isUsed},
		{"21 paths", np, rule(`action: Allow, http: {paths: [` + Numbered("{exact: /%d}", 21) + `]}`),
			`spec.ingress[1].http.paths = "21"`, isUsed},
		{"a path that is exact and a prefix", np, rule(`action: Allow, http: {paths: [{exact: /a, prefix: /b}]}`),
			`must have exactly one of exact and prefix`, isUsed},
		{"a path without a slash", np, rule(`action: Allow, http: {paths: [{prefix: a}]}`),
			`spec.ingress[1].http.paths[0] = "a": must begin with '/'`, isUsed},
		{"a path with a fragment", np, rule(`action: Allow, http: {paths: [{exact: "/a#b"}]}`), `http.paths[0]`,
			isUsed},

		{"1024 rules", np, `ingress: [` + Numbered("{action: Allow, protocol: %d}", 250) +
			strings.Repeat(", {action: Deny}", 774) + `]`, "", isUsed},
		{"1025 rules", np, `egress: [{action: Allow}` + strings.Repeat(", {action: Deny}", 1024) + `]`,
			`spec.egress = "1025": can have at most 1024 rules`, isUsed},
		{"257 networks", np, rule(`action: Allow, source: {nets: [` + Numbered("10.1.%d.0/24", 250) +
			Numbered(", 10.2.%d.0/24", 7) + `]}`), `spec.ingress[1].source.nets = "257": can have at most 256 networks`,
			isUsed},
		{"51 ports", np, rule(`action: Allow, protocol: TCP, destination: {notPorts: [` + Numbered("%d", 51) + `]}`),
			`spec.ingress[1].destination.notPorts = "51": can have at most 50 ports`, isUsed},

		{"both types", np, `types: [Ingress, Egress]`, "", isUsed},
		{"a type twice", np, `types: [Egress, Egress]`, `spec.types[1] = "Egress": must not stand there twice`, isUsed},
		{"unknown type", np, `types: [Sideways]`, `spec.types[0] = "Sideways": must be one of Ingress, Egress`,
			quarantined},
		{"performance hint", np, `performanceHints: [AssumeNeededOnEveryNode]`, "", isUsed},
		{"unknown performance hint", np, `performanceHints: [Hurry]`,
			`spec.performanceHints[0] = "Hurry": must be one of AssumeNeededOnEveryNode`, isUsed},
		{"a performance hint twice", np, `performanceHints: [AssumeNeededOnEveryNode, AssumeNeededOnEveryNode]`,
			`spec.performanceHints[1]`, isUsed},
		{"tier with a dot", np, `tier: a.b`, `spec.tier = "a.b": must be the name of a tier`, isUsed},

		{"untracked", gnp, `doNotTrack: true, applyOnForward: true, egress: [{action: Allow}]`, "", isUsed},
		{"untracked without forwarding", gnp, `doNotTrack: true`,
			`spec.applyOnForward = "false": must be true in a policy with doNotTrack`, isUsed},
		{"before translation without forwarding", gnp, `preDNAT: true, types: [Ingress]`,
			`spec.applyOnForward = "false": must be true in a policy with preDNAT`, isUsed},
		{"untracked and before translation", gnp, `preDNAT: true, doNotTrack: true, applyOnForward: true`,
			`spec.doNotTrack = "true": cannot be set together with preDNAT`, quarantined},
		{"before translation with egress rules", gnp, `preDNAT: true, applyOnForward: true, egress: [{action: Allow}]`,
			`spec.egress = "1": a policy with preDNAT cannot have egress rules`, isUsed},
		{"before translation of type Egress", sgnp, `preDNAT: true, applyOnForward: true, types: [Ingress, Egress]`,
			`spec.types[1] = "Egress": a policy with preDNAT can only be of type Ingress`, isUsed},

		{"staged", snp, `stagedAction: Learn, order: 1, ingress: [{action: Allow}]`, "", isUsed},
		{"staged for nothing known", snp, `stagedAction: Try`,
			`spec.stagedAction = "Try": must be one of Set, Delete, Learn, Ignore`, quarantined},
		{"staged removal", sgnp, `stagedAction: Delete, tier: default`, "", isUsed},
		{"staged removal with more", sgnp, `stagedAction: Delete, order: 1, namespaceSelector: all()`,
			`spec = "order, namespaceSelector": stagedAction Delete allows nothing else but tier`, isUsed},
		{"staged rules are checked", snp, `ingress: [{action: Drop}]`, `spec.ingress[0].action`, quarantined},
		{"staged Kubernetes policy", sknp,
			`podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: 80, endPort: 90}, {port: web}, {protocol: UDP}]}]`, "", isUsed},
		{"staged removal of a Kubernetes policy with more", sknp, `stagedAction: Delete, ingress: [{}]`,
			`stagedAction Delete allows nothing else`, isUsed},
		{"excepted network outside", sknp, `egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]`,
			`spec.egress[0].to[0].ipBlock.except[0] = "11.0.0.0/16": must be a part of 10.0.0.0/8`, isUsed},
		{"peer of no kind", sknp, `ingress: [{from: [{}]}]`, `spec.ingress[0].from[0]`, isUsed},
		{"block and selector", sknp, `ingress: [{from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]`,
			`spec.ingress[0].from[0].ipBlock`, isUsed},
		{"Kubernetes protocol", sknp, `ingress: [{ports: [{protocol: ICMP}]}]`,
			`spec.ingress[0].ports[0].protocol = "ICMP": must be one of TCP, UDP, SCTP`, isUsed},
		{"end of a range without its beginning", sknp, `ingress: [{ports: [{endPort: 80}]}]`,
			`spec.ingress[0].ports[0].endPort`, isUsed},
		{"range the wrong way round", sknp, `ingress: [{ports: [{port: 80, endPort: 79}]}]`,
			`cannot be below port, which is 80`, isUsed},
		{"range from a name", sknp, `ingress: [{ports: [{port: web, endPort: 79}]}]`,
			`cannot stand beside the name of a port`, isUsed},
		{"unknown Kubernetes type", sknp, `policyTypes: [Both]`, `spec.policyTypes[0] = "Both"`, quarantined},

		{"networks of a set", model.KindNetworkSet, `nets: [10.0.0.1, 10.0.0.1/8, "fd00::/8"]`, "", isUsed},
		{"no network in a set", model.KindGlobalNetworkSet, `nets: [10.0.0.0/33]`,
			`spec.nets[0] = "10.0.0.0/33": must be an IP address or CIDR`, quarantined},
		{"host endpoint", model.KindHostEndpoint,
			`node: n, interfaceName: "*", expectedIPs: [10.0.0.1, "fd00::1"], ports: [{name: ssh, protocol: 6, port: 22}]`, "", isUsed},
		{"host endpoint of no node", model.KindHostEndpoint, `interfaceName: eth0`, `spec.node = "": is required`, isUsed},
		{"host endpoint of no interface", model.KindHostEndpoint, `node: n`,
			`spec.interfaceName = "": is required unless expectedIPs selects`, quarantined},
		{"host endpoint of an interface pattern", model.KindHostEndpoint, `node: n, interfaceName: "eth*"`,
			`spec.interfaceName = "eth*"`, quarantined},
		{"expected network", model.KindHostEndpoint, `node: n, expectedIPs: [10.0.0.0/8]`,
			`spec.expectedIPs[0] = "10.0.0.0/8": must be an IP address`, quarantined},
		{"host port 0", model.KindHostEndpoint, `node: n, interfaceName: eth0, ports: [{name: ssh, protocol: TCP, port: 0}]`,
			`spec.ports[0].port = "0": must be from 1 to 65535`, isUsed},
		{"host port of ICMP", model.KindHostEndpoint,
			`node: n, interfaceName: eth0, ports: [{name: ssh, protocol: ICMP, port: 1}]`,
			`spec.ports[0].protocol = "ICMP": must be TCP, UDP or SCTP`, isUsed},
		{"host port of a long name", model.KindHostEndpoint,
			`node: n, interfaceName: eth0, ports: [{name: sixteen-letters-, protocol: TCP, port: 1}]`,
			`spec.ports[0].name`, isUsed},
	} {
		list = append(list, Object{row.rule, row.kind, "p", row.spec, row.want, row.unusable})
	}
	return list
}

// Numbered joins n texts with the numbers from 1 to n.
func Numbered(format string, n int) string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = fmt.Sprintf(format, i+1)
	}
	if strings.HasPrefix(format, ",") {
		return strings.Join(texts, "")
	}
	return strings.Join(texts, ", ")
}
