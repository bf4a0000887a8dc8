package main

import (
	"encoding/json"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// rule is a validation or default of the API server beyond the Go types, at the fields of some kinds that a path from
// spec leads to. "[]" enters a list; a path may begin with several alternatives, as "{ingress,egress}[].action". An
// empty path is the spec itself. Rules about several fields inside of lists are manxctl's and manxd's: for the API
// server the schema would have to bound the length of each list. No rule is stricter than manxctl.
type rule struct {
	kinds string // separated by spaces
	path  string
	apply func(*apiextensions.JSONSchemaProps)
}

const policies = "NetworkPolicy GlobalNetworkPolicy StagedNetworkPolicy StagedGlobalNetworkPolicy"
const global = "GlobalNetworkPolicy StagedGlobalNetworkPolicy"
const staged = "StagedNetworkPolicy StagedGlobalNetworkPolicy StagedKubernetesNetworkPolicy"

// rules are Calico's, as far as one field decides.
var rules = []rule{
	{"BGPConfiguration", "logSeverityScreen", both(pattern(`^(?i)(Trace|Debug|Info|Warning|Error|Fatal)?$`),
		def("Info"))},
	{"BGPConfiguration", "bindMode", enum("None", "NodeIP")},
	{"BGPConfiguration", "programClusterRoutes", enum("Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly")},
	{"BGPConfiguration", "serviceLoadBalancerAggregation", def("Enabled")},
	{"BGPConfiguration", "listenPort", between(1, 65535)},
	{"BGPConfiguration", "{serviceClusterIPs,serviceExternalIPs,serviceLoadBalancerIPs,prefixAdvertisements}[].cidr",
		pattern(network)},
	{"BGPConfiguration", "{localWorkloadPeeringIPV4,localWorkloadPeeringIPV6}", pattern(optional)},
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
	{"BGPFilter", filters + "interface", pattern(`^[a-zA-Z0-9_.*-]{0,15}$`)},
	{"IPPool", "{ipipMode,vxlanMode}", enum("Never", "Always", "CrossSubnet")},
	{"IPPool", "blockSize", between(0, 128)},
	{"IPPool", "allowedUses[]", enum("Workload", "Tunnel", "LoadBalancer")},
	{"IPPool", "assignmentMode", def("Automatic")},
	{"IPPool", "nodeSelector", def("all()")},
	{"IPPool", "allowedUses", atMost(10)},
	{"IPPool", "{nodeSelector,namespaceSelector}", longest(1024)},
	{"IPPool", "cidr", both(longest(48), pattern(cidr))},
	{"IPPool", "", cel("IPIP and VXLAN exclude each other", on("ipipMode", "Never")+" ? !("+on("vxlanMode", "Never")+
		") : true")},
	{"IPPool", "", cel("the block size must be from 20 to 32 for IPv4, from 116 to 128 for IPv6",
		"!has(self.blockSize) || self.blockSize == 0 || (self.cidr.contains(':') ? self.blockSize >= 116 : "+
			"self.blockSize >= 20 && self.blockSize <= 32)")},
	{"IPPool", "", cel("nodeSelector cannot have global()", "!has(self.nodeSelector) || "+
		"!self.nodeSelector.contains('global(')")},
	{"IPPool", "", cel("LoadBalancer goes with no other use, with no encapsulation and not with disableBGPExport",
		"!has(self.allowedUses) || !('LoadBalancer' in self.allowedUses) || (self.allowedUses.all(u, u == "+
			"'LoadBalancer') && "+
			"!("+on("ipipMode", "Never")+") && !("+on("vxlanMode", "Never")+") && !(has(self.disableBGPExport) && "+
			"self.disableBGPExport))")},
	{"IPPool", "", cel("namespaceSelector does not go with the use Tunnel: name the uses",
		"!("+on("namespaceSelector", "")+") || (has(self.allowedUses) && size(self.allowedUses) > 0 && !('Tunnel' in "+
			"self.allowedUses))")},
	{"BGPPeer", "reversePeering", enum("Auto", "Manual")},
	{"BGPPeer", "peerIP", pattern(peerAddress)},
	{"BGPPeer", "reachableBy", pattern(optional)},
	{"BGPPeer", "", cel("reachableBy needs peerIP", "!("+on("reachableBy", "")+") || "+on("peerIP", ""))},
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
	{"FelixConfiguration", "", cel("routeTableRange and routeTableRanges exclude each other",
		"!(has(self.routeTableRange) && has(self.routeTableRanges))")},
	{global, "types", atMost(2)},
	{global, "namespaceSelector", longest(1024)},
	{global, "", cel("doNotTrack and preDNAT need applyOnForward", "!(has(self.doNotTrack) && self.doNotTrack || "+
		"has(self.preDNAT) && self.preDNAT) || (has(self.applyOnForward) && self.applyOnForward)")},
	{global, "", cel("preDNAT goes with neither egress rules nor the type Egress",
		"!(has(self.preDNAT) && self.preDNAT) || "+
			"!(has(self.egress) && size(self.egress) > 0 || has(self.types) && 'Egress' in self.types)")},
	{global, "", cel("namespaceSelector cannot be global()",
		"!has(self.namespaceSelector) || !self.namespaceSelector.contains('global(')")},
	{"IPReservation", "reservedCIDRs[]", pattern(cidr)},
	{"NetworkSet GlobalNetworkSet", "nets[]", pattern(network)},
	{policies, directions + "{source,destination}.{nets,notNets}[]", pattern(network)},
	{policies, directions + "{protocol,notProtocol}", both(pattern(protocol), between(1, 255))},
	{"HostEndpoint", "expectedIPs[]", pattern(address)},
	{"HostEndpoint", "interfaceName", pattern(`^([*]|[a-zA-Z0-9_.-]{0,15})$`)},
	{"HostEndpoint", "", cel("interfaceName or expectedIPs is required", "("+on("interfaceName", "")+
		") || (has(self.expectedIPs) && size(self.expectedIPs) > 0)")},
	{"HostEndpoint", "ports[].port", between(1, 65535)},
	{"IPAMConfiguration IPAMConfig", "strictAffinity", def(false)},
	{"IPAMConfiguration IPAMConfig", "autoAllocateBlocks", def(true)},
	{"IPAMConfiguration IPAMConfig", "maxBlocksPerHost", both(between(0, 1000000), def(0))},
	{"IPAMConfiguration IPAMConfig", "ipCooldownSeconds", between(0, 1200)},
	{"IPAMConfiguration IPAMConfig", "kubeVirtVMAddressPersistence", enum("Enabled", "Disabled")},
	{"Tier", "defaultAction", def("Deny")},
	{"FelixConfiguration", "logActionRateLimit", pattern(`^[1-9][0-9]{0,3}/(second|minute|hour|day)$`)},
	{policies, "tier", def("default")},
	{policies, "types[]", enum("Ingress", "Egress")},
	{policies, "performanceHints[]", enum("AssumeNeededOnEveryNode")},
	{policies, directions + "action", enum("Allow", "Deny", "Log", "Pass")},
	{policies, directions + "ipVersion", enum(4, 6)},
	{policies, directions + "{icmp,notICMP}.type", between(0, 254)},
	{policies, directions + "{icmp,notICMP}.code", between(0, 255)},
	{staged, "stagedAction", both(enum("Set", "Delete", "Learn", "Ignore"), def("Set"))},
	{"HostEndpoint", "node", func(s *apiextensions.JSONSchemaProps) { one := int64(1); s.MinLength = &one }},
	{"CalicoNodeStatus", "updatePeriodSeconds", between(0, 86400)},
	{"CalicoNodeStatus", "classes[]", enum("Agent", "BGP", "Routes")},
}

const (
	filters    = "{exportV4,importV4,exportV6,importV6}[]."
	directions = "{ingress,egress}[]."
)

// required are fields that an object needs, although the Go types declare them optional.
var required = map[string][]string{"HostEndpoint": {"node"}}

func value(v any) apiextensions.JSON {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // the rules are constants
	}
	return apiextensions.JSON{Raw: raw}
}

