package main

import (
	"strconv"
	"strings"
)

const (
	policies   = "NetworkPolicy GlobalNetworkPolicy StagedNetworkPolicy StagedGlobalNetworkPolicy"
	global     = "GlobalNetworkPolicy StagedGlobalNetworkPolicy"
	staged     = "StagedNetworkPolicy StagedGlobalNetworkPolicy StagedKubernetesNetworkPolicy"
	directions = "{ingress,egress}[]."
	ends       = directions + "{source,destination}."
)

// The limits of Calico's own definitions, which manxctl has, too. They bound the cost of the rules about lists.
const (
	maxRules    = 1024
	maxNets     = 256
	maxPorts    = 50
	maxHTTP     = 20
	maxSelector = 1024
)

// policyRules are about the policies of tiers, as far as one field, or the fields of one rule, decide.
var policyRules = []rule{
	{policies, "tier", both(def("default"), pattern(`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$`))},
	{policies, "types[]", enum("Ingress", "Egress")},
	{policies, "types", both(atMost(2), once)},
	{policies, "performanceHints[]", enum("AssumeNeededOnEveryNode")},
	{policies, "performanceHints", atMost(1)},
	{policies, "{selector,serviceAccountSelector}", plainSelector},
	{policies, "{ingress,egress}", atMost(maxRules)},
	{policies, directions + "action", enum("Allow", "Deny", "Log", "Pass")},
	{policies, directions + "ipVersion", enum(4, 6)},
	{policies, directions + "{icmp,notICMP}.type", between(0, 254)},
	{policies, directions + "{icmp,notICMP}.code", between(0, 255)},
	{policies, directions + "{icmp,notICMP}", cel("code needs type: each type has its own codes",
		"!has(self.code) || has(self.type)")},
	{policies, directions + "{protocol,notProtocol}", both(pattern(protocol), between(1, 255))},
	{policies, ends + "nets[]", both(pattern(cidr), longest(longestCIDR))},
	{policies, ends + "notNets[]", both(pattern(cidrOfPart), longest(longestCIDR))},
	{policies, ends + "{nets,notNets}", both(atMost(maxNets), cel("the networks must be of one address family",
		"size(self) < 2 || (self[0].contains(':') ? self.all(n, n.contains(':')) : self.all(n, !n.contains(':')))"))},
	{policies, ends + "{ports,notPorts}", atMost(maxPorts)},
	{policies, ends + "{ports,notPorts}[]", both(pattern(port), between(1, 65535))},
	{policies, ends + "{selector,notSelector,serviceAccounts.selector}", plainSelector},
	{policies, ends + "namespaceSelector", both(longest(maxSelector), cel("global() must stand alone: it excludes "+
		"namespaces, so no other selector can apply to them",
		"!"+usesGlobal+" || self.replace('(', '').replace(')', '').trim() == 'global'"))},
	{policies, ends + "serviceAccounts.names[]", pattern(`^[^'"]*$`)},
	{policies, ends + "services", needs("name")},
	{policies, ends + "services.name", both(pattern(dnsSubdomain), longest(253))},
	{policies, ends + "services.namespace", pattern(`^(` + dnsLabel + `)?$`)},
	{global, ends + "services", needs("namespace")},
	{policies, directions + "{source,destination}", cel("services goes with neither selectors, serviceAccounts, "+
		"nets nor notNets", "!has(self.services) || !("+on("selector", "")+" || "+on("notSelector", "")+" || "+
		on("namespaceSelector", "")+" || has(self.serviceAccounts) || "+filled("self.nets")+" || "+
		filled("self.notNets")+")")},
	{policies, "ingress[]", cel("services can be the source of an ingress rule only, not the destination",
		"!has(self.destination) || !has(self.destination.services)")},
	{policies, "egress[]", cel("services can be the destination of an egress rule only, not the source",
		"!has(self.source) || !has(self.source.services)")},
	{policies, "egress[].destination", cel("services goes with neither ports nor notPorts: a Service has its own",
		"!has(self.services) || !("+filled("self.ports")+" || "+filled("self.notPorts")+")")},
	{policies, "{ingress,egress}[]", cel("icmp and notICMP need the protocol ICMP or ICMPv6",
		"!(has(self.icmp) || has(self.notICMP)) || "+protocolIs("ICMP", "1", "ICMPv6", "58"))},
	{policies, "{ingress,egress}[]", cel("ports need the protocol TCP, UDP or SCTP; only names of ports can do without",
		"has(self.protocol) ? "+protocolIs("TCP", "6", "UDP", "17", "SCTP", "132")+" || !("+
			eachEnd(" || ", filled, "ports", "notPorts")+") : !("+eachEnd(" || ", numbered, "ports", "notPorts")+")")},
	{policies, "{ingress,egress}[]", cel("ipVersion, protocol and networks must be of one address family",
		"!((has(self.ipVersion) && self.ipVersion == 4 || "+protocolIs("ICMP", "1")+" || "+
			eachEnd(" || ", family("!"), "nets", "notNets")+") && (has(self.ipVersion) && self.ipVersion == 6 || "+
			protocolIs("ICMPv6", "58")+" || "+eachEnd(" || ", family(""), "nets", "notNets")+"))")},
	{policies, "ingress[]", cel("http goes with action Allow and protocol TCP only",
		"!has(self.http) || self.action == 'Allow' && (!has(self.protocol) || "+protocolIs("TCP", "6")+")")},
	{policies, "egress[]", cel("http can only be in an ingress rule", "!has(self.http)")},
	{policies, directions + "http.{methods,paths}", atMost(maxHTTP)},
	{policies, directions + "http.paths[]", cel("exactly one of exact and prefix is required",
		"("+on("exact", "")+") != ("+on("prefix", "")+")")},
	{policies, directions + "http.paths[].{exact,prefix}", pattern(`^(/[^?# ]*)?$`)},

	{global, "namespaceSelector", plainSelector},
	{global, "", cel("doNotTrack and preDNAT exclude each other", "!(has(self.doNotTrack) && self.doNotTrack && "+
		"has(self.preDNAT) && self.preDNAT)")},
	{global, "", cel("doNotTrack and preDNAT need applyOnForward", "!(has(self.doNotTrack) && self.doNotTrack || "+
		"has(self.preDNAT) && self.preDNAT) || (has(self.applyOnForward) && self.applyOnForward)")},
	{global, "", cel("preDNAT goes with neither egress rules nor the type Egress",
		"!(has(self.preDNAT) && self.preDNAT) || "+
			"!(has(self.egress) && size(self.egress) > 0 || has(self.types) && 'Egress' in self.types)")},

	{staged, "stagedAction", both(enum("Set", "Delete", "Learn", "Ignore"), def("Set"))},
	{"StagedNetworkPolicy StagedGlobalNetworkPolicy", "", cel("stagedAction Delete allows nothing else but tier",
		deletes+"!(has(self.order) || "+filled("self.ingress")+" || "+filled("self.egress")+" || "+filled("self.types")+
			" || "+on("selector", "")+" || "+on("serviceAccountSelector", "")+" || "+
			filled("self.performanceHints")+")")},
	{"StagedGlobalNetworkPolicy", "", cel("stagedAction Delete allows nothing else but tier",
		deletes+"!("+on("namespaceSelector", "")+" || has(self.doNotTrack) && self.doNotTrack || has(self.preDNAT) && "+
			"self.preDNAT || has(self.applyOnForward) && self.applyOnForward)")},
	{"StagedKubernetesNetworkPolicy", "", cel("stagedAction Delete allows nothing else", deletes+"!("+
		filled("self.ingress")+" || "+filled("self.egress")+" || "+filled("self.policyTypes")+
		" || has(self.podSelector) && ("+
		filled("self.podSelector.matchLabels")+" || "+filled("self.podSelector.matchExpressions")+"))")},
	{"StagedKubernetesNetworkPolicy", "policyTypes[]", enum("Ingress", "Egress")},
	{"StagedKubernetesNetworkPolicy", "policyTypes", both(atMost(2), once)},
	{"StagedKubernetesNetworkPolicy", directions + "ports[].protocol", enum("TCP", "UDP", "SCTP")},
	{"StagedKubernetesNetworkPolicy", directions + "ports[].endPort", between(1, 65535)},
	{"StagedKubernetesNetworkPolicy", "ingress[].from[].ipBlock.{cidr,except[]}", pattern(network)},
	{"StagedKubernetesNetworkPolicy", "egress[].to[].ipBlock.{cidr,except[]}", pattern(network)},
}

