package main

import (
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// rule is a validation or default of the API server beyond the Go types, at the fields of some kinds that a path from
// spec leads to. "[]" enters a list; a path may begin with several alternatives, as "{ingress,egress}[].action". An
// empty path is the spec itself, "/" the whole object. Rules in the Common Expression Language have a budget, which the
// API server computes from the longest lists and texts that the schema allows: where manxctl sets no limit, such a rule
// is manxctl's and manxd's alone. No rule is stricter than manxctl.
type rule struct {
	kinds string // separated by spaces
	path  string
	apply func(*apiextensions.JSONSchemaProps)
}

const wholeObject = "/"

// rules are Calico's, as far as one field decides.
var rules = []rule{
	{"BGPConfiguration", "logSeverityScreen", both(pattern(`^(?i)(Trace|Debug|Info|Warning|Error|Fatal)?$`),
		def("Info"))},
	{"BGPConfiguration", "bindMode", enum("None", "NodeIP")},
	{"BGPConfiguration", "programClusterRoutes", enum("Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly")},
	{"BGPConfiguration", "serviceLoadBalancerAggregation", def("Enabled")},
	{"BGPConfiguration", "listenPort", between(1, 65535)},
	{"BGPConfiguration", "{serviceClusterIPs,serviceExternalIPs,serviceLoadBalancerIPs,prefixAdvertisements}[].cidr",
		pattern(cidr)},
	{"BGPConfiguration", "localWorkloadPeeringIPV4", pattern(optional4)},
	{"BGPConfiguration", "localWorkloadPeeringIPV6", pattern(optional6)},
	{"BGPConfiguration", "communities[]", needs("name")},
	{"BGPConfiguration", "communities[].name", pattern(name)},
	{"BGPConfiguration", "communities[].value", pattern(community)},
	{"BGPConfiguration", "{communities,prefixAdvertisements}", atMost(500)},
	{"BGPConfiguration", "", cel("communities are of no use without prefixAdvertisements",
		"!("+filled("self.communities")+") || "+filled("self.prefixAdvertisements"))},
	{"BGPConfiguration", "prefixAdvertisements[].communities", both(atLeast(1), atMost(50))},
	{"BGPConfiguration", "prefixAdvertisements[].communities[]", pattern(nameOrCommunity)},
	{"BGPConfiguration", "prefixAdvertisements[].cidr", both(longest(longestCIDR), network4)},
	{"BGPConfiguration", "", cel("nodeMeshPassword and nodeMeshMaxRestartTime need a mesh",
		"!(has(self.nodeToNodeMeshEnabled) && !self.nodeToNodeMeshEnabled) || "+
			"!(has(self.nodeMeshPassword) || has(self.nodeMeshMaxRestartTime))")},
	{"BGPConfiguration", "nodeMeshMaxRestartTime", notNegative},
	{"BGPConfiguration", wholeObject, cel("nodeToNodeMeshEnabled, asNumber, nodeMeshPassword, nodeMeshMaxRestartTime "+
		"and the ranges of Services can only be set in the BGPConfiguration named default",
		"self.metadata.name == 'default' || !has(self.spec) || !(has(self.spec.nodeToNodeMeshEnabled) || "+
			"has(self.spec.asNumber) || has(self.spec.nodeMeshPassword) || has(self.spec.nodeMeshMaxRestartTime) || "+
			filled("self.spec.serviceClusterIPs")+" || "+filled("self.spec.serviceExternalIPs")+" || "+
			filled("self.spec.serviceLoadBalancerIPs")+")")},
	{"BGPConfiguration", "ignoredInterfaces[]", pattern(`^([a-zA-Z0-9_.-]|[a-zA-Z0-9_.*-]{2,15})$`)},
	{"BGPConfiguration", "{ipv4NormalRoutePriority,ipv6NormalRoutePriority}", between(1, 2147483646)},
	{"BGPFilter", filters + "action", enum("Accept", "Reject")},
	{"BGPFilter", filters + "matchOperator", enum("Equal", "NotEqual", "In", "NotIn")},
	{"BGPFilter", filters + "source", enum("RemotePeers")},
	{"BGPFilter", filters + "peerType", enum("eBGP", "iBGP")},
	{"BGPFilter", filters + "operations[].addCommunity.value", pattern(community)},
	{"BGPFilter", filters + "operations", atMost(10)},
	{"BGPFilter", filters + "operations[].prependASPath.prefix", both(atLeast(1), atMost(10))},
	{"BGPFilter", filters + "{priority,operations[].setPriority.value}", between(1, 2147483646)},
	{"BGPFilter", filters + "communities.values[]", pattern(community)},
	{"BGPFilter", filters + "communities.values", both(atLeast(1), atMost(1))},
	{"BGPFilter", "{exportV4,importV4}[].cidr", pattern(networkV4)},
	{"BGPFilter", "{exportV6,importV6}[].cidr", pattern(networkV6)},
	{"BGPFilter", "{exportV4,importV4}[].prefixLength.{min,max}", between(0, 32)},
	{"BGPFilter", "{exportV6,importV6}[].prefixLength.{min,max}", between(0, 128)},
	{"BGPFilter", strings.TrimSuffix(filters, "."), cel("cidr and matchOperator need each other",
		"("+on("cidr", "")+") == has(self.matchOperator)")},
	{"BGPFilter", strings.TrimSuffix(filters, "."), cel("prefixLength needs cidr with the matchOperator In or NotIn",
		"!has(self.prefixLength) || has(self.matchOperator) && self.matchOperator.endsWith('In')")},
	{"BGPFilter", filters + "prefixLength", cel("min must not exceed max",
		"!has(self.min) || !has(self.max) || self.min <= self.max")},
	{"BGPFilter", strings.TrimSuffix(filters, "."), cel("operations go with the action Accept only",
		"self.action == 'Accept' || !("+filled("self.operations")+")")},
	{"BGPFilter", filters + "operations[]", func(s *apiextensions.JSONSchemaProps) {
		one := int64(1)
		s.MinProperties, s.MaxProperties = &one, &one
	}},
	{"BGPFilter", filters + "interface", pattern(`^[a-zA-Z0-9_.*-]{0,15}$`)},
	{"IPPool", "{ipipMode,vxlanMode}", enum("Never", "Always", "CrossSubnet")},
	{"IPPool", "blockSize", between(0, 128)},
	{"IPPool", "allowedUses[]", enum("Workload", "Tunnel", "LoadBalancer")},
	{"IPPool", "assignmentMode", def("Automatic")},
	{"IPPool", "nodeSelector", def("all()")},
	{"IPPool", "allowedUses", atMost(10)},
	{"IPPool", "{nodeSelector,namespaceSelector}", longest(1024)},
	{"IPPool", "cidr", both(longest(48), pattern(cidr))},
	{"IPPool", "cidr", network4},
	{"IPPool", "cidr", cel("the range overlaps the link-local addresses, 169.254.0.0/16 or fe80::/10",
		"!self.matches('^[fF][eE][89abAB][0-9a-fA-F]:') && ("+ofV4("self", "("+base+") > 2852061183 || ("+base+") + "+
			"("+size+") <= 2851995648")+")")},
	{"IPPool", "", cel("the pool is smaller than one block: use a greater blockSize",
		"!self.cidr.contains('/') || has(self.disabled) && self.disabled || int(self.cidr.split('/')[1]) <= ("+
			"has(self.blockSize) && self.blockSize != 0 ? self.blockSize : (self.cidr.contains(':') ? 122 : 26))")},
	{"IPPool", "", cel("IPIP exists for IPv4 only", "!self.cidr.contains(':') || !("+on("ipipMode", "Never")+")")},
	{"IPPool", "", cel("IPIP and VXLAN exclude each other", on("ipipMode", "Never")+" ? !("+on("vxlanMode", "Never")+
		") : true")},
	{"IPPool", "", cel("the block size must be from 20 to 32 for IPv4, from 116 to 128 for IPv6",
		"!has(self.blockSize) || self.blockSize == 0 || (self.cidr.contains(':') ? self.blockSize >= 116 : "+
			"self.blockSize >= 20 && self.blockSize <= 32)")},
	{"IPPool", "", cel("nodeSelector cannot have global()", "!has(self.nodeSelector) || "+
		"!self.nodeSelector.contains('global(')")},
	{"IPPool", "", cel("LoadBalancer goes with no other use, with no encapsulation, not with disableBGPExport, "+
		"and with the nodeSelector all() only",
		"!has(self.allowedUses) || !('LoadBalancer' in self.allowedUses) || (self.allowedUses.all(u, u == "+
			"'LoadBalancer') && (!has(self.nodeSelector) || self.nodeSelector in ['', 'all()']) && "+
			"!("+on("ipipMode", "Never")+") && !("+on("vxlanMode", "Never")+") && !(has(self.disableBGPExport) && "+
			"self.disableBGPExport))")},
	{"IPPool", "", cel("namespaceSelector does not go with the use Tunnel: name the uses",
		"!("+on("namespaceSelector", "")+") || (has(self.allowedUses) && size(self.allowedUses) > 0 && !('Tunnel' in "+
			"self.allowedUses))")},
	{"BGPPeer", "reversePeering", enum("Auto", "Manual")},
	{"BGPPeer", "peerIP", pattern(peerAddress)},
	{"BGPPeer", "reachableBy", pattern(optional)},
	{"BGPPeer", "", cel("reachableBy needs peerIP", "!("+on("reachableBy", "")+") || "+on("peerIP", ""))},
	{"BGPPeer", "", cel("reachableBy must be of the same family as peerIP",
		"!("+on("reachableBy", "")+" && "+on("peerIP", "")+") || self.peerIP.matches('(?i):ffff:') || "+
			"self.reachableBy.matches('(?i):ffff:') || self.peerIP.contains('.') == self.reachableBy.contains('.')")},
	{"BGPPeer", "{nodeSelector,peerSelector,localWorkloadSelector}", longest(maxSelector)},
	{"BGPPeer", "{maxRestartTime,keepaliveTime}", notNegative},
	{"BGPPeer", "node", pattern(optionalName)},
	{"BGPPeer", "filters[]", pattern(name)},
	{"BGPPeer", "", cel("localWorkloadSelector needs asNumber",
		"!("+on("localWorkloadSelector", "")+") || has(self.asNumber) && self.asNumber != 0")},
	{"BGPPeer", "sourceAddress", enum("UseNodeIP", "None", "")},
	{"BGPPeer", "numAllowedLocalASNumbers", atLeastNumber(0)},
	{"BGPPeer", "", cel("node and nodeSelector exclude each other", "!("+on("node", "")+" && "+on("nodeSelector", "")+
		")")},
	{"BGPPeer", "", cel("peerSelector goes with neither peerIP nor asNumber",
		"!("+on("peerSelector", "")+") || !("+on("peerIP", "")+" || has(self.asNumber) && self.asNumber != 0)")},
	{"BGPPeer", "", cel("localWorkloadSelector goes with neither peerIP nor peerSelector",
		"!("+on("localWorkloadSelector", "")+") || !("+on("peerIP", "")+" || "+on("peerSelector", "")+")")},
	{"BGPPeer", "", cel("keepOriginalNextHop and nextHopMode exclude each other",
		"!(has(self.keepOriginalNextHop) && self.keepOriginalNextHop && has(self.nextHopMode))")},
	{"FelixConfiguration", wholeObject, cel("nodeSelector goes with neither the name default nor node.NAME, "+
		"whose nodes follow from the name",
		"!has(self.spec) || !has(self.spec.nodeSelector) || self.spec.nodeSelector == '' || "+
			"self.metadata.name != 'default' && !self.metadata.name.startsWith('node.')")},
	{"FelixConfiguration", "nodeSelector", longest(maxSelector)},
	{"FelixConfiguration", "{deviceRouteSourceAddress,natOutgoingAddress}", pattern(optional4)},
	{"FelixConfiguration", "deviceRouteSourceAddressIPv6", pattern(optional6)},
	{"FelixConfiguration", "deviceRouteProtocol", between(0, 255)},
	{"FelixConfiguration", "routeTableRange", cel("must be within 1 to 250, min not above max",
		"self.min >= 1 && self.max <= 250 && self.min <= self.max")},
	{"FelixConfiguration", "{wireguardListeningPort,wireguardListeningPortV6}", between(1, 65535)},
	{"FelixConfiguration", "vxlanPort", between(0, 65535)}, // Calico's programs store 0, which a node reports
	{"FelixConfiguration", "vxlanVNI", between(1, 16777215)},
	{"FelixConfiguration", "{vxlanMTU,vxlanMTUV6}", between(0, 65535)},
	{"FelixConfiguration", "externalNodesList[]", pattern(network)},
	{"FelixConfiguration", "wireguardRoutingRulePriority", between(1, 32765)},
	{"FelixConfiguration", "{ipv4NormalRoutePriority,ipv4ElevatedRoutePriority,ipv6NormalRoutePriority," +
		"ipv6ElevatedRoutePriority}", between(1, 2147483646)},
	{"FelixConfiguration", "healthTimeoutOverrides[].name", pattern(`^[a-zA-Z0-9_ -]+$`)},
	{"FelixConfiguration", "{featureGates,featureDetectOverride}", pattern(keyValues)},
	{"FelixConfiguration", "kubeNodePortRanges", atMost(7)},
	{"FelixConfiguration", "kubeNodePortRanges[]", pattern(`^[0-9]+(:[0-9]+)?$`)},
	{"FelixConfiguration", "{wireguardInterfaceName,wireguardInterfaceNameV6}", pattern(`^[a-zA-Z0-9_.-]{0,15}$`)},
	// The text is compiled only if it is evaluated.
	{"FelixConfiguration", "mtuIfacePattern", both(longest(maxSelector), cel("must be a regular expression",
		"''.matches(self) in [true, false]"))},
	{"FelixConfiguration", "", cel("routeTableRange and routeTableRanges exclude each other",
		"!(has(self.routeTableRange) && has(self.routeTableRanges))")},
	{"IPReservation", "reservedCIDRs[]", pattern(cidr)},
	{"NetworkSet GlobalNetworkSet", "nets[]", pattern(network)},
	{"HostEndpoint", "expectedIPs[]", pattern(address)},
	{"HostEndpoint", "interfaceName", pattern(`^([*]|[a-zA-Z0-9_.-]{0,15})$`)},
	{"HostEndpoint", "", cel("interfaceName or expectedIPs is required", "("+on("interfaceName", "")+
		") || (has(self.expectedIPs) && size(self.expectedIPs) > 0)")},
	{"HostEndpoint", "ports[].port", between(1, 65535)},
	{"HostEndpoint", "ports[].name", pattern(`^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$`)},
	{"HostEndpoint", "ports[].protocol", enum("TCP", "UDP", "SCTP", 6, 17, 132, "6", "17", "132")},
	{"HostEndpoint", "node", pattern(name)},
	{"HostEndpoint", "profiles[]", pattern(name)},
	{"IPAMConfiguration IPAMConfig", "strictAffinity", def(false)},
	{"IPAMConfiguration IPAMConfig", "autoAllocateBlocks", def(true)},
	{"IPAMConfiguration IPAMConfig", "maxBlocksPerHost", both(between(0, 1000000), def(0))},
	{"IPAMConfiguration IPAMConfig", "ipCooldownSeconds", between(0, 1200)},
	{"IPAMConfiguration IPAMConfig", "kubeVirtVMAddressPersistence", enum("Enabled", "Disabled")},
	{"Tier", "defaultAction", both(enum("Deny", "Pass"), def("Deny"))},
	{"Tier", wholeObject, cel("order and defaultAction of a built-in tier are 1000000 and Deny in default, 1000 "+
		"and Pass in kube-admin, 10000000 and Pass in kube-baseline", builtIn("default", "1000000.0", "Deny")+" && "+
		builtIn("kube-admin", "1000.0", "Pass")+" && "+builtIn("kube-baseline", "10000000.0", "Pass"))},
	{"KubeControllersConfiguration ClusterInformation IPAMConfiguration IPAMConfig", wholeObject,
		cel("the name must be default: there is only one", "self.metadata.name == 'default'")},
	{"KubeControllersConfiguration", controllers + "loadBalancer.assignIPs", enum("AllServices",
		"RequestedServicesOnly", "")},
	{"KubeControllersConfiguration", controllers + "migration.policyNameMigrator", enum("Enabled", "Disabled", "")},
	{"KubeControllersConfiguration", controllers + "node.syncLabels", enum("Enabled", "Disabled", "")},
	{"KubeControllersConfiguration", controllers + "node.hostEndpoint.{autoCreate,createDefaultHostEndpoint}",
		enum("Enabled", "Disabled", "")},
	{"KubeControllersConfiguration", "healthChecks", enum("Enabled", "Disabled", "")},
	{"KubeControllersConfiguration", "{prometheusMetricsPort,debugProfilePort}", between(0, 65535)},
	{"KubeControllersConfiguration", templates, needs("generateName")},
	{"KubeControllersConfiguration", templates + ".generateName", pattern(name)},
	{"KubeControllersConfiguration", templates + ".interfaceCIDRs[]", pattern(network)},
	{"KubeControllersConfiguration", templates, cel("interfacePattern or interfaceCIDRs is required",
		filled("self.interfaceCIDRs")+" || "+on("interfacePattern", ""))},
	{"FelixConfiguration", "logActionRateLimit", pattern(`^[1-9][0-9]{0,3}/(second|minute|hour|day)$`)},
	{"CalicoNodeStatus", "updatePeriodSeconds", between(0, 86400)},
	{"CalicoNodeStatus", "classes[]", enum("Agent", "BGP", "Routes")},
	{"CalicoNodeStatus", "classes", both(atMost(3), once)},
	{"CalicoNodeStatus", "node", pattern(name)},
}

const (
	controllers = "controllers."
	templates   = controllers + "node.hostEndpoint.templates[]"
)

// notNegative is for a duration.
var notNegative = cel("cannot be negative", "!self.startsWith('-')")

// builtIn is true for every tier but the one of that name with other settings.
func builtIn(name, order, action string) string {
	return "(self.metadata.name != '" + name + "' || !has(self.spec) || (!has(self.spec.order) || self.spec.order == " +
		order + ") && (!has(self.spec.defaultAction) || self.spec.defaultAction == '" + action + "'))"
}

const filters = "{exportV4,importV4,exportV6,importV6}[]."

// required are fields that an object needs, although the Go types declare them optional.
var required = map[string][]string{"HostEndpoint": {"node"}, "CalicoNodeStatus": {"node", "classes"}}

// addRules adds the rules to the schema of a kind, and returns the path of one that leads nowhere.
func addRules(kind string, schema *apiextensions.JSONSchemaProps) (nowhere string) {
	spec := schema.Properties["spec"]
	for _, r := range slices.Concat(rules, policyRules) {
		if !contains(r.kinds, kind) {
			continue
		}
		if r.path == wholeObject {
			r.apply(schema)
			continue
		}
		for _, path := range expand(r.path) {
			if !at(&spec, path, r.apply) {
				return path
			}
		}
	}
	spec.Required = append(spec.Required, required[kind]...)
	schema.Properties["spec"] = spec
	return ""
}

func contains(kinds, kind string) bool {
	for k := range strings.FieldsSeq(kinds) {
		if k == kind {
			return true
		}
	}
	return false
}

// expand writes out the alternatives of a path.
func expand(path string) []string {
	before, rest, ok := strings.Cut(path, "{")
	if !ok {
		return []string{path}
	}
	alternatives, after, _ := strings.Cut(rest, "}")
	var all []string
	for a := range strings.SplitSeq(alternatives, ",") {
		all = append(all, expand(before+a+after)...)
	}
	return all
}

// at applies f to the schema that path leads to, and reports whether there is one.
func at(s *apiextensions.JSONSchemaProps, path string, f func(*apiextensions.JSONSchemaProps)) bool {
	if path == "" {
		f(s)
		return true
	}
	step, rest, _ := strings.Cut(path, ".")
	name, list := strings.CutSuffix(step, "[]")
	field, ok := s.Properties[name]
	if !ok || list && field.Items == nil {
		return false
	}
	to := &field
	if list {
		to = field.Items.Schema
	}
	if !at(to, rest, f) {
		return false
	}
	s.Properties[name] = field
	return true
}