func enum(values ...any) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) {
		s.Enum = nil
		for _, v := range values {
			s.Enum = append(s.Enum, value(v))
		}
	}
}

func def(v any) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { j := value(v); s.Default = &j }
}

func pattern(p string) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.Pattern = p }
}

func between(low, high float64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.Minimum, s.Maximum = &low, &high }
}

func atMost(n int64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.MaxItems = &n }
}

func atLeast(n int64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.MinItems = &n }
}

func atLeastNumber(low float64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.Minimum = &low }
}

func longest(n int64) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { s.MaxLength = &n }
}

// cel is a rule in the Common Expression Language.
func cel(message, rule string) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) {
		s.XValidations = append(s.XValidations, apiextensions.ValidationRule{Rule: rule, Message: message})
	}
}

// on is true if a field is there and not an empty value.
func on(field, nothing string) string {
	return "has(self." + field + ") && self." + field + " != '" + nothing + "'"
}

func both(a, b func(*apiextensions.JSONSchemaProps)) func(*apiextensions.JSONSchemaProps) {
	return func(s *apiextensions.JSONSchemaProps) { a(s); b(s) }
}

// addRules adds the rules to the schema of a kind, and returns the path of one that leads nowhere.
func addRules(kind string, schema *apiextensions.JSONSchemaProps) (nowhere string) {
	spec := schema.Properties["spec"]
	for _, r := range rules {
		if !contains(r.kinds, kind) {
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