const deletes = "self.stagedAction != 'Delete' || "

// usesGlobal is true for a selector with global() before any quote; a search behind quotes would cost too much.
const usesGlobal = `self.matches('^[^\'"]*global[(]')`

// plainSelector is for a selector in which global() has no meaning.
var plainSelector = both(longest(maxSelector), cel("global() has its place in the namespaceSelector of a rule's "+
	"source or destination", "!"+usesGlobal))

// once is for a short list of words.
var once = cel("nothing may stand there twice", "self.all(x, self.exists_one(y, x == y))")

// filled is true for a list or a mapping with an entry.
func filled(path string) string { return "has(" + path + ") && size(" + path + ") > 0" }

// numbered is true for a list of ports with a number. A range is a text, which has no limit of its length here.
func numbered(path string) string {
	return "has(" + path + ") && " + path + ".exists(p, type(p) == int)"
}

// family is about the first network of a list.
func family(not string) func(path string) string {
	return func(path string) string { return filled(path) + " && " + not + path + "[0].contains(':')" }
}

// eachEnd joins what is said about lists of both ends of a rule.
func eachEnd(operator string, about func(path string) string, lists ...string) string {
	var all []string
	for _, end := range []string{"self.source", "self.destination"} {
		for _, list := range lists {
			all = append(all, "has("+end+") && "+about(end+"."+list))
		}
	}
	return strings.Join(all, operator)
}

// protocolIs is true for a protocol by one of its names or numbers.
func protocolIs(names ...string) string {
	var any []string
	for _, n := range names {
		any = append(any, "self.protocol == '"+n+"'")
		if _, err := strconv.Atoi(n); err == nil {
			any = append(any, "self.protocol == "+n)
		}
	}
	return "has(self.protocol) && (" + strings.Join(any, " || ") + ")"
}
